"""What takes a part of an attached script's step that need not be, the largest first."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from scaling.attach.facts import rare, reduces_a_step, same_samples
from scaling.attach.inside.arms import BUCKETS
from scaling.attach.loading import batch_making, loader_starts, saved_by_cached_input
from scaling.attach.measured import BEFORE, Measured, Saved
from scaling.attach.ranks import (
    SlowRank,
    batch_elements,
    has_larger_batch,
    shares,
    slow_rank,
    unevenness,
)
from scaling.attach.trace import Traced

LEAST = 0.10
"""Of a step: less is no finding."""

LEAST_UNPAIRED = {"before_backward": 0.60, "gradients": 0.30, "optimizer": 0.30, "rest": 0.30, "idle": 0.20}
"""Of what no arm takes away: every script has some of it, and only a part can be avoided."""

WAITED_FOR = ("input", "rest")
"""Findings in which a GPU is idle, and not for want of launched kernels."""

OFTEN_STEPS = 1.5
"""What is done once in so many steps is a part of the usual one."""

CAUSES = ("no_sampler", "saves", "evaluation")
"""Findings that name what is done: before phases of which only the time is known."""

SETTINGS = ("threads", "no_debugging", "plain_all_reduce")
"""Arms that run once, and again where they were faster, each for itself."""

MOSTLY_INPUT = 0.4
"""Of what long steps add: so much in their input is said."""


@dataclass(frozen=True)
class Avoidable:
    """Something that takes a part of a step that need not be.

    Attributes:
        kind: what it is, for programs.
        ratio: of a step, at most to be gained.
        advice: what to try.
        values: rank, phase and such, for programs.
        is_once: seen in phases alone: no verdict.
    """

    kind: str
    ratio: float
    advice: str
    values: dict[str, Any] = field(default_factory=dict)
    is_once: bool = False


def findings(measured: Measured, traced: Traced | None = None) -> list[Avoidable]:
    """All of them, the largest first: none below the A/A spread, and none without an A/A pair."""
    spread = measured.spread_ratio
    if spread is None:
        return []
    slow = slow_rank(measured)
    candidates = [
        *_slow_finding(slow),
        *_uneven_finding(measured, slow),
        *_input_finding(measured, slow),
        *_exchange_findings(measured),
        *_threads_finding(measured),
        *_debugging_finding(measured),
        *_cores_finding(measured),
        *_phase_findings(measured),
        *_other_steps_finding(measured),
        *_long_steps_finding(measured),
        *_work_finding(measured),
    ]
    claimed = _claimed(candidates, spread)
    waits = sum(finding.ratio for finding in claimed if finding.kind in WAITED_FOR)
    claimed += _claimed(_trace_findings(measured, traced, waits), spread)
    # Where threads share cores, the exchange waits for them too: it is to be measured again without that.
    most = min((finding.ratio for finding in claimed if finding.kind == "threads"), default=1.0)
    return sorted(
        claimed,
        key=lambda one: (
            one.kind not in CAUSES,
            -min(one.ratio, most) if one.kind == "exchange" else -one.ratio,
            one.kind == "exchange",
        ),
    )


def _claimed(candidates: Sequence[Avoidable], spread: float) -> list[Avoidable]:
    return [
        finding
        for finding in candidates
        if finding.ratio >= LEAST_UNPAIRED.get(finding.kind, LEAST)
        and (finding.ratio > spread or finding.kind in (*CAUSES, "uneven"))
    ]


def _slow_finding(slow: SlowRank | None) -> list[Avoidable]:
    if slow is None:
        return []
    values = {"ranks": list(slow.ranks), "phase": slow.phase}
    if has_larger_batch(slow):
        advice = f"give all ranks batches of one size; those of {slow.name} are larger."
        return [Avoidable("uneven", slow.longer_ratio, advice, values)]
    advice = f"find out what {slow.name} does in its {slow.phase} that others do not."
    return [Avoidable("slow_rank", slow.longer_ratio, advice, values)]


def _uneven_finding(measured: Measured, slow: SlowRank | None) -> list[Avoidable]:
    """Ranks that take turns at being last: for the size of their batches where that is seen."""
    sizes, spread = batch_elements(measured), measured.spread_ratio
    uneven_s = measured.uneven_s.get(measured.own_arm, {})
    if spread is None or len(uneven_s) < 2:
        return []
    ratios = [seconds / measured.step_s("baseline") for seconds in uneven_s.values()]
    ratio, least = float(np.median(ratios)), min(ratios)
    if slow is not None and slow.longer_ratio >= ratio:
        return []  # else it was slow in these launches by its draw of batches
    if sizes is not None and unevenness(sizes) >= 1.1:  # of many batches; the steps of one arm are few
        ratio = float(np.mean(ratios))
        advice = (
            "group samples of like length, or fix the batch's size: in each step all wait for the largest "
            "batch."
        )
        return [Avoidable("uneven", ratio, advice)]
    if least < max(LEAST, spread) or measured.changed(measured.own_arm):
        return []
    advice = "find out what makes single steps of a rank long: ranks take turns at being last, and all wait."
    return [Avoidable("turns", ratio, advice)]


def _exchange_findings(measured: Measured) -> list[Avoidable]:
    """What other buckets save, and what is left of the exchange then.

    The hook that leaves the exchange out is called for each bucket too: it hides what tiny ones cost.
    """
    best, saved = best_buckets(measured), measured.exchange
    found = _hook_finding(measured)
    if best is not None:
        arm, in_buckets = best
        advice = f"bucket_cap_mb={arm.partition('_')[2]}."
        found.append(Avoidable("buckets", in_buckets, advice, {"arm": arm}))
    if saved is not None and saved.is_certain and not measured.changed("no_exchange"):
        rest = saved.ratio - sum(finding.ratio for finding in found)
        found.append(Avoidable("exchange", rest, _fewer_bytes(measured)))
    return found


def _hook_finding(measured: Measured) -> list[Avoidable]:
    """Where the script's own hook takes longer than plain all-reduce."""
    own = measured.facts["baseline"][0].get("script_hook")
    plain = measured.saved_once("plain_all_reduce")
    if own is None or plain is None or not plain.is_certain or plain.ratio < LEAST:
        return []
    advice = (
        f"leave out the communication hook {own}: with plain all-reduce a step is {plain.ratio:.0%} shorter."
    )
    return [Avoidable("hook", plain.ratio, advice, {"hook": own})]


def _fewer_bytes(measured: Measured) -> str:
    """What makes the exchange smaller."""
    facts, (backward, _, _, updates, *_) = measured.facts["baseline"][0], measured.signatures["baseline"]
    # A closure that an optimizer evaluates several times needs each exchange.
    has_closure = measured.facts["no_exchange"][0].get("has_closure")
    is_one = facts.get("num_models", 1) == 1  # of several each pass may exchange its own
    if updates == 1 < backward and is_one and not has_closure and not facts.get("skips_exchange"):
        return (
            f"put all but the last of a step's {backward} backward passes in model.no_sync(): each of them "
            "exchanges all gradients."
        )
    if (often := reduces_a_step([facts])) >= 3:
        return f"DistributedDataParallel, or one all_reduce for many gradients: it calls {often:.0f} a step."
    buffers_mb, gradients_mb = facts.get("buffer_bytes", 0) / 1e6, sum(facts.get("bucket_bytes") or []) / 1e6
    if buffers_mb > gradients_mb:
        option = facts.get("buffers_option", "broadcast_buffers")
        return (
            f"{option}=False in DDP, if each rank's buffers stay the same without it: it sends "
            f"{buffers_mb:.3g} MB of them before each forward pass, and {gradients_mb:.3g} MB of gradients "
            "after it."
        )
    ways = ["a larger batch on each rank", f"{'longer ' if backward > updates else ''}gradient accumulation"]
    ways += [] if "script_hook" in facts else ["a bf16 hook"]
    return f"{', '.join(ways[:-1])} or {ways[-1]}: fewer bytes a sample."


def bucket_runs(measured: Measured) -> list[tuple[str, Saved]]:
    """Arms with other buckets than the baseline's, and what each saves."""
    usual = measured.facts["baseline"][0].get("bucket_bytes")
    runs = []
    for arm in BUCKETS:
        saved = measured.saved_once(arm)
        if saved is not None and measured.facts[arm][0].get("bucket_bytes") != usual:
            runs.append((arm, saved))
    return runs


def best_buckets(measured: Measured) -> tuple[str, float] | None:
    """The arm with other buckets that saves most for sure."""
    sure = [(arm, saved.ratio) for arm, saved in bucket_runs(measured) if saved.is_certain]
    return max(sure, key=lambda run: run[1], default=None)


def to_confirm(measured: Measured) -> list[str]:
    """Arms that ran once and were so much faster that another run is worth its time."""
    runs = bucket_runs(measured)
    runs += [(arm, saved) for arm in SETTINGS if (saved := measured.saved_once(arm)) is not None]
    runs = [(arm, saved) for arm, saved in runs if saved.ratio >= LEAST and len(measured.steps_s[arm]) == 1]
    best = max((run for run in runs if run[0] in BUCKETS), key=lambda run: run[1].ratio, default=None)
    return [arm for arm, _ in runs if arm in SETTINGS or (best is not None and arm == best[0])]


def _input_finding(measured: Measured, slow: SlowRank | None) -> list[Avoidable]:
    saved, made = saved_by_cached_input(measured), batch_making(measured)
    by_phases = saved is None and "cached_input" in measured.steps_s  # its steps or batches became others
    if by_phases:
        least = min(
            (seconds["input"] / max(sum(seconds.values()), 1e-9) for seconds in shares(measured)), default=0.0
        )
        saved = Saved(least, True)
    if saved is None or not saved.is_certain:
        return []
    if slow is not None and slow.phase == "input" and slow.longer_ratio > 0.5 * saved.ratio:
        return []  # it is one rank's input
    is_blocked = made is not None and made.is_blocked
    if 2 * (starts := loader_starts(measured)).abandoned > starts.num_steps:
        advice = "keep the loader's iterator, as a `for` over the loader does: it starts anew in each step."
        return [Avoidable("input", saved.ratio, advice, {"waits": is_blocked}, by_phases)]
    advice = "more loader workers, or data that need less work for each batch."
    if is_blocked:
        advice = "data on faster or nearer storage, or more loader workers: making a batch mostly waits."
    elif made is not None and made.is_queued:
        advice = (
            "more cores, or data that need less work for each batch: loader workers wait for a processor."
        )
    return [Avoidable("input", saved.ratio, advice, {"waits": is_blocked}, by_phases)]


def _threads_finding(measured: Measured) -> list[Avoidable]:
    saved = measured.saved_once("threads")
    if saved is None or not saved.is_certain:
        return []
    base, fitted = measured.facts["baseline"][0], measured.facts["threads"][0]
    advice = (
        f"set OMP_NUM_THREADS or torch.set_num_threads to {fitted['threads']}: {base['threads']} threads "
        f"a rank share {base['cores']} cores; with {fitted['threads']} a step is {saved.ratio:.0%} shorter."
    )
    return [Avoidable("threads", saved.ratio, advice)]


def _cores_finding(measured: Measured) -> list[Avoidable]:
    """Ranks that are bound to fewer cores than they are, where their host has more."""
    ranks = measured.facts["baseline"]
    if measured.device != "cpu":
        return []
    # Of the waiting for a batch, or for other ranks, nothing is saved.
    computes = min(
        (
            1 - (seconds["input"] + seconds["exchange"]) / max(sum(seconds.values()), 1e-9)
            for seconds in shares(measured)
        ),
        default=1.0,
    )
    found = []
    for host in sorted({rank.get("host", "") for rank in ranks}):
        here = [rank for rank in ranks if rank.get("host", "") == host]
        cores = set().union(*(rank.get("affinity", []) for rank in here))
        if 0 < len(cores) < min(len(here), here[0].get("host_cores", 0)):
            advice = (
                f"give each rank a core of its own: {len(here)} ranks may use {len(cores)} of the "
                f"{here[0]['host_cores']} cores of {host} (taskset, --cpu-bind, allocation)."
            )
            ratio = (1 - len(cores) / len(here)) * computes
            found.append(Avoidable("cores", ratio, advice, {"host": host}, True))
    return found


def _debugging_finding(measured: Measured) -> list[Avoidable]:
    saved = measured.saved_once("no_debugging")
    if saved is None or not saved.is_certain:
        return []
    names = measured.facts["baseline"][0]["debugging"]
    return [Avoidable("debugging", saved.ratio, f"turn off {' and '.join(names)}.", {"names": names})]


def _phase_findings(measured: Measured) -> list[Avoidable]:
    """Of phases that no arm takes away: what every rank spends in them."""
    by_rank = shares(measured)
    if not by_rank:
        return []

    def least(name: str) -> float:
        return min(seconds.get(name, 0.0) / max(sum(seconds.values()), 1e-9) for seconds in by_rank)

    before = "" if measured.has_loader else f"find out what takes the {BEFORE}: input, logging or forward."
    return [
        *([Avoidable("before_backward", least("forward"), before, {}, True)] if before else []),
        Avoidable(
            "gradients", least("gradients"),
            "see what runs between backward and the optimizer (clipping, logging of gradients).", {}, True,
        ),
        Avoidable("optimizer", least("update"), "a fused optimizer, with its state on the device.", {}, True),
        Avoidable(
            "collectives", least("collective"),
            "call the script's own collectives (metrics, statistics of batches) less often: every step waits "
            "in them.", {}, True,
        ),
        Avoidable(
            "rest", least("rest"), "see what runs between the phases (logging, metrics, copies).", {}, True
        ),
    ]  # fmt: skip


def other_steps(measured: Measured) -> tuple[float, float, str]:
    """What steps of another kind add, the least and the median over launches, and the phase it is in."""
    ratios = [ratio for ratio, _ in measured.left_out] or [0.0]
    phases = measured.left_out[-1][1] if measured.left_out else {}
    most = max(("evaluation", "save"), key=lambda kind: phases.get(kind, 0.0))
    is_known = phases.get(most, 0.0) > 0.5 * ratios[-1]
    return min(ratios), float(np.median(ratios)), most if is_known else "other work"


def _other_steps_finding(measured: Measured) -> list[Avoidable]:
    least, ratio, what = other_steps(measured)
    if measured.spread_ratio is None or least <= measured.spread_ratio:
        return []
    if what in ("evaluation", "save"):
        (one,) = [one for one in rare(measured) if one.kind == what]
        do = "evaluate" if what == "evaluation" else "save"
        advice = f"{do} less often."
        if one.is_waited_for and what == "evaluation":
            advice = f"evaluate a part on each rank, or less often: {one.text}."
        elif what == "save":
            advice = f"save less often, in the background, or on all ranks: {one.text}."
        kind = "evaluation" if what == "evaluation" else "saves"
        return [Avoidable(kind, ratio, advice, {"ranks": list(one.ranks)})]
    return [Avoidable("other_steps", ratio, "see what the script does in some steps only (epochs, logging).")]


def _work_finding(measured: Measured) -> list[Avoidable]:
    """Ranks that do one another's work."""
    world_size = len(measured.facts["baseline"])
    if same_samples(measured):
        advice = f"a DistributedSampler: {world_size} ranks draw the same samples, and do the work of one."
        return [Avoidable("no_sampler", 1 - 1 / world_size, advice)]
    often = [one for one in rare(measured) if one.every < OFTEN_STEPS]
    kinds = {"evaluation": ("evaluation", "evaluate"), "save": ("saves", "save")}
    return [
        Avoidable(
            kinds[one.kind][0], one.ratio, f"{kinds[one.kind][1]} less often: every step does.", {}, True
        )
        for one in often
    ]


def long_steps_advice(measured: Measured) -> str:
    """What to look for in steps over twice the usual time."""
    if measured.long_steps_found()[2] > MOSTLY_INPUT:
        started = loader_starts(measured)
        if started.count > 1 and started.starts_workers:
            return (
                "keep the loader's workers (persistent_workers=True) or one loader: in "
                f"{started.num_steps} steps it starts anew {started.count} times."
            )
        return "more loader workers, or faster storage: some batches come late."
    return "see what some steps do that others do not: a loader that starts anew, a checkpoint, logging."


def _long_steps_finding(measured: Measured) -> list[Avoidable]:
    """Where they add much in every unchanged run: the other findings are of medians, which leave them out."""
    return [Avoidable("long_steps", measured.long_steps_found()[0], long_steps_advice(measured))]


def idle_ratio(measured: Measured, traced: Traced) -> float:
    """Of a baseline's step, in which there is no profiler."""
    return max(0.0, 1 - traced.busy_s / measured.step_s("baseline"))


def _trace_findings(measured: Measured, traced: Traced | None, waits_ratio: float) -> list[Avoidable]:
    """The GPU's idle time, less what it waits for by other findings."""
    if traced is None:
        return []
    idle = idle_ratio(measured, traced) - waits_ratio
    if traced.syncs_a_step >= 1 and traced.sync_ratio >= LEAST_UNPAIRED["idle"]:
        advice = (
            f"call .item(), .cpu() and print of tensors less often: the host waits for the GPU "
            f"{traced.syncs_a_step:.0f} times a step."
        )
    else:
        advice = "CUDA graphs, torch.compile or a larger batch: the GPU waits for the host to launch kernels."
    return [Avoidable("idle", idle, advice, {"syncs": traced.syncs_a_step}, True)]

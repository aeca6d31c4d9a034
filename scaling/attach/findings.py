"""What takes a part of an attached script's step that need not be, the largest first."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from scaling.analysis.explain_limits import AVOIDABLE_SHARE
from scaling.analysis.findings import Finding
from scaling.attach import facts
from scaling.attach.inside.arms import ARMS, BUCKETS, PROCESS
from scaling.attach.measured import Measured, Saved
from scaling.attach.ranks import SlowRank, batch_elements, shares, slow_rank, unevenness
from scaling.attach.trace import Traced

LEAST = AVOIDABLE_SHARE  # of a step: less is no finding
# Of what no arm takes away, more than in a study: nothing here tells work from what can be avoided.
LEAST_UNPAIRED = {"before_backward": 0.6, "gradients": 0.3, "optimizer": 0.3, "rest": 0.3, "idle": 0.2}
WAITED_FOR = ("input", "rest")  # findings in which a GPU is idle, and not for want of launched kernels
OFTEN_STEPS = 1.5  # what is done once in so many steps is a part of the usual one
MOSTLY_INPUT = 0.4  # of what long steps add: so much in their input is said
# Findings that name what is done: before phases of which only the time is known.
CAUSES = ("not_exchanged", "no_sampler", "saves", "evaluation")
KINDS_OF_RARE = {"evaluation": "evaluation", "save": "saves"}
# What the advice of an arm's finding is given of the ranks without it and with it.
FACTS = ("threads", "cores", "debugging", "script_hook")


def _found(kind: str, ratio: float, *, is_once: bool = False, **values: Any) -> Finding:
    return Finding(kind, (), {"ratio": ratio, "is_once": is_once, **values})


def findings(measured: Measured, traced: Traced | None = None) -> list[Finding]:
    if (spread := measured.spread_ratio) is None:
        return []
    slow = slow_rank(measured)
    candidates = [
        *_of_slow_ranks(measured, slow, spread), *_of_input(measured, slow), *_of_exchange(measured),
        *_of_arms(measured), *_of_cores(measured), *_of_phases(measured),
        *_of_other_steps(measured, spread), *_of_work(measured),
    ]  # fmt: skip
    claimed = _claimed(candidates, spread)
    waits = sum(finding.values["ratio"] for finding in claimed if finding.kind in WAITED_FOR)
    claimed += _claimed(_of_trace(measured, traced, waits), spread)
    # Where threads share cores, the exchange waits for them too: it is to be measured again without that.
    most = min((finding.values["ratio"] for finding in claimed if finding.kind == "threads"), default=1.0)

    def place(one: Finding) -> tuple[bool, float, bool]:
        ratio, is_exchange = one.values["ratio"], one.kind == "exchange"
        return one.kind not in CAUSES, -min(ratio, most) if is_exchange else -ratio, is_exchange

    claimed.sort(key=place)
    first = {found.kind: found for found in reversed(claimed)}  # phases and an arm may say the same
    return [found for found in claimed if first[found.kind] is found]


def _claimed(candidates: Sequence[Finding], spread: float) -> list[Finding]:
    large = [one for one in candidates if one.values["ratio"] >= LEAST_UNPAIRED.get(one.kind, LEAST)]
    return [one for one in large if one.values["ratio"] > spread or one.kind in (*CAUSES, "uneven")]


def _of_slow_ranks(measured: Measured, slow: SlowRank | None, spread: float) -> Iterator[Finding]:
    if slow is not None:
        kind = "uneven" if slow.has_larger_batch else "slow_rank"
        yield _found(kind, slow.longer_ratio, ranks=list(slow.ranks), phase=slow.phase)
    sizes, uneven_s = batch_elements(measured), measured.uneven_s.get(measured.own_arm, {})
    if len(uneven_s) < 2:
        return
    ratios = [seconds / measured.usual_s for seconds in uneven_s.values()]
    ratio = float(np.median(ratios))
    if slow is not None and slow.longer_ratio >= ratio:
        return  # else it was slow in these launches by its draw of batches
    if sizes is not None and unevenness(sizes) >= 1.1:  # of many batches; the steps of one arm are few
        yield _found("uneven", float(np.mean(ratios)), ranks=[])
    elif min(ratios) >= max(LEAST, spread) and not measured.changed(measured.own_arm):
        yield _found("turns", ratio)


def _of_exchange(measured: Measured) -> Iterator[Finding]:
    """What other buckets save, and what is left of the exchange: its hook is called for each bucket too."""
    best, (saved, hook) = best_buckets(measured), map(measured.saved, ("no_exchange", "plain_all_reduce"))
    others = hook.ratio if hook is not None and hook.is_certain and hook.ratio >= LEAST else 0.0
    if best is not None:
        others += best[1]
        yield _found("buckets", best[1], arm=best[0], size=best[0].partition("_")[2])
    if saved is not None and saved.is_certain and not measured.changed("no_exchange"):
        yield _found("exchange", saved.ratio - others, **_fewer_bytes(measured))


def _fewer_bytes(measured: Measured) -> dict[str, Any]:
    first, (backward, _, _, updates, *_) = measured.ranks[0], measured.signatures["baseline"]
    hooks = [name for name, arm in ARMS.items() if arm.hook not in ("all_reduce", "local")]
    tried = [(ARMS[name].said, saved) for name in hooks if (saved := measured.saved(name))]
    smaller = max(tried, key=lambda one: one[1].ratio, default=None)
    buffers_mb, gradients_mb = first.get("buffer_bytes", 0) / 1e6, sum(first.get("bucket_bytes") or []) / 1e6
    return {
        "passes": backward, "is_without_no_sync": facts.without_no_sync(measured),
        "calls": often if (often := facts.reduces_a_step(first)) >= 3 else None,
        "buffers_mb": buffers_mb if buffers_mb > gradients_mb else None, "gradients_mb": gradients_mb,
        "option": first.get("buffers_option", "broadcast_buffers"), "accumulates": backward > updates,
        "smaller": smaller and (smaller[0], smaller[1].change),
        "has_hook": bool(first.keys() & {"script_hook", "without_ddp"})
        or (smaller is not None and smaller[1].ratio < LEAST / 2),
    }  # fmt: skip


def bucket_runs(measured: Measured) -> list[tuple[str, Saved]]:
    usual = measured.ranks[0].get("bucket_bytes")
    runs = [(arm, saved) for arm in BUCKETS if (saved := measured.saved(arm)) is not None]
    return [(arm, saved) for arm, saved in runs if measured.facts[arm][0].get("bucket_bytes") != usual]


def best_buckets(measured: Measured) -> tuple[str, float] | None:
    sure = [(arm, saved.ratio) for arm, saved in bucket_runs(measured) if saved.is_certain]
    return max(sure, key=lambda run: run[1], default=None)


def to_confirm(measured: Measured, *, is_switched: bool = False) -> list[str]:
    """Arms that ran once and were so much faster that another run is worth its time; of buckets the best."""
    runs = dict(bucket_runs(measured)) if not is_switched else {}
    runs = dict([max(runs.items(), key=lambda run: run[1].ratio)]) if runs else {}
    for name, arm in ARMS.items():
        if arm.finding and (arm.when != PROCESS) == is_switched and (saved := measured.saved(name)):
            runs[name] = saved
    return [arm for arm, saved in runs.items() if saved.ratio >= LEAST and len(measured.steps_s[arm]) == 1]


def _of_input(measured: Measured, slow: SlowRank | None) -> Iterator[Finding]:
    saved, made = facts.saved_by_cached_input(measured), facts.batch_making(measured)
    by_phases = saved is None and "cached_input" in measured.steps_s  # its steps or batches became others
    if by_phases:
        saved = Saved(min(_parts(measured, "input")), True)
    if saved is None or not saved.is_certain:
        return
    if slow is not None and slow.phase == "input" and slow.longer_ratio > 0.5 * saved.ratio:
        return  # it is one rank's input
    starts = facts.loader_starts(measured)
    yield _found(
        "input", saved.ratio, is_once=by_phases, waits=made.get("waits", False),
        is_queued=made.get("is_queued", False), restarts=2 * starts["abandoned"] > starts["steps"],
    )  # fmt: skip


def _of_arms(measured: Measured) -> Iterator[Finding]:
    for name, arm in ARMS.items():
        saved = measured.saved(name) if arm.finding else None
        if saved is not None and saved.is_certain:
            both = [measured.ranks[0], measured.facts[name][0]]
            usual, own = ({key: rank.get(key) for key in FACTS} for rank in both)
            yield _found(arm.finding, saved.ratio, usual=usual, own=own)


def _of_cores(measured: Measured) -> Iterator[Finding]:
    ranks = measured.ranks if measured.device == "cpu" else []
    # Of the waiting for a batch, or for other ranks, nothing is saved.
    computes = 1 - max(_parts(measured, "input", "exchange"))
    for host, here, cores in facts.hosts(ranks):
        own, ratio = here[0].get("host_cores", 0), (1 - cores / len(here)) * computes
        if 0 < cores < min(len(here), own):
            yield _found(
                "cores", ratio, is_once=True, host=host, ranks=len(here), cores=cores, host_cores=own
            )


def _parts(measured: Measured, *phases: str) -> list[float]:
    by_rank = shares(measured) or [{}]
    return [sum(of.get(name, 0.0) for name in phases) / max(sum(of.values()), 1e-9) for of in by_rank]


def _of_phases(measured: Measured) -> Iterator[Finding]:
    kinds = {"gradients": "gradients", "optimizer": "update", "collectives": "collective", "rest": "rest"}
    if not measured.has_loader:
        kinds["before_backward"] = "forward"
    for kind, phase in kinds.items():
        yield _found(kind, min(_parts(measured, phase)), is_once=True)


def other_steps(measured: Measured) -> tuple[float, float]:
    ratios = measured.left_out or [0.0]
    return min(ratios), float(np.median(ratios))


def _of_other_steps(measured: Measured, spread: float) -> Iterator[Finding]:
    """Where they add much in every unchanged run: the other findings are of medians, which leave them out."""
    least, ratio = other_steps(measured)
    one = next((one for one in facts.rare(measured) if one.is_most), None)
    if least > spread and one is not None:
        yield _found(KINDS_OF_RARE[one.kind], ratio, ranks=list(one.ranks), rare=asdict(one))
    elif least > spread:
        yield _found("other_steps", ratio)
    yield long_steps_finding(measured)


def _of_work(measured: Measured) -> Iterator[Finding]:
    world_size = len(measured.ranks)
    for kind, is_so in (("not_exchanged", facts.exchanges_nothing), ("no_sampler", facts.same_samples)):
        if is_so(measured):
            yield _found(kind, 1 - 1 / world_size, world_size=world_size)
    for one in facts.rare(measured):
        if one.every < OFTEN_STEPS:
            yield _found(KINDS_OF_RARE[one.kind], one.ratio, is_once=True, rare=None)


def long_steps_finding(measured: Measured) -> Finding:
    least, _, in_input = measured.long_steps_found()
    return _found("long_steps", least, in_input=in_input > MOSTLY_INPUT, **facts.loader_starts(measured))


def idle_ratio(measured: Measured, traced: Traced) -> float:
    """Of a baseline's step, in which there is no profiler."""
    return max(0.0, 1 - traced.busy_s / measured.usual_s)


def _of_trace(measured: Measured, traced: Traced | None, waits_ratio: float) -> list[Finding]:
    """The GPU's idle time, less what it waits for by other findings."""
    if traced is None:
        return []
    idle = idle_ratio(measured, traced) - waits_ratio
    waits = traced.syncs_a_step >= 1 and traced.sync_ratio >= LEAST_UNPAIRED["idle"]
    return [_found("idle", idle, is_once=True, syncs=traced.syncs_a_step, waits=waits)]

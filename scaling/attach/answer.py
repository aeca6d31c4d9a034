"""What limits an attached script, from the differences of its runs; nothing below the A/A spread."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from scaling.attach.arms import BUCKETS
from scaling.attach.measured import Measured, Saved
from scaling.attach.trace import Traced

SHOWN = (
    ("input", "input"),
    ("forward", "forward"),
    ("backward", "backward"),
    ("update", "optimizer"),
    ("evaluation", "evaluation"),
    ("collective", "its own collectives"),
)
"""Phases with the words for them."""

OFTEN = ("input", "forward", "backward", "update")
"""Said even where they take nothing."""

LEAST = {
    "slow_rank": 0.02, "uneven": 0.05, "input": 0.05, "exchange": 0.10, "buckets": 0.10, "threads": 0.10,
    "optimizer": 0.30, "evaluation": 0.10, "collectives": 0.10, "rest": 0.30, "other_steps": 0.10,
    "idle": 0.20,
}  # fmt: skip
"""Avoidable -> the least share of a step with which it is one."""

BLOCKED = 0.5
"""Making a batch that computes for less of its time waits: for storage, a network, a sleep."""


@dataclass(frozen=True)
class Avoidable:
    """Something that takes a part of a step that need not be.

    Attributes:
        kind: of `LEAST`.
        ratio: of a step, at most to be gained.
        advice: what to try.
        values: rank, phase and such, for programs.
        is_once: seen in one run, or in phases alone: no verdict.
    """

    kind: str
    ratio: float
    advice: str
    values: dict[str, Any] = field(default_factory=dict)
    is_once: bool = False


@dataclass(frozen=True)
class SlowRank:
    """The ranks that the others wait for, how much longer they take by themselves, and in which phase.

    Attributes:
        batch_ratio: their elements of a batch, to those of the others.
    """

    ranks: tuple[int, ...]
    longer_ratio: float
    phase: str
    batch_ratio: float = 1.0

    @property
    def name(self) -> str:
        """As in a sentence."""
        return f"rank{'s' * (len(self.ranks) > 1)} {', '.join(map(str, self.ranks))}"


def answer(measured: Measured, traced: Traced | None = None) -> list[str]:
    """A few lines: where the time goes, what would change it, and what to try next."""
    if "baseline" not in measured.steps_s:
        return [f"Not measured, because {measured.reasons.get('baseline', 'the baseline did not run')}."]
    spread = measured.spread_ratio
    floor = (
        "no A/A pair: nothing is claimed" if spread is None else f"A/A spread {spread:.1%}, nothing below it"
    )
    found = findings(measured, traced)
    lines = [
        f"A step takes {_ms(measured.step_s('baseline'))} ({floor}{_marks_text(measured)}).",
        _where(measured),
        _slow_text(measured, slow_rank(measured)),
        _exchange_text(measured),
        _input_text(measured),
        _buckets_text(measured),
        _efficiency_text(measured),
        _trace_text(measured, traced),
        _other_steps_text(measured),
        _left_out_text(measured),
        f"Next: {found[0].advice if found else NOTHING}",
    ]
    return [line for line in lines if line]


NOTHING = "nothing stands out; profile the computation itself, which the arms leave as it is."


def findings(measured: Measured, traced: Traced | None = None) -> list[Avoidable]:
    """All of them, the largest first: none below the A/A spread, and none without an A/A pair."""
    spread = measured.spread_ratio
    if spread is None:
        return []
    slow = slow_rank(measured)
    found = [
        *_slow_finding(slow),
        *_uneven_finding(measured, slow),
        *_input_finding(measured, slow),
        *_exchange_findings(measured),
        *_threads_finding(measured),
        *_phase_findings(measured),
        *_other_steps_finding(measured),
        *_trace_findings(measured, traced),
    ]
    claimed = [one for one in found if one.ratio >= LEAST[one.kind] and one.ratio > spread]
    return sorted(claimed, key=lambda one: -one.ratio)


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.3g} ms"


def _missing(measured: Measured, what: str, arm: str) -> str:
    reason = measured.reasons.get(arm, f"the arm {arm} was not asked for")
    return f"{what}: not measured, because {reason}."


def _marks_text(measured: Measured) -> str:
    """What the baseline's marks cost: by their own clock, and against runs with a clock at exit alone."""
    own, more = measured.marks_ratio
    text = f"; its marks take {own:.2%} of it"
    if "clock" not in measured.steps_s:
        return text
    shown = "no more shows" if more is None else f"it is {more:.1%} longer"
    return f"{text}, and {shown} against runs with a clock at exit alone"


def shares(measured: Measured) -> list[dict[str, float]]:
    """Of each rank, the seconds of a baseline step by phase, exchange and rest included; empty if unknown."""
    by_rank, base = measured.phases_of(measured.phase_source), measured.steps_s["baseline"]
    if not by_rank or "no_exchange" not in measured.steps_s:
        return []
    alone = measured.steps_s["no_exchange"]
    result = []
    for rank, phases in enumerate(by_rank):
        step_s = float(np.median([ranks[rank] for ranks in base.values()]))
        alone_s = float(np.median([ranks[rank] for ranks in alone.values()]))
        seconds = dict(phases)
        seconds["exchange"] = max(step_s - alone_s, 0.0)
        seconds["rest"] = max(step_s - sum(seconds.values()), 0.0)
        result.append(seconds)
    return result


def _where(measured: Measured) -> str:
    by_rank = shares(measured)
    if not by_rank:
        return _missing(measured, "Where it goes", "no_exchange")
    parts = []
    for rank, seconds in enumerate(by_rank):
        total_s = sum(seconds.values())
        words = [(word, seconds[name]) for name, word in SHOWN if name in OFTEN or seconds.get(name)]
        said = [f"{word} {value / total_s:.0%}" for word, value in [*words, ("rest", seconds["rest"])]]
        # A difference of two arms; the others are times of one.
        exchange = (
            f"{seconds['exchange'] / total_s:.0%}" if _waits(measured, rank) else "not above the spread"
        )
        said.append(f"exchange and waiting {exchange}")
        parts.append(f"rank {rank}: {', '.join(said)}")
    return f"Where it goes: {'; '.join(parts)}."


def _waits(measured: Measured, rank: int) -> bool:
    """Whether a rank's step is shorter without exchange, in each of several launches above the spread."""
    base, alone, spread = (
        measured.steps_s["baseline"], measured.steps_s["no_exchange"], measured.spread_ratio,
    )  # fmt: skip
    both = base.keys() & alone.keys()
    if spread is None or len(both) < 2:
        return False
    return min(1 - alone[launch][rank] / base[launch][rank] for launch in both) > spread


def slow_rank(measured: Measured) -> SlowRank | None:
    """The ranks that are slower than the others without exchange in every launch, above the A/A spread.

    They are those above the largest gap, fewer than half of all, or one of two.
    """
    launches, spread = measured.own_s.get("no_exchange", {}), measured.spread_ratio
    if spread is None or len(launches) < 2 or len(next(iter(launches.values()))) < 2:
        return None
    groups = {_above_gap(ranks) for ranks in launches.values()}
    if len(groups) > 1 or not (group := groups.pop()):
        return None
    base_s = measured.step_s("baseline")
    longer = [
        (min(ranks[at] for at in group) - max(s for at, s in enumerate(ranks) if at not in group)) / base_s
        for ranks in launches.values()
    ]
    if min(longer) <= max(spread, LEAST["slow_rank"]):
        return None
    phases, ratio = measured.phases_of(measured.phase_source), float(np.median(longer))
    excess: dict[str, float] = {}
    if phases:
        mine = [seconds for at, seconds in enumerate(phases) if at in group]
        others = [seconds for at, seconds in enumerate(phases) if at not in group]
        excess = {
            word: float(np.median([one[name] for one in mine]) - np.median([one[name] for one in others]))
            for name, word in SHOWN
            if name != "collective"
        }
        excess["rest of the step"] = ratio * base_s - sum(excess.values())
    phase = max(excess, key=lambda word: excess[word], default="step")
    return SlowRank(group, ratio, phase, _batch_ratio(measured, group))


def _above_gap(ranks: Sequence[float]) -> tuple[int, ...]:
    order = np.argsort(ranks)
    gaps = np.diff(np.asarray(ranks)[order])
    cut = int(np.argmax(gaps)) + 1
    slow = tuple(sorted(int(at) for at in order[cut:]))
    return slow if len(slow) <= len(ranks) / 2 else ()


def _elements(measured: Measured) -> np.ndarray[Any, Any] | None:
    """Elements of each rank's batches, [rank][batch]; None where they were not seen."""
    drawn = [[size for _, size in rank["batches"]] for rank in measured.facts.get("no_exchange", [])]
    shortest = min(map(len, drawn), default=0)
    if not shortest:
        return None
    return np.array([rank[:shortest] for rank in drawn], dtype=float)


def _batch_ratio(measured: Measured, group: Sequence[int]) -> float:
    sizes = _elements(measured)
    if sizes is None:
        return 1.0
    mine = [at in group for at in range(len(sizes))]
    others = [not one for one in mine]
    return float(sizes[mine].mean() / max(sizes[others].mean(), 1e-9))


def _slow_text(measured: Measured, slow: SlowRank | None) -> str:
    if "no_exchange" not in measured.steps_s:
        return _missing(measured, "Slow rank", "no_exchange")
    if slow is None:
        return "Slow rank: none above the A/A spread."
    batch = f"; its batches have {slow.batch_ratio:.2g} times the elements" if _is_larger(slow) else ""
    return (
        f"Slow rank: {slow.name}, in its {slow.phase}; alone it takes {slow.longer_ratio:.0%} of a step "
        f"more than the others{batch}."
    )


def _is_larger(slow: SlowRank) -> bool:
    return slow.batch_ratio > 1.1


def _slow_finding(slow: SlowRank | None) -> list[Avoidable]:
    if slow is None:
        return []
    values = {"ranks": list(slow.ranks), "phase": slow.phase}
    if _is_larger(slow):
        advice = f"give all ranks batches of one size; those of {slow.name} are larger."
        return [Avoidable("uneven", slow.longer_ratio, advice, values)]
    advice = f"find out what {slow.name} does in its {slow.phase} that others do not."
    return [Avoidable("slow_rank", slow.longer_ratio, advice, values)]


def _uneven_finding(measured: Measured, slow: SlowRank | None) -> list[Avoidable]:
    """Ranks that take turns at having the largest batch."""
    sizes, spread = _elements(measured), measured.spread_ratio
    if sizes is None or spread is None or slow is not None or len(measured.uneven_s) < 2:
        return []
    if float((sizes.max(axis=0) / np.maximum(sizes.mean(axis=0), 1e-9)).mean()) < 1.1:
        return []
    ratios = [seconds / measured.step_s("baseline") for seconds in measured.uneven_s.values()]
    if min(ratios) <= spread:
        return []
    advice = (
        "group samples of like length, or fix the batch's size: in each step all wait for the largest batch."
    )
    return [Avoidable("uneven", float(np.median(ratios)), advice)]


def _exchange_text(measured: Measured) -> str:
    saved = measured.saved("baseline", "no_exchange")
    if saved is None:
        return _missing(measured, "Without the exchange", "no_exchange")
    if measured.changed("no_exchange"):
        return "Without the exchange: not measured, because the script's step became another one."
    control = measured.saved("baseline", "hook_control")
    bound = (
        "its hook's cost is not known"
        if control is None
        else f"its hook costs {-control.ratio:.1%}"
        if -control.ratio > (measured.spread_ratio or 0.0)
        else "its hook costs less than the A/A spread"
    )
    if not saved.is_certain:
        return f"Without the exchange: no gain above the A/A spread ({bound})."
    return f"Without the exchange a step would be {saved.ratio:.0%} shorter ({bound})."


def _exchange_findings(measured: Measured) -> list[Avoidable]:
    saved = measured.saved("baseline", "no_exchange")
    if saved is None or not saved.is_certain or measured.changed("no_exchange"):
        return []
    uneven = float(np.median(list(measured.uneven_s.values()) or [0.0])) / measured.step_s("baseline")
    sizes = _elements(measured)
    if sizes is None or float((sizes.max(axis=0) / np.maximum(sizes.mean(axis=0), 1e-9)).mean()) < 1.1:
        uneven = 0.0
    best = _best_buckets(measured)
    if best is not None and best[1] >= 0.4 * saved.ratio:
        arm, ratio = best
        size = arm.partition("_")[2]
        advice = f"bucket_cap_mb={size}; `--arms aa,{arm}` measures it in every launch first."
        return [Avoidable("buckets", ratio, advice, {"arm": arm}, is_once=True)]
    advice = "a larger batch on each rank, gradient accumulation or a bf16 hook: fewer bytes a sample."
    return [Avoidable("exchange", saved.ratio - uneven, advice)]


def _bucket_runs(measured: Measured) -> list[tuple[str, Saved]]:
    """Arms whose buckets are others than the baseline's, with what each saves."""
    usual = measured.facts["baseline"][0].get("bucket_bytes")
    runs = []
    for arm in BUCKETS:
        saved = measured.saved_once(arm)
        if saved is not None and measured.facts[arm][0].get("bucket_bytes") != usual:
            runs.append((arm, saved))
    return runs


def _best_buckets(measured: Measured) -> tuple[str, float] | None:
    """The arm with other buckets that saves most, if that is more than noise.

    Arms for which DDP made the same buckets repeat each other: all have to show it, and the least counts.
    """
    same: dict[tuple[int, ...], list[tuple[str, Saved]]] = {}
    for arm, saved in _bucket_runs(measured):
        same.setdefault(tuple(measured.facts[arm][0].get("bucket_bytes") or ()), []).append((arm, saved))
    runs = [
        (arms[0][0], min(saved.ratio for _, saved in arms))
        for arms in same.values()
        if all(saved.is_certain for _, saved in arms)
    ]
    return max(runs, key=lambda run: run[1], default=None)


def _buckets_text(measured: Measured) -> str:
    runs = _bucket_runs(measured)
    if not runs:
        arm = next((arm for arm in BUCKETS if arm in measured.reasons), None)
        if arm is not None:
            return _missing(measured, "Other buckets", arm)
        same = any(arm in measured.steps_s for arm in BUCKETS)
        return "Other buckets: not measured, because DDP made the same ones." if same else ""
    count = len(measured.facts["baseline"][0].get("bucket_bytes") or [])
    said = ", ".join(f"{arm.partition('_')[2]} MB {-saved.ratio:+.0%}" for arm, saved in runs)
    verdict = "" if _best_buckets(measured) else ": no gain above the spread"
    return f"Other buckets than its {count}, seen once: {said} of a step's time{verdict}."


def _input_saved(measured: Measured) -> Saved | None:
    return None if measured.changed("cached_input") else measured.saved("baseline", "cached_input")


def _fetched(measured: Measured) -> tuple[float, float] | None:
    """The median seconds that making a batch takes, and the part of it on the processor; None if not seen."""
    fetches = [one for rank in measured.facts.get("no_exchange", []) for one in rank.get("fetches", [])]
    if not fetches:
        return None
    wall_s, cpu_s = (sum(column) for column in zip(*fetches, strict=True))
    return float(np.median([one[0] for one in fetches])), cpu_s / max(wall_s, 1e-9)


def _input_text(measured: Measured) -> str:
    saved = _input_saved(measured)
    if saved is None:
        if "cached_input" in measured.steps_s:
            return "With cached input: not measured, because the script's step became another one."
        return _missing(measured, "With cached input", "cached_input")
    if not saved.is_certain:
        return "With cached input: no gain above the A/A spread."
    text = f"With cached input a step would be {saved.ratio:.0%} shorter"
    made = _fetched(measured)
    if made is None:
        return f"{text}."
    workers = measured.facts["no_exchange"][0].get("loader_workers", 0)
    return (
        f"{text}; making a batch takes {_ms(made[0])}, {made[1]:.0%} of it on the processor, "
        f"with {workers} loader workers a rank."
    )


def _input_finding(measured: Measured, slow: SlowRank | None) -> list[Avoidable]:
    saved, made = _input_saved(measured), _fetched(measured)
    if saved is None or not saved.is_certain:
        return []
    if slow is not None and slow.phase == "input" and slow.longer_ratio > 0.5 * saved.ratio:
        return []  # it is one rank's input
    is_blocked = made is not None and made[1] < BLOCKED
    advice = (
        "data on faster or nearer storage, or more loader workers: making a batch mostly waits."
        if is_blocked
        else "more loader workers, or data that need less work for each batch."
    )
    return [Avoidable("input", saved.ratio, advice, {"waits": is_blocked})]


def _threads_finding(measured: Measured) -> list[Avoidable]:
    saved = measured.saved_once("threads")
    if saved is None or not saved.is_certain:
        return []
    base, fitted = measured.facts["baseline"][0], measured.facts["threads"][0]
    advice = (
        f"set OMP_NUM_THREADS or torch.set_num_threads to {fitted['threads']}: {base['threads']} threads "
        f"a rank share {base['cores']} cores; with {fitted['threads']} a step was {saved.ratio:.0%} shorter, "
        "seen once."
    )
    return [Avoidable("threads", saved.ratio, advice, is_once=True)]


def _phase_findings(measured: Measured) -> list[Avoidable]:
    """Of phases that no arm takes away: what every rank spends in them."""
    by_rank = shares(measured)
    if not by_rank:
        return []

    def least(name: str) -> float:
        return min(seconds.get(name, 0.0) / max(sum(seconds.values()), 1e-9) for seconds in by_rank)

    return [
        Avoidable("optimizer", least("update"), "a fused optimizer, with its state on the device.", {}, True),
        Avoidable("evaluation", least("evaluation"), "evaluate less often: every step does.", {}, True),
        Avoidable(
            "collectives", least("collective"),
            "reduce metrics less often: the script's own collectives stop every step.", {}, True,
        ),
        Avoidable(
            "rest", least("rest"), "see what runs between the phases (logging, metrics, copies).", {}, True
        ),
    ]  # fmt: skip


def _other_steps(measured: Measured) -> tuple[float, float, str]:
    """What steps of another kind add, the least and the median over launches, and the phase it is in."""
    ratios = [ratio for ratio, _ in measured.left_out] or [0.0]
    phases = measured.left_out[-1][1] if measured.left_out else {}
    is_evaluation = phases.get("evaluation", 0.0) > 0.5 * ratios[-1]
    return min(ratios), float(np.median(ratios)), "evaluation" if is_evaluation else "other work"


def _other_steps_text(measured: Measured) -> str:
    least, ratio, what = _other_steps(measured)
    if measured.spread_ratio is None or least <= max(measured.spread_ratio, 0.02):
        return ""
    return (
        f"Steps of another kind ({what}) add {ratio:.0%} to the mean step; the rest is about the usual ones."
    )


def _other_steps_finding(measured: Measured) -> list[Avoidable]:
    least, ratio, what = _other_steps(measured)
    if measured.spread_ratio is None or least <= measured.spread_ratio:
        return []
    if what == "evaluation":
        return [Avoidable("evaluation", ratio, "evaluate less often.")]
    return [Avoidable("other_steps", ratio, "see what the script does in some steps only (epochs, logging).")]


def _efficiency_text(measured: Measured) -> str:
    if "one_worker" not in measured.steps_s:
        return _missing(measured, "Efficiency against one worker", "one_worker")
    if measured.changed("one_worker"):
        one, many = measured.signatures["one_worker"], measured.signatures["baseline"]
        return (
            f"Efficiency: not measured, because with one worker the script makes {one[0]} backward passes "
            f"and {one[1]} batches a step instead of {many[0]} and {many[1]}."
        )
    single, several = (_mean_elements(measured.facts[arm][0]) for arm in ("one_worker", "baseline"))
    if single and several and abs(single / several - 1) > 0.02:
        return (
            f"Efficiency: not measured, because with one worker the script's batch has "
            f"{single / several:.2g} times the elements."
        )
    ratio = measured.step_s("one_worker") / measured.step_s("baseline")
    return f"Efficiency against one worker: {ratio:.0%} for the same batch on each (seen once, no verdict)."


def _mean_elements(rank: dict[str, Any]) -> float:
    sizes = [size for _, size in rank["batches"]]
    return float(np.mean(sizes)) if sizes else 0.0


def _trace_text(measured: Measured, traced: Traced | None) -> str:
    if traced is None:
        is_missed = "trace" in measured.reasons and measured.device == "cuda"
        return _missing(measured, "Trace", "trace") if is_missed else ""
    late = f"; rank {traced.late_rank} comes last to most collectives" if traced.late_rank is not None else ""
    return (
        f"Trace of {traced.num_steps} steps, seen once: NCCL {_ms(traced.nccl_s)} a step, "
        f"{_ms(traced.exposed_s)} of it with no other kernel; the GPU is idle for "
        f"{_idle_ratio(measured, traced):.0%} of a step{late}."
    )


def _idle_ratio(measured: Measured, traced: Traced) -> float:
    """Of a baseline's step, in which there is no profiler."""
    return max(0.0, 1 - traced.busy_s / measured.step_s("baseline"))


def _trace_findings(measured: Measured, traced: Traced | None) -> list[Avoidable]:
    if traced is None:
        return []
    if traced.syncs_a_step >= 1 and traced.sync_ratio >= LEAST["idle"]:
        advice = (
            f"call .item(), .cpu() and print of tensors less often: the host waits for the GPU "
            f"{traced.syncs_a_step:.0f} times a step."
        )
    else:
        advice = "CUDA graphs, torch.compile or a larger batch: the GPU waits for the host to launch kernels."
    return [Avoidable("idle", _idle_ratio(measured, traced), advice, {"syncs": traced.syncs_a_step}, True)]


def _left_out_text(measured: Measured) -> str:
    some = [f"a run of {arm} ({why})" for arm, why in measured.reasons.items() if arm in measured.steps_s]
    return f"Left out: {'; '.join(some)}." if some else ""

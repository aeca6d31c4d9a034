"""What a rank's marks say: which of its steps are the steady ones, and where the time of each went."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from scipy.stats import trim_mean

from scaling.attach.inside.arms import ARMS

Signature = tuple[int, ...]  # of a step: backward calls, batches drawn, evaluations, steps of all optimizers
Span = tuple[str, float, float]  # a phase, its start and its end

RARE = ("evaluation", "save")  # phases of some steps only
USUAL = ("input", "forward", "backward", "update")  # phases of most steps
MOST_PHASES = ("input", "forward", "backward", "gradients", "update", "evaluation", "collective", "save")


@dataclass(frozen=True)
class MarkedStep:
    """A step of one rank, from the end of the optimizer's step before it to the end of its own."""

    number: int
    start_s: float
    step_s: float
    signature: Signature
    # (phase, start, stop) in seconds after its start; but for evaluations, only in arms with phases.
    spans: list[Span]
    waited_s: float = 0.0  # in collectives of the script's own, those in a backward pass included
    arm: str = ""  # that was on
    block: int = 0  # the number of its round; -1 for a step that is left out


def steps_of(rank: dict[str, Any]) -> list[MarkedStep]:
    # The optimizer that makes the script's steps: the one with the fewest; of several, the last. An optimizer
    # within another one (SAM, ZeroRedundancyOptimizer) ends its step before the outer one does.
    anchor = min(range(len(rank["step_s"])), key=lambda at: (len(rank["step_s"][at]), -at))
    marks, counts = rank["step_s"][anchor], rank["counts"][anchor]
    on_host, labels = rank.get("host_s", rank["step_s"])[anchor], rank.get("labels") or []
    steps = []
    for number, edges in enumerate(pairwise(marks)):
        start_s, stop_s = edges
        arm, block = rank.get("arms", [""])[0], 0 if number >= rank["warmup"] - 1 else -1
        if labels:
            arm, block, within = labels[number + 1] if number + 1 < len(labels) else (arm, -1, 0)
            block = block if within else -1  # the first step of a block has something of the arm before
        if arm and ARMS[arm].is_settled:
            start_s, stop_s = on_host[number : number + 2]
        signature = tuple(int(b - a) for a, b in zip(counts[number], counts[number + 1], strict=True))
        inside = [span for span in rank["phases"] if start_s <= span[1] and span[2] <= stop_s]
        waited_s = sum(end_s - begin_s for name, begin_s, end_s in inside if name == "collective")
        spans = _spans(inside, start_s)
        steps.append(MarkedStep(number, start_s, stop_s - start_s, signature, spans, waited_s, arm, block))
    return steps


def _spans(marked: Sequence[Any], start_s: float) -> list[Span]:
    """The forward pass is from the end of input to backward. What runs inside another span is part of that,
    but for the script's own collectives in a backward pass (synchronized batch normalization)."""
    spans: list[Span] = []
    after: list[tuple[float, float]] = []
    began_s = None if any(name == "input" for name, _, _ in marked) else start_s
    has_backward, inside_s = False, start_s
    for name, begin_s, end_s in sorted(marked, key=lambda span: (span[1], -span[2])):
        if begin_s < inside_s:
            continue
        until_now = [] if began_s is None else [*after, (began_s, begin_s)]
        is_forward = name == "backward" or (name == "collective" and not has_backward)
        before = "forward" if is_forward else "gradients" if name == "update" and has_backward else None
        spans += [(before, *part) for part in until_now if before]
        if name in ("backward", "input", "update"):
            has_backward, after, began_s = name == "backward", [], end_s
        elif began_s is not None:
            after, began_s = until_now if has_backward else [], end_s
        spans += _cut(marked, begin_s, end_s) if name == "backward" else [(name, begin_s, end_s)]
        inside_s = end_s
    return [(name, at - start_s, end - start_s) for name, at, end in sorted(spans, key=lambda span: span[1])]


def _cut(marked: Sequence[Any], begin_s: float, end_s: float) -> list[Span]:
    spans: list[Span] = []
    for name, start_s, stop_s in sorted(marked, key=lambda span: span[1]):
        if name == "collective" and begin_s <= start_s and stop_s <= end_s:
            spans += [("backward", begin_s, start_s), (name, start_s, stop_s)]
            begin_s = stop_s
    return [*spans, ("backward", begin_s, end_s)]


def after_warmup(ranks: Sequence[dict[str, Any]]) -> list[list[MarkedStep]]:
    return [steps_of(rank)[rank["warmup"] - 1 :] for rank in ranks]


def blocks_of(steps: Sequence[Sequence[MarkedStep]]) -> dict[str, dict[int, list[list[MarkedStep]]]]:
    """Steady steps by arm and round, [rank][step]; a round without one in an arm's block lacks it."""
    blocks: dict[str, dict[int, list[list[MarkedStep]]]] = {}
    for rank, own in enumerate(steps):
        for step in own:
            blocks.setdefault(step.arm, {}).setdefault(step.block, [[] for _ in steps])[rank].append(step)
    return blocks


def steady(ranks: Sequence[dict[str, Any]]) -> tuple[Signature, list[list[MarkedStep]]]:
    """The most frequent signature, and the steps after the warm-up with it on all ranks, without saves."""
    signature, by_rank, others = _kinds(ranks)
    every = range(min(map(len, by_rank)))
    positions = [at for at in every if at not in others and all(own[at].block >= 0 for own in by_rank)]
    return signature, [[steps[at] for at in positions] for steps in by_rank]


def _kinds(ranks: Sequence[dict[str, Any]]) -> tuple[Signature, list[list[MarkedStep]], set[int]]:
    """The usual signature, all steps after the warm-up, and at which of them a rank makes another one."""
    by_rank = after_warmup(ranks)
    shortest = min(map(len, by_rank))
    counted = Counter(steps[at].signature for steps in by_rank for at in range(shortest))
    signature, others = counted.most_common(1)[0][0], set[int]()
    for steps in by_rank:
        others |= {at for at in range(shortest) if steps[at].signature != signature}
        saves = {at for at in range(shortest) if any(span[0] == "save" for span in steps[at].spans)}
        others |= saves if 2 * len(saves) < shortest else set()
    return signature, by_rank, others


def signature_of(ranks: Sequence[dict[str, Any]], arm: str, usual: Signature) -> Signature:
    """The most frequent signature of an arm's steps, after the first of each block."""
    steps = [step for own in after_warmup(ranks) for step in own if step.arm == arm and step.block >= 0]
    counted = Counter(step.signature for step in steps)
    return counted.most_common(1)[0][0] if counted else usual


def left_out_ratio(ranks: Sequence[dict[str, Any]]) -> float:
    """How much longer the mean step is than the steady one, on the rank with the least."""
    found: list[float] = []
    _, by_rank, at_others = _kinds(ranks)
    for every, steps in zip(by_rank, steady(ranks)[1], strict=True):
        usual_s = {
            arm: float(np.median([step.step_s for step in steps if step.arm == arm]))
            for arm in dict.fromkeys(step.arm for step in steps)
        }
        first_s = usual_s.get("baseline", next(iter(usual_s.values())))
        counted = [step for step in every if step.arm in usual_s]
        others = [every[at] for at in at_others if every[at].arm in usual_s]
        found.append(sum(step.step_s - usual_s[step.arm] for step in others) / len(counted) / first_s)
    return min(found)


@dataclass(frozen=True)
class LongSteps:
    """Steps of the usual kind that take over twice the usual time, of the rank with the least of them."""

    count: int
    of: int
    more_ratio: float  # what they add to the mean step, of the usual one
    input_ratio: float | None  # how much of that is in their input; None in arms without phases


def long_steps(ranks: Sequence[dict[str, Any]], arm: str) -> LongSteps:
    """Those of a run while nothing is changed; a loader that starts anew makes them, or a checkpoint."""
    arms, found = (arm, "", "aa" if arm == "baseline" else arm), []
    for every in steady(ranks)[1]:
        if not (steps := [step for step in every if step.arm in arms]):
            continue
        steps_s = np.array([step.step_s for step in steps])
        inputs_s = np.array([_in_phase_s(step, "input") for step in steps])
        usual_s, is_long = float(np.median(steps_s)), steps_s > 2 * np.median(steps_s)
        more_s, more_input_s = (float((of - np.median(of))[is_long].sum()) for of in (steps_s, inputs_s))
        in_input = more_input_s / more_s if inputs_s.any() and is_long.any() else None
        found.append(LongSteps(int(is_long.sum()), len(steps), more_s / len(steps) / usual_s, in_input))
    return min(found, key=lambda one: one.more_ratio)


def _in_phase_s(step: MarkedStep, phase: str) -> float:
    return sum(stop - start for name, start, stop in step.spans if name == phase)


def mean_s(ranks: Sequence[dict[str, Any]]) -> float:
    return max(float(np.mean([step.step_s for step in steps])) for steps in after_warmup(ranks))


def medians_s(steps: Sequence[Sequence[MarkedStep]]) -> list[float]:
    return [float(np.median([step.step_s for step in rank])) for rank in steps]


def phases_s(steps: Sequence[MarkedStep]) -> dict[str, float]:
    """The seconds of each phase in a rank's steps, without a quarter of the longest and of the shortest."""
    return {phase: float(trim_mean([_in_phase_s(of, phase) for of in steps], 0.25)) for phase in MOST_PHASES}

"""What a rank's marks say: which of its steps are the steady ones, and where the time of each went."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

Signature = tuple[int, ...]
"""Of a step: backward calls, batches drawn, evaluations begun, steps of all optimizers."""

MOST_PHASES = ("input", "forward", "backward", "update")


@dataclass(frozen=True)
class Step:
    """A step of one rank, from the end of the optimizer's step before it to the end of its own.

    Attributes:
        number: 0 is the first one after the first mark.
        start_s: on the host's clock.
        step_s: its length.
        spans: (phase, start, stop) in seconds after its start; only in arms with phases.
    """

    number: int
    start_s: float
    step_s: float
    signature: Signature
    spans: list[tuple[str, float, float]]


def steps_of(rank: dict[str, Any]) -> list[Step]:
    """All steps of a rank's record, of the optimizer that fired least."""
    anchor = min(range(len(rank["step_s"])), key=lambda index: len(rank["step_s"][index]))
    marks, counts = rank["step_s"][anchor], rank["counts"][anchor]
    steps = []
    for number, (start_s, stop_s) in enumerate(pairwise(marks)):
        signature = tuple(int(b - a) for a, b in zip(counts[number], counts[number + 1], strict=True))
        inside = [one for one in rank["phases"] if start_s <= one[1] and one[2] <= stop_s]
        steps.append(Step(number, start_s, stop_s - start_s, signature, _spans(inside, start_s, stop_s)))
    return steps


def _spans(marked: Sequence[Any], start_s: float, stop_s: float) -> list[tuple[str, float, float]]:
    """Input and backward as marked; forward is from the one to the other, the update after the last."""
    spans: list[tuple[str, float, float]] = []
    last_s = None
    for name, begin_s, end_s in sorted(marked, key=lambda one: one[1]):
        if name == "evaluation":
            continue
        if name == "backward" and last_s is not None:
            spans.append(("forward", last_s - start_s, begin_s - start_s))
        spans.append((name, begin_s - start_s, end_s - start_s))
        last_s = end_s
    if spans and spans[-1][0] == "backward" and last_s is not None:
        spans.append(("update", last_s - start_s, stop_s - start_s))
    return spans


def steady(ranks: Sequence[dict[str, Any]]) -> tuple[Signature, list[list[Step]]]:
    """The most frequent signature of a run, and the steps that have it after the warm-up, [rank][step].

    A step that is another one on any rank is left out on all of them.
    """
    by_rank = [steps_of(rank)[rank["warmup"] - 1 :] for rank in ranks]
    shortest = min(map(len, by_rank))
    counted = Counter(steps[at].signature for steps in by_rank for at in range(shortest))
    signature = counted.most_common(1)[0][0]
    kept = [at for at in range(shortest) if all(steps[at].signature == signature for steps in by_rank)]
    return signature, [[steps[at] for at in kept] for steps in by_rank]


def medians_s(steps: Sequence[Sequence[Step]]) -> list[float]:
    """The median length of a step, by rank."""
    return [float(np.median([step.step_s for step in rank])) for rank in steps]


def phases_s(steps: Sequence[Step]) -> dict[str, float]:
    """The median seconds of each phase in a rank's steps."""
    return {
        phase: float(
            np.median([sum(stop - start for name, start, stop in s.spans if name == phase) for s in steps])
        )
        for phase in MOST_PHASES
    }

"""What makes the numbers doubtful that a decision rests on: noise with a known cause."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import median

from scaling.analysis.candidates import Candidate
from scaling.analysis.columns import Row
from scaling.analysis.explain import explain_cell
from scaling.analysis.explain_view import Known
from scaling.analysis.findings import Finding

OF_CELLS = ("busy_host", "throttled_gpu", "shared_gpu", "periodic", "oversubscribed")
"""Rules of `explain`; the last one only of the choice: more workers than cores do not disturb fewer ones."""

FAR = 0.25
"""The mean step over the typical one, and one launch over the others."""

OTHERS_AGREE = 0.1
"""The other launches differ by so much at most where one is called slow."""

NEAR_RATIO = 1.1
"""Measured value to the choice's, up to which a rival's doubts are told."""

TOO_NOISY = 0.15
"""A doubt about a larger part of the step hides what one launch, or launches that differ, would show."""


def doubts_of(choice: Candidate, rivals: Sequence[Candidate], study: Known) -> list[Finding]:
    """Of each kind the one that weighs most, the heaviest first; rivals are not told from the choice."""
    found: dict[str, Finding] = {}
    rows = [choice.row, *(rival.row for rival in rivals if rival.value <= NEAR_RATIO * choice.value)]
    for row in rows:
        for one in _of_cell(row, study):
            if one.kind != "oversubscribed" or row is rows[0]:
                found[one.kind] = max(
                    found.get(one.kind, one), one, key=lambda two: float(two.values["share"])
                )
    return sorted(found.values(), key=lambda one: -float(one.values["share"]))


def is_too_noisy(doubts: Sequence[Finding]) -> bool:
    """Whether they hide what is not decided yet."""
    return any(one.values["share"] >= TOO_NOISY for one in doubts)


def _of_cell(row: Row, study: Known) -> Iterator[Finding]:
    kinds = [one for one in explain_cell(row, study) if one.kind in OF_CELLS]
    yield from kinds
    cells, typical_s = (row["cell_id"],), row["typical_iteration_s"]
    if slow := _slow_launch(row, study):
        yield Finding("slow_launch", cells, slow)
    elif not kinds and typical_s and row["iteration_s"] > (1 + FAR) * typical_s:
        yield Finding("far_mean", cells, {"share": 1 - typical_s / row["iteration_s"]})


def _slow_launch(row: Row, study: Known) -> dict[str, float] | None:
    """One launch that took far longer than all others, which agree."""
    cell = study.cells.get(row["cell_id"])
    launches = {launch.repeat: launch.iteration_s for launch in cell.launches} if cell else {}
    if len(launches) < 3:
        return None
    slowest = max(launches, key=launches.__getitem__)
    others = [seconds for repeat, seconds in launches.items() if repeat != slowest]
    ratio = launches[slowest] / median(others)
    if ratio <= 1 + FAR or max(others) > (1 + OTHERS_AGREE) * min(others):
        return None
    return {"share": 1 - 1 / ratio, "ratio": ratio, "number": slowest + 1, "num_launches": len(launches)}

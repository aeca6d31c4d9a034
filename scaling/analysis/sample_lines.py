"""Lines of raw samples, already checked by `scaling.store.run_samples`, -> values."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scaling.errors import StoreError
from scaling.measure.budget import MAIN, PHASES, RankStep, Span
from scaling.store.records import MEND
from scaling.store.upgrades import old_spans

Integers = NDArray[np.int64]
Line = dict[str, Any]


def per_step(line: Line) -> Line:
    """A line of several steps, such as a block of local updates, as a mean one, when it began too."""
    count = line.get("steps", 1)
    if count == 1:
        return line
    divided = {**line, "step_s": line["step_s"] / count}
    if line.get("start_s") is not None:
        divided["start_s"] = line["start_s"] / count
    if line.get("spans") is not None:
        divided["spans"] = [
            [phase, lane, start_s / count, stop_s / count] for phase, lane, start_s, stop_s in line["spans"]
        ]
    if line.get("behind_s"):
        divided["behind_s"] = {name: late_s / count for name, late_s in line["behind_s"].items()}
    return divided


def is_unprofiled(line: Line) -> bool:
    """Whether a line's `step_s` is the time of a whole step; lines of old folders count as both kinds."""
    return not line.get("profiled", False)


def is_profiled(line: Line, *, captured: bool) -> bool:
    """Whether a line has phases; captured steps of old folders have only the copy of the batch."""
    if "profiled" in line:
        return bool(line["profiled"])
    return not captured and bool(old_spans(line, PHASES))


def rank_step(line: Line, where: str) -> RankStep:
    """The contents of a profiled line; StoreError where it has no spans, or one of an unknown phase."""
    step_s = float(line["step_s"])
    if "profiled" not in line:
        return RankStep(step_s, [Span(name, MAIN, *times_s) for name, times_s in old_spans(line, PHASES)])
    recorded = field(line, "spans", where)
    spans = [Span(phase, lane, float(start_s), float(stop_s)) for phase, lane, start_s, stop_s in recorded]
    for phase in sorted({span.phase for span in spans}.difference(PHASES)):
        raise StoreError(f"{where}: a span is of phase {phase!r}; allowed: {', '.join(PHASES)}")
    return RankStep(step_s, spans, line.get("start_s"), line.get("behind_s"))


def aligned(ranks: Sequence[Sequence[Line]], key: str, where: str, *, required: bool = True) -> Integers:
    """The step numbers that all ranks have, ascending; StoreError: ranks differ, or one came twice."""
    numbers = [sorted(line[key] for line in lines) for lines in ranks]
    if required and not numbers[0]:
        raise StoreError(f"{where}: the run is done, but no measured {key} was recorded; {MEND}")
    if len(set(numbers[0])) != len(numbers[0]):
        raise StoreError(f"{where}: an {key} was recorded twice")
    for rank, rank_numbers in enumerate(numbers):
        if rank_numbers != numbers[0]:
            raise StoreError(
                f"{where}: ranks 0 and {rank} recorded different {key}s, so they cannot be aligned"
            )
    return np.array(numbers[0], dtype=np.int64)


def by_number(lines: Iterable[Line], key: str) -> list[Line]:
    return sorted(lines, key=lambda line: line[key])


def field(line: Line, name: str, where: str) -> Any:
    if name not in line:
        raise StoreError(f"{where}: a line of the samples lacks {name!r}")
    return line[name]


def loss(line: Line, name: str, where: str) -> float:
    """A required number; NaN if it was not finite, which JSON cannot express."""
    value = field(line, name, where)
    return math.nan if value is None else float(value)

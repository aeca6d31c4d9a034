"""Lines of raw samples -> values, checked: a damaged or missing one is an error that names the run."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scaling.errors import StoreError
from scaling.measure.budget import MAIN, RankStep, Span
from scaling.measure.phase_names import PHASES

Integers = NDArray[np.int64]
Line = dict[str, Any]


def is_unsplit(line: Line) -> bool:
    """Whether a line's `step_s` is that of a whole step; lines of old folders count as both kinds."""
    return not line.get("split", False)


def is_split(line: Line, *, captured: bool) -> bool:
    """Whether a line tells phases. In old folders every line with phases does, but for captured steps:
    of those only the copy of the batch into the graph was recorded.
    """
    if "split" in line:
        return bool(line["split"])
    return not captured and any(f"{name}_s" in line for name in PHASES)


def rank_step(line: Line, where: str) -> RankStep:
    """What a split line says.

    Raises:
        StoreError: a value is missing or of the wrong type.
    """
    step_s = seconds(line, "step_s", where)
    if "split" not in line:
        return RankStep(step_s, _one_after_the_other(line, where))
    spans = field(line, "spans", where)
    if not isinstance(spans, list):
        raise StoreError(f"{where}: spans is {spans!r} in a line of the samples, it should be a list")
    start_s = None if line.get("start_s") is None else seconds(line, "start_s", where)
    return RankStep(step_s, [_span(span, where) for span in spans], start_s, _behind_s(line, where))


def _behind_s(line: Line, where: str) -> dict[str, float] | None:
    behind_s = line.get("behind_s")
    if behind_s is None:
        return None
    if not isinstance(behind_s, dict) or not all(map(_is_time, behind_s.values())):
        raise StoreError(
            f"{where}: behind_s is {behind_s!r:.60} in a line of the samples, it should be seconds by phase"
        )
    return {str(phase): float(late_s) for phase, late_s in behind_s.items()}


def _span(value: Any, where: str) -> Span:
    shape = "[phase, lane, start, stop] with times in seconds"
    if not isinstance(value, list) or len(value) != 4:
        raise StoreError(f"{where}: a span is {value!r} in a line of the samples, it should be {shape}")
    phase, lane, *ends = value
    if phase not in PHASES:
        raise StoreError(f"{where}: a span is of phase {phase!r}; allowed: {', '.join(PHASES)}")
    if not isinstance(lane, str) or not all(_is_time(end) for end in ends):
        raise StoreError(f"{where}: a span is {value!r} in a line of the samples, it should be {shape}")
    return Span(phase, lane, float(ends[0]), float(ends[1]))


def _one_after_the_other(line: Line, where: str) -> list[Span]:
    """The phases of an old line: how long they took was recorded, not when they came."""
    spans, end_s = [], 0.0
    for name in PHASES:
        if f"{name}_s" in line:
            start_s, end_s = end_s, end_s + seconds(line, f"{name}_s", where)
            spans.append(Span(name, MAIN, start_s, end_s))
    return spans


def aligned(ranks: Sequence[Sequence[Line]], key: str, where: str, *, required: bool = True) -> Integers:
    """The numbers that all ranks have, ascending.

    Raises:
        StoreError: ranks differ, a number came twice, or there is none where one is required.
    """
    numbers = [sorted(number(line, key, where) for line in lines) for lines in ranks]
    if required and not numbers[0]:
        raise StoreError(f"{where}: the run is done, but no measured {key} was recorded")
    if len(set(numbers[0])) != len(numbers[0]):
        raise StoreError(f"{where}: an {key} was recorded twice")
    for rank, rank_numbers in enumerate(numbers):
        if rank_numbers != numbers[0]:
            raise StoreError(
                f"{where}: ranks 0 and {rank} recorded different {key}s, so they cannot be aligned"
            )
    return np.array(numbers[0], dtype=np.int64)


def by_number(lines: Iterable[Line], key: str) -> list[Line]:
    """In the order of those numbers."""
    return sorted(lines, key=lambda line: int(line[key]))


def field(line: Line, name: str, where: str) -> Any:
    """A value that has to be there."""
    if name not in line:
        raise StoreError(f"{where}: a line of the samples lacks {name!r}")
    return line[name]


def number(line: Line, name: str, where: str) -> int:
    """A whole number that has to be there."""
    value = field(line, name, where)
    if isinstance(value, bool) or not isinstance(value, int):
        raise StoreError(
            f"{where}: {name} is {value!r} in a line of the samples, it should be a whole number"
        )
    return value


def loss(line: Line, name: str, where: str) -> float:
    """A number that has to be there; NaN where it was not finite, which JSON does not know."""
    value = field(line, name, where)
    if value is None:
        return math.nan
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise StoreError(
            f"{where}: {name} is {value!r} in a line of the samples, it should be a number or null"
        )
    return float(value)


def seconds(line: Line, name: str, where: str) -> float:
    """A time that has to be there."""
    value = line.get(name)
    if not _is_time(value):
        raise StoreError(
            f"{where}: {name} is {value!r} in a line of the samples, it should be a time in seconds"
        )
    return float(line[name])


def _is_time(value: Any) -> bool:
    return not isinstance(value, bool) and isinstance(value, (int, float)) and math.isfinite(value)

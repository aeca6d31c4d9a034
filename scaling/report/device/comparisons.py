"""How cells of an experiment compare, in words, and where along an axis one begins to take less time.

What the launches tell is a plain ratio; else it is marked as a tie or as undecided. One launch decides
nothing: sentences say so. A break-even point lies after the last point at which the first device does not
take less time, interpolated to the next on logarithmic axes: the ratio is taken for a power law there. Its
interval is where the ends of the ratios' intervals break even."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from scaling.analysis.decisions import TIE_RATIO, Difference, adjusted
from scaling.measure.statistics import CONFIDENCE
from scaling.report.device.results import DeviceResult, DeviceResults
from scaling.report.formats import listed

TIE = f"a tie within {TIE_RATIO:.0%}"
UNDECIDED = "undecided"
LEAD = "Seen in one launch: "


def finding(results: DeviceResults, before: str, clauses: Sequence[str], after: str = "") -> Iterator[str]:
    if clauses:
        seen = " (seen in one launch)" if results.num_launches == 1 else ""
        yield f"{before}{'; '.join(clauses)}{after}{seen}."


def times(ratio: float) -> str:
    digits = 0 if ratio >= 9.95 else 1 if ratio >= 0.995 else 2
    return f"{ratio:,.{digits}f} times"


def times_of(differences: Sequence[Difference]) -> str:
    """`2.0 to 4.0 times`: the ratios, and how many of them the launches leave open (Holm's correction)."""
    ratios = [difference.ratio for difference in differences]
    low, high = times(min(ratios)), times(max(ratios))
    shown = high if low == high else f"{low.removesuffix(' times')} to {high}"
    p_values = adjusted([1.0 if (p := difference.p_value) is None else p for difference in differences])
    doubts = [
        TIE if difference.is_same() else UNDECIDED
        for difference, p in zip(differences, p_values, strict=True)
        if difference.error is not None and p >= 1 - CONFIDENCE
    ]
    counts = [(word, doubts.count(word)) for word in (TIE, UNDECIDED) if word in doubts]
    if not counts:
        return shown
    if len(differences) == 1:
        return f"{shown} ({doubts[0]})"
    return f"{shown} ({', '.join(f'{word} for {count}' for word, count in counts)} of {len(differences)})"


def spread(values: Sequence[float]) -> str:
    decimals = 0 if all(value == int(value) for value in values) else 1
    ordered = sorted(values)
    least_and_most = (*ordered[:1], *ordered[-1:])
    ends = (f"{value:,.{0 if value >= 9.95 else decimals}f}" for value in least_and_most)
    return " to ".join(dict.fromkeys(ends))


def least(cells: Sequence[DeviceResult]) -> list[DeviceResult]:
    """The cell with the least time of a sample, then those that the launches do not show to take longer."""
    ordered = sorted((cell for cell in cells if cell.estimate()), key=lambda cell: cell.sample_s)
    differences = [(cell, ordered[0].over_samples(cell)) for cell in ordered[1:]]
    open_ones = [cell for cell, d in differences if d is not None and d.error is not None and not d.is_larger]
    return [*ordered[:1], *open_ones]


def least_text(cells: Sequence[DeviceResult], names: Sequence[str]) -> str:
    """`A`; `A or B (a tie within 3%)`; `A or B (undecided)`: what `least` gives, by its names."""
    every = [cells[0].over_samples(cell) for cell in cells[1:]]
    doubt = TIE if all(difference is not None and difference.is_same() for difference in every) else UNDECIDED
    return f"{listed([*names], 'or')} ({doubt})" if every else names[0]


@dataclass(frozen=True)
class Reached:
    """Where along an axis the time of a sample comes near the least one."""

    possible: DeviceResult
    shown: DeviceResult
    best: DeviceResult
    gain: Difference | None = None  # how many times as long it takes at the axis's start
    is_bound: bool = False  # it may be further along, as nothing further was measured

    def text(self, x: str) -> str:
        """`8`; `4 to 8 (undecided)`; of a lower bound `at least 8`, `4 to 8 or more (undecided)`."""
        first, last = self.possible.value(x), self.shown.value(x)
        if first == last:
            return f"at least {last:,}" if self.is_bound else f"{last:,}"
        return f"{first:,} to {last:,}{' or more' if self.is_bound else ''} ({UNDECIDED})"


def reached(cells: Sequence[DeviceResult], x: str, ratio: float) -> Reached | None:
    timed = sorted((cell for cell in cells if cell.estimate()), key=lambda cell: cell.value(x))
    if not timed:
        return None
    best = min(timed, key=lambda cell: cell.sample_s)
    bounds = []
    for cell in timed:
        difference = None if cell is best else best.over_samples(cell)
        log_ratio, half = (difference.log_ratio, difference.half_width() or 0.0) if difference else (0.0, 0.0)
        bounds.append((cell, log_ratio - half, log_ratio + half))
    most = math.log(ratio)
    possible = next(cell for cell, low, _ in bounds if low <= most)
    return Reached(possible, next(cell for cell, _, high in bounds if high <= most), best)


@dataclass(frozen=True)
class Crossing:
    """From where on along an axis, measured from `first` to `last`, one takes less time than another."""

    at: float  # 0 where it does at every measured point, infinity where at none
    ends: tuple[float, float] | None  # of its 95% interval, likewise
    first: float
    last: float

    @property
    def is_between(self) -> bool:
        return 0 < self.at < math.inf

    @property
    def is_decided(self) -> bool:
        return self.is_between or self.ends is None or self.ends[0] == self.ends[1]


def crossing(differences: Mapping[float, Difference | None]) -> Crossing | None:
    known = {at: difference for at, difference in sorted(differences.items()) if difference is not None}
    if not known:
        return None
    points, ratios = [*known], [difference.log_ratio for difference in known.values()]
    halves = [half for difference in known.values() if (half := difference.half_width()) is not None]
    ends = None
    if len(halves) == len(points):
        # The most favourable ratios cross first.
        low, high = (
            [ratio + sign * half for ratio, half in zip(ratios, halves, strict=True)] for sign in (1, -1)
        )
        ends = _solve(points, low), _solve(points, high)
    return Crossing(_solve(points, ratios), ends, points[0], points[-1])


def _solve(points: Sequence[float], log_ratios: Sequence[float]) -> float:
    last = max((index for index, log_ratio in enumerate(log_ratios) if log_ratio <= 0.0), default=-1)
    if last in (-1, len(points) - 1):
        return 0.0 if last == -1 else math.inf
    share = -log_ratios[last] / (log_ratios[last + 1] - log_ratios[last])
    return points[last] * (points[last + 1] / points[last]) ** share


def rounded(value: float) -> str:
    if value < 10:
        return f"{value:.2g}"
    digits = math.floor(math.log10(value)) - 1
    return f"{round(value, -digits):,.0f}"


def crossing_text(break_even: Crossing | None, unit: str = "") -> str:
    """`from width 300 [210, 410] on`."""
    if break_even is None:
        return "not measured"
    if not break_even.is_between:
        which = "no" if break_even.at else "every"
        doubt = "" if break_even.is_decided else f"; {UNDECIDED} at some"
        points = f"{break_even.first:,.0f} to {break_even.last:,.0f}"
        return f"at {which} measured {unit or 'point'} ({points}{doubt})"
    bounds = ""
    if break_even.ends is not None:  # an open end names the last measured point
        low, high = break_even.ends
        start = rounded(low) if low else f"below {break_even.first:,.0f}"
        bounds = f" [{start}, {rounded(high) if high < math.inf else f'above {break_even.last:,.0f}'}]"
    return f"from {f'{unit} ' if unit else ''}{rounded(break_even.at)}{bounds} on"

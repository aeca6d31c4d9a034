"""How cells of an experiment compare, in words, and where along an axis one begins to take less time.

All rests on the differences of `scaling.analysis.decisions`, taken launch by launch. What the launches tell
is a plain ratio; else it is marked as a tie or as undecided. One launch decides nothing: sentences say so.

A break-even point lies after the last point at which the first device does not take less time; between this
and the next it is interpolated on logarithmic axes: the ratio is taken for a power law there. Its interval is
where the ends of the ratios' intervals break even, found in the same way.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from scaling.analysis.decisions import TIE_RATIO, Difference, adjusted
from scaling.measure.statistics import CONFIDENCE
from scaling.report.device.results import DeviceResult, Results
from scaling.report.formats import listed

TIE = f"a tie within {TIE_RATIO:.0%}"
UNDECIDED = "undecided"
LEAD = "Seen in one launch: "


def finding(results: Results, before: str, clauses: Sequence[str], after: str = "") -> Iterator[str]:
    """The sentence of these clauses, marked if one launch stands behind it; none without clauses."""
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
    doubts = _doubts(differences)
    counts = [(word, doubts.count(word)) for word in (TIE, UNDECIDED) if word in doubts]
    if not counts:
        return shown
    if len(differences) == 1:
        return f"{shown} ({doubts[0]})"
    return f"{shown} ({', '.join(f'{word} for {count}' for word, count in counts)} of {len(differences)})"


def _doubts(differences: Sequence[Difference]) -> list[str]:
    """Of each: "" where the launches tell a difference, or where there is one launch."""
    p_values = [1.0 if (p := difference.p_value) is None else p for difference in differences]
    return [
        "" if difference.error is None or p < 1 - CONFIDENCE else TIE if difference.is_same() else UNDECIDED
        for difference, p in zip(differences, adjusted(p_values), strict=True)
    ]


def spread(values: Sequence[float]) -> str:
    decimals = 0 if all(value == int(value) for value in values) else 1
    ends = (f"{value:,.{0 if value >= 9.95 else decimals}f}" for value in (min(values), max(values)))
    return " to ".join(dict.fromkeys(ends))


def is_longer(difference: Difference | None) -> bool:
    """Whether the second cell took longer: the launches show it, or a single one was seen so."""
    if difference is None:
        return False
    return difference.log_ratio > 0 if difference.error is None else difference.is_larger


def least(cells: Sequence[DeviceResult]) -> list[DeviceResult]:
    """The cell with the least time of a sample, then those that the launches do not show to take longer."""
    ordered = sorted((cell for cell in cells if cell.estimate()), key=lambda cell: cell.sample_s)
    differences = [(cell, over_samples(ordered[0], cell)) for cell in ordered[1:]]
    open_ones = [cell for cell, d in differences if d is not None and d.error is not None and not d.is_larger]
    return [*ordered[:1], *open_ones]


def least_text(cells: Sequence[DeviceResult], names: Sequence[str]) -> str:
    """`A`; `A or B (a tie within 3%)`; `A or B (undecided)`: what `least` gives, by its names."""
    every = [over_samples(cells[0], cell) for cell in cells[1:]]
    doubt = TIE if all(difference is not None and difference.is_same() for difference in every) else UNDECIDED
    return f"{listed([*names], 'or')} ({doubt})" if every else names[0]


@dataclass(frozen=True)
class Reached:
    """Where along an axis the time of a sample comes near the least one."""

    possible: DeviceResult
    shown: DeviceResult
    best: DeviceResult

    def text(self, x: str, *, is_bound: bool = False) -> str:
        """`8`; `4 to 8 (undecided)`; of a lower bound `at least 8`, `4 to 8 or more (undecided)`."""
        first, last = self.possible.value(x), self.shown.value(x)
        if first == last:
            return f"at least {last:,}" if is_bound else f"{last:,}"
        return f"{first:,} to {last:,}{' or more' if is_bound else ''} ({UNDECIDED})"


def reached(cells: Sequence[DeviceResult], x: str, ratio: float) -> Reached | None:
    """The first cell along a variable that takes at most `ratio` times the least time of a sample."""
    timed = sorted((cell for cell in cells if cell.estimate()), key=lambda cell: cell.value(x))
    if not timed:
        return None
    best = min(timed, key=lambda cell: cell.sample_s)
    bounds = []
    for cell in timed:
        difference = None if cell is best else over_samples(best, cell)
        half = (difference.half_width() or 0.0) if difference else 0.0
        log_ratio = difference.log_ratio if difference else 0.0
        bounds.append((cell, log_ratio - half, log_ratio + half))
    most = math.log(ratio)
    possible = next(cell for cell, low, _ in bounds if low <= most)
    return Reached(possible, next(cell for cell, _, high in bounds if high <= most), best)


def over_samples(first: DeviceResult, second: DeviceResult) -> Difference | None:
    factor = math.log(first.num_samples / second.num_samples)
    return first.difference(second, log_factor=factor)


@dataclass(frozen=True)
class Crossing:
    at: float | None
    low: float | None
    high: float | None
    has_interval: bool
    first: float
    last: float
    wins: str
    is_decided: bool = True

    @property
    def bounds(self) -> str:
        """` [210, 410]`, where an open end names the last measured point; "" without an interval."""
        if not self.has_interval:
            return ""
        low = f"below {self.first:,.0f}" if self.low is None else rounded(self.low)
        high = f"above {self.last:,.0f}" if self.high is None else rounded(self.high)
        return f" [{low}, {high}]"


def crossing(differences: Mapping[float, Difference | None]) -> Crossing | None:
    """The break-even point along an axis; None where nothing was measured."""
    known = {at: difference for at, difference in sorted(differences.items()) if difference is not None}
    if not known:
        return None
    points, ratios = [*known], [difference.log_ratio for difference in known.values()]
    at, wins = _solve(points, ratios)
    half_widths = [half for difference in known.values() if (half := difference.half_width()) is not None]
    if len(half_widths) < len(points):
        return Crossing(at, None, None, False, points[0], points[-1], wins)
    # The most favourable ratios cross first.
    low, most = _solve(points, [ratio + half for ratio, half in zip(ratios, half_widths, strict=True)])
    high, fewest = _solve(points, [ratio - half for ratio, half in zip(ratios, half_widths, strict=True)])
    return Crossing(at, low, high, True, points[0], points[-1], wins, wins == "from" or most == fewest)


def _solve(points: Sequence[float], log_ratios: Sequence[float]) -> tuple[float | None, str]:
    losing = [index for index, log_ratio in enumerate(log_ratios) if log_ratio <= 0.0]
    if not losing:
        return None, "everywhere"
    last = losing[-1]
    if last == len(points) - 1:
        return None, "nowhere"
    share = -log_ratios[last] / (log_ratios[last + 1] - log_ratios[last])
    return points[last] * (points[last + 1] / points[last]) ** share, "from"


def rounded(value: float) -> str:
    if value < 10:
        return f"{value:.2g}"
    digits = math.floor(math.log10(value)) - 1
    return f"{round(value, -digits):,.0f}"


def crossing_text(break_even: Crossing | None, unit: str = "") -> str:
    """`from width 300 [210, 410] on`, or at every or no measured point, or that nothing was measured."""
    if break_even is None:
        return "not measured"
    if break_even.at is None:
        which = "every" if break_even.wins == "everywhere" else "no"
        doubt = "" if break_even.is_decided else f"; {UNDECIDED} at some"
        points = f"{break_even.first:,.0f} to {break_even.last:,.0f}"
        return f"at {which} measured {unit or 'point'} ({points}{doubt})"
    return f"from {f'{unit} ' if unit else ''}{rounded(break_even.at)}{break_even.bounds} on"

"""Where one device begins to win: the break-even point along an axis, and how well it is known.

1. At each measured point: the logarithm of one device's time over the other's, with an interval from the two
   intervals' opposite ends (wider than 95% where both are independent).
2. The break-even point lies after the last point at which the other device does not lose; between this and
   the next it is interpolated on logarithmic axes.
3. Its interval is where the interval's ends break even, found in the same way.

Error: the interpolation takes the ratio for a power law between two neighbouring points, and a ratio that
crosses 1 several times has one break-even point only, the last.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from scaling.measure.statistics import Estimate


@dataclass(frozen=True)
class Ratio:
    """How often one device's time goes into the other's, at one point of an axis.

    Attributes:
        at: the point, positive.
        value: above 1 where the first device wins.
        low, high: ends of its interval; None where there are too few samples.
    """

    at: float
    value: float
    low: float | None
    high: float | None


def overlap(first: Estimate, second: Estimate) -> bool:
    """Whether two intervals overlap; where one is missing, whether the medians are equal."""
    if first.low is None or first.high is None or second.low is None or second.high is None:
        return first.median == second.median
    return first.low <= second.high and second.low <= first.high


def ratio_of(at: float, slow: Estimate, fast: Estimate) -> Ratio:
    """`slow` over `fast`: above 1 where the device of `fast` wins."""
    bounds: tuple[float | None, float | None] = (None, None)
    if slow.low and slow.high and fast.low and fast.high and slow.low > 0 and fast.low > 0:
        bounds = (slow.low / fast.high, slow.high / fast.low)
    return Ratio(at, slow.median / fast.median, *bounds)


@dataclass(frozen=True)
class Crossing:
    """A break-even point.

    Attributes:
        at: from here on the first device wins; None where it does so nowhere, or at every measured point.
        low, high: ends of its interval; None where it is open: not above `first`, or beyond `last`.
        has_interval: whether the ratios had intervals.
        first, last: of the measured points.
        wins: "from": from `at` on; "everywhere"; "nowhere".
        between: the two measured points between which it was interpolated.
    """

    at: float | None
    low: float | None
    high: float | None
    has_interval: bool
    first: float
    last: float
    wins: str
    between: tuple[float, float] | None = None


def crossing(ratios: Sequence[Ratio]) -> Crossing | None:
    """The break-even point along the axis; None where nothing was measured."""
    ordered = sorted(ratios, key=lambda ratio: ratio.at)
    if not ordered:
        return None
    points = [ratio.at for ratio in ordered]
    at, between, wins = _solve(points, [ratio.value for ratio in ordered])
    lows, highs = [ratio.low for ratio in ordered], [ratio.high for ratio in ordered]
    has_interval = None not in lows and None not in highs
    low = high = None
    if has_interval:
        # The most favourable ratios cross first.
        low, _, _ = _solve(points, [value for value in highs if value is not None])
        high, _, _ = _solve(points, [value for value in lows if value is not None])
    return Crossing(at, low, high, has_interval, points[0], points[-1], wins, between)


def crossing_of(pairs: Mapping[Any, tuple[Estimate | None, Estimate | None]]) -> Crossing | None:
    """The break-even point along an axis: its values -> times of the slow and the fast, where known."""
    return crossing([ratio_of(at, slow, fast) for at, (slow, fast) in pairs.items() if slow and fast])


def _solve(
    points: Sequence[float], ratios: Sequence[float]
) -> tuple[float | None, tuple[float, float] | None, str]:
    losing = [index for index, ratio in enumerate(ratios) if ratio <= 1.0]
    if not losing:
        return None, None, "everywhere"
    last = losing[-1]
    if last == len(points) - 1:
        return None, None, "nowhere"
    below, above = math.log(ratios[last]), math.log(ratios[last + 1])
    share = -below / (above - below)
    at = math.exp(math.log(points[last]) + share * math.log(points[last + 1] / points[last]))
    return at, (points[last], points[last + 1]), "from"


def rounded(value: float) -> str:
    """Two significant digits: more would say too much of an interpolation."""
    if value < 10:
        return f"{value:.2g}"
    digits = math.floor(math.log10(value)) - 1
    return f"{round(value, -digits):,.0f}"


def crossing_text(break_even: Crossing | None, unit: str = "") -> str:
    """`from width 300 [210, 410] on`, or at every or no measured point, or that nothing was measured."""
    what = f"{unit} " if unit else ""
    if break_even is None:
        return "not measured"
    if break_even.at is None:
        which = "every" if break_even.wins == "everywhere" else "no"
        return f"at {which} measured {unit or 'point'} ({break_even.first:,.0f} to {break_even.last:,.0f})"
    return f"from {what}{rounded(break_even.at)} {bounds_text(break_even)} on"


def bounds_text(break_even: Crossing) -> str:
    """`[210, 410]`, where an open end names the last measured point."""
    if not break_even.has_interval:
        return "[too few samples for an interval]"
    low = f"below {break_even.first:,.0f}" if break_even.low is None else rounded(break_even.low)
    high = f"above {break_even.last:,.0f}" if break_even.high is None else rounded(break_even.high)
    return f"[{low}, {high}]"

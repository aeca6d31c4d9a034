"""Whether two times differ, which of many is the smallest, and which difference could have been found.

All is of logarithms of launches' times, with variances that `scaling.analysis.moderated` made. A
difference has a standard error and degrees of freedom; of unequal launches or variances they are
Satterthwaite's.

- One difference: Student's t; many: Holm's correction, which keeps the family-wise level whatever the
  comparisons have to do with each other.
- The same cells of two folders are two campaigns: on another day all cells of a machine may be 2% slower. A
  cell's difference is taken relative to the median of the other cells', and what all have in common is a
  line of its own. A cell is called different only if its own ratio, too, goes that way by half as much.
- The best of many: decided if all others are significantly larger; a tie if none can be smaller by more than
  TIE_RATIO; else undecided. "The same within x%" is TOST: the whole interval is within the bound.
- One launch shows no scatter: there is no difference, no verdict and no exit code.

Sources: F. E. Satterthwaite, Biometrics Bulletin 2 (1946); S. Holm, Scandinavian Journal of Statistics 6
(1979); D. J. Schuirmann, Journal of Pharmacokinetics and Biopharmaceutics 15 (1987) for TOST.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from scaling.analysis.launch_effects import INDEPENDENT, Serial, inflation, inflations
from scaling.analysis.moderated import (
    FEWEST_FOR_MEDIAN,
    FloatArray,
    Variances,
    common_variance,
    inflated,
    means,
    medians_of_others,
    moderated,
    own_variances,
    t_quantile,
    variances_within_launches,
    with_common,
)
from scaling.measure.statistics import CONFIDENCE

TIE_RATIO = 0.03  # times that differ by less are the same in practice: "either, within 3%"

CAMPAIGN_RATIO = 0.02
"""How far all times of one machine are from one campaign to the next, where nothing measured it: one standard
deviation. Two folders of one machine, days apart, differed by 0.5% to 3%."""

FEWEST = 3  # launches to ask for where there is one: from three on, few cells are enough
MOST = 200  # more launches than this nobody starts to find a difference
MOST_ASKED = 20  # more launches are not asked for: the machine is too noisy
MEDIAN_OF_MANY = math.pi / 2  # the variance of a median over that of the mean of as many normal values
ONE_LAUNCH_SCATTER = 0.03  # of launches of a typical machine, to say how many would tell


@dataclass(frozen=True)
class Difference:
    """The difference of two times, as the logarithm of their ratio."""

    log_ratio: float  # ln(second / first)
    error: float | None  # its standard error; None where one of both has one launch
    degrees: float | None  # of freedom; None likewise

    @property
    def ratio(self) -> float:
        return math.exp(self.log_ratio)

    def half_width(self, level: float = 1 - CONFIDENCE) -> float | None:
        """The half width of the interval of log_ratio at that two-sided level; None with one launch."""
        if self.error is None or self.degrees is None:
            return None
        return self.error * float(t_quantile(self.degrees, 1 - level / 2))

    @property
    def interval(self) -> tuple[float, float] | None:
        """The 95% interval of the ratio; None with one launch."""
        half = self.half_width()
        return None if half is None else (_exp(self.log_ratio - half), _exp(self.log_ratio + half))

    @property
    def p_value(self) -> float | None:
        """The p value of the two-sided test that both are equal; None with one launch."""
        if self.error is None or self.degrees is None:
            return None
        from scipy import special

        return float(2 * special.stdtr(self.degrees, -abs(self.log_ratio) / self.error))

    @property
    def is_significant(self) -> bool:
        half = self.half_width()
        return half is not None and abs(self.log_ratio) > half

    @property
    def is_larger(self) -> bool:
        half = self.half_width()
        return half is not None and self.log_ratio > half

    def is_same(self, within_ratio: float = TIE_RATIO) -> bool:
        """Whether both are equal to within that ratio, at 5% (two one-sided tests, TOST)."""
        half = self.half_width(2 * (1 - CONFIDENCE))
        return half is not None and abs(self.log_ratio) + half < math.log1p(within_ratio)

    def as_dict(self) -> dict[str, float | None]:
        low, high = self.interval or (None, None)
        return {"ratio": self.ratio, "ratio_low": low, "ratio_high": high}


def with_variance(difference: Difference, variance: float, degrees: float) -> Difference:
    """The same difference with a further variance component, which more launches do not reduce."""
    if difference.error is None or difference.degrees is None:
        return difference
    total = difference.error**2 + variance
    below = difference.error**4 / difference.degrees + variance**2 / degrees
    return replace(difference, error=math.sqrt(total), degrees=total**2 / below)


def difference(
    logs: Sequence[float], variances: Sequence[float], counts: Sequence[int], degrees: Sequence[float]
) -> Difference:
    """The difference of two means of logarithms over launches that have nothing in common; `variances` are of
    one launch each, with degrees of freedom: 0 where there is one launch alone."""
    if min(degrees) <= 0:
        return Difference(logs[1] - logs[0], None, None)
    parts = [value / count for value, count in zip(variances, counts, strict=True)]
    below = sum(part**2 / freedom for part, freedom in zip(parts, degrees, strict=True))
    total = sum(parts)
    return Difference(logs[1] - logs[0], math.sqrt(total), total**2 / below if below else min(degrees))


def adjusted(p_values: Sequence[float]) -> list[float]:
    """Holm's adjustment: p values such that those below a level are significant at that family-wise level."""
    order = sorted(range(len(p_values)), key=p_values.__getitem__)
    result, largest = [0.0] * len(p_values), 0.0
    for rank, index in enumerate(order):
        largest = max(largest, min(1.0, (len(p_values) - rank) * p_values[index]))
        result[index] = largest
    return result


def launches_needed(log_ratio: float, deviation: float, level: float = 1 - CONFIDENCE) -> int | None:
    """The fewest launches per side that would show that difference, each of that `deviation`, or None."""
    if log_ratio == 0:
        return None
    counts = np.arange(2, MOST + 1, dtype=np.float64)
    halves = t_quantile(2.0 * (counts - 1), 1 - level / 2) * deviation / np.sqrt(counts)
    enough = counts[halves < abs(log_ratio)]
    return int(enough[0]) if len(enough) else None


State = Literal["alone", "best", "tie", "undecided", "one_launch"]
"""Of a choice: there is no other; all others are larger; none is smaller by more than TIE_RATIO; neither;
unknown."""


def state_of(differences: Sequence[Difference]) -> State:
    """The state of the smallest of many, from the differences of all others to it (step "best of many")."""
    if not differences:
        return "alone"
    halves = [difference.half_width() for difference in differences]
    known = [
        (difference.log_ratio, half)
        for difference, half in zip(differences, halves, strict=True)
        if half is not None
    ]
    if len(known) < len(differences):
        return "one_launch"
    lowest = min(log_ratio - half for log_ratio, half in known)
    if lowest > 0:
        return "best"
    return "tie" if lowest > -math.log1p(TIE_RATIO) else "undecided"


@dataclass(frozen=True)
class Campaigns:
    ratios: list[Difference]  # each cell's, with its absolute standard error
    # the same relative to what the other cells have in common; None with fewer than FEWEST_FOR_MEDIAN cells,
    # where nothing protects from a campaign's shift
    relative: list[Difference] | None
    shift: Difference | None  # of all cells; None with one launch on a side

    @property
    def tested(self) -> list[Difference]:
        """The p value that is compared with a level."""
        return self.ratios if self.relative is None else self.relative


def goes_along(absolute: Difference, relative: Difference) -> bool:
    """Whether the cell itself changed, rather than all others the other way: a condition for a verdict."""
    return (
        absolute.log_ratio * relative.log_ratio > 0 and abs(absolute.log_ratio) > abs(relative.log_ratio) / 2
    )


@dataclass(frozen=True)
class Design:
    are_campaigns: bool = False  # each value of a cell is that of a whole campaign; else of a launch
    # launches of both took turns in one campaign: column by column they belong together
    is_paired: bool = False
    # variance of a cell's ratio by what stays however many launches there are, with its degrees of freedom;
    # (0, 0) where that is not known
    offset: tuple[float, float] = (0.0, 0.0)
    serial: Serial = INDEPENDENT  # correlation of the launches with those before


def campaigns(
    a: FloatArray, b: FloatArray, smallest: FloatArray | float = 0.0, design: Design | None = None
) -> Campaigns:
    """Compares the cells of two sides: logarithms of launches' times, [cell, launch], NaN where a cell has no
    such launch. Each side has launches of its own unless they are paired; of paired ones those count that
    both have. `smallest`: variance that the timer cannot tell from zero, [cell]."""
    design = design or Design()
    if design.is_paired:
        a, b = np.where(np.isfinite(b), a, np.nan), np.where(np.isfinite(a), b, np.nan)
    log_ratios = means(b) - means(a)
    counts = [np.isfinite(side).sum(axis=1) for side in (a, b)]
    wider = (inflations(design.serial.within, a) + inflations(design.serial.within, b)) / 2
    has_medians = len(a) >= FEWEST_FOR_MEDIAN
    variances = [variances_within_launches(side) for side in (a, b)] if has_medians else []
    shared = _shared(a, b, design, variances)
    shift = _shift(log_ratios, shared, design)
    if not has_medians:
        if design.is_paired:
            of_pairs = moderated(own_variances(b - a), smallest)
            pairs = np.maximum(np.isfinite(b - a).sum(axis=1), 1)
            total = replace(of_pairs, values=of_pairs.values / pairs)
        else:
            total = _squared_errors([own_variances(side) for side in (a, b)], counts, smallest)
        total = inflated(total, wider)
        return Campaigns(_differences(log_ratios, with_common(total, design.offset)), None, shift)
    within = _squared_errors(variances, counts, smallest)
    within = with_common(inflated(within, wider), design.offset)
    total = within
    for part in shared:
        total = with_common(total, part)
    relative = log_ratios - medians_of_others(log_ratios[:, None])[:, 0]
    with_median = replace(within, values=within.values + _squared_error_of_median(within))
    return Campaigns(_differences(log_ratios, total), _differences(relative, with_median), shift)


def _shared(
    a: FloatArray, b: FloatArray, design: Design, variances: Sequence[Variances]
) -> list[tuple[float, int]]:
    """Variance of both means' ratio by what the cells of a launch share, with degrees of freedom. Two
    launches may by chance agree in it: a further one that scatters as the cells do may make it larger, never
    smaller."""
    components = []
    if design.is_paired and variances:
        variances = [variances_within_launches(b - a)]
    for side, within in zip_longest([b - a] if design.is_paired else [a, b], variances):
        variance, degrees = common_variance(side)
        if within is not None:
            variance = max(variance, common_variance(side, within)[0])
        variance *= inflation(design.serial.total, degrees + 1)
        components.append((variance / (degrees + 1), degrees))
    return components


def _squared_errors(
    variances: Sequence[Variances], counts: Sequence[NDArray[np.int_]], smallest: FloatArray | float
) -> Variances:
    """Moderated squared errors of the ratios of two sides' means; 0 degrees of freedom with one launch. With
    equal launches both sides' variances are one; else each has its own, added by Satterthwaite's rule."""
    first, second = variances
    known = (first.degrees > 0) & (second.degrees > 0)
    if (counts[0] == counts[1]).all():
        degrees = np.where(known, first.degrees + second.degrees, 0.0)
        squares = first.values * first.degrees + second.values * second.degrees
        pooled = Variances(squares / np.where(known, degrees, np.nan), degrees, first.num_launches)
        both = moderated(pooled, smallest)
        return replace(both, values=2 * both.values / counts[0])
    each = [moderated(side, smallest) for side in variances]
    parts = [side.values / np.maximum(count, 1) for side, count in zip(each, counts, strict=True)]
    below = sum(part**2 / np.where(known, side.degrees, 1.0) for part, side in zip(parts, each, strict=True))
    total = parts[0] + parts[1]
    degrees = np.where(known, total**2 / np.where(known, below, 1.0), 0.0)
    return Variances(total, degrees, min(first.num_launches, second.num_launches))


def _squared_error_of_median(within: Variances) -> FloatArray:
    """Of the other cells' ratios, [cell]: pi / 2 times that of their best weighted mean."""
    known = within.degrees > 0
    weights = np.where(known, 1 / np.sqrt(np.where(known, within.values, 1.0)), 0.0)
    others = np.maximum(weights.sum() - weights, 1e-100)
    squares: FloatArray = MEDIAN_OF_MANY * max(1, known.sum() - 1) / others**2
    return squares


def _differences(log_ratios: FloatArray, squares: Variances) -> list[Difference]:
    return [
        Difference(float(log_ratio), math.sqrt(square), float(degrees))
        if degrees > 0
        else Difference(float(log_ratio), None, None)
        for log_ratio, square, degrees in zip(log_ratios, squares.values, squares.degrees, strict=True)
    ]


def _shift(log_ratios: FloatArray, shared: Sequence[tuple[float, int]], design: Design) -> Difference | None:
    """The median ratio of all cells, with the scatter that a launch's cells share, and that of campaigns."""
    if min(degrees for _, degrees in shared) < 1:
        return None
    total = sum(variance for variance, _ in shared)
    below = sum(variance**2 / degrees for variance, degrees in shared)
    # How far campaigns are apart, which one of them cannot show, is stated: no degrees of freedom to lose.
    of_campaigns = 0.0 if design.are_campaigns or design.is_paired else 2 * CAMPAIGN_RATIO**2
    stated = of_campaigns + MEDIAN_OF_MANY * design.offset[0] / len(log_ratios)
    degrees = (total + stated) ** 2 / below if below else float(sum(degrees for _, degrees in shared))
    return Difference(float(np.median(log_ratios)), math.sqrt(total + stated), degrees)


def _exp(exponent: float) -> float:
    """exp(), limited to the range of a float."""
    return math.exp(max(-700.0, min(700.0, exponent)))

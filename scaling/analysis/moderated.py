"""How much the cells of a study scatter over launches: each cell's estimate, moderated by all cells.

A study has 2 to 9 launches, so that a cell's own variance has 1 to 8 degrees of freedom: Student's t of one
cell alone finds almost nothing. The cells of a study know more together. All times are logarithms: they
scatter in proportion to their length, and no interval reaches below zero.

1. A cell's variance s2 over its n launches, with d = n - 1 degrees. For differences within a launch, what
   all of its cells share is taken out first: the median over the other cells of (value - mean of its cell),
   in which steady cells count for more (`steadiness`), as else noisy ones would make them noisy.
2. The prior of G cells: e = ln s2 - psi(d/2) + ln(d/2) scatters by psi'(d/2) even if all cells have one true
   variance. What it scatters more gives the prior's degrees d0 (2 psi'^-1 of it), its mean the prior's
   variance. From few cells that excess is hardly known: eight cells of a typical machine's are added
   (PRIOR_CELLS).
3. A cell that scatters far more than the prior has it keeps its own variance, and the prior is made of the
others.
4. The moderated variance is (d0 s02 + d s2) / (d0 + d), with min(d0 + d, G d) degrees.
5. A cell's time also scatters by what all cells of a launch share: the variance of the launches' times is
   added, with its own n - 1 degrees. A launch is added to it that scatters as the cells do
   (LAUNCHES_ADDED). Satterthwaite's degrees of the sum take both for independent. They are not: the same
   values of the same launches gave them, and a launch far out makes both large. So the sum has at most the
   degrees of the better known one.

Sources: G. K. Smyth, "Linear models and empirical Bayes methods for assessing differential expression in
microarray experiments", Statistical Applications in Genetics and Molecular Biology 3:3 (2004); B. Phipson
et al., "Robust hyperparameter estimation protects against hypervariable genes", Annals of Applied
Statistics 10 (2016). Differs: the few cells of a study make step 2's typical cells necessary, medians take
out what a launch's cells share, and step 5 adds it again. What it gives, by simulation:
docs/background/statistics.md.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]

PRIOR_CELLS = 8  # cells of a typical machine that are added to those of a study when the prior is made
TYPICAL_EXCESS = 0.65  # variance of ln s2 of these beyond that of samples of one true variance
TYPICAL_EXCESS_OF_TWO = 1.6  # the same from two launches, which show less
MOST_DEGREES_OF_TWO = 5.0  # the prior's, from two launches
CERTAIN = 1e4  # the prior's degrees where variances scatter no more than those of one true variance
MEDIAN_OF_OTHERS = 1.35  # a median of k values has this many k-ths of one's variance, 1.57 of many

LAUNCHES_ADDED = 1
"""Launches that are added to those of a study, which scatter together as much as a cell of it does by itself:
two or three launches may by chance agree in what their cells share."""

SHARED_OF_FEW = 0.5
"""The part of what two cells of a small family know of their variance that both know, by what they share.
With half as much, intervals of two launches held 90 to 92%."""

FEWEST_FOR_MEDIAN = 5
"""Cells from which the median of the others stands for what a launch's cells share; of fewer it is the
mean."""

SMALLEST_RATIO = 1e-5  # of a variance to the median one: cells that hardly differ are no evidence
ROUNDING = 1e-18  # a variance of logarithms that is no scatter
STEADIEST = 0.1  # the part of the other cells, the nearest ones, by which a cell is judged to be steady
OUTLIER_LEVEL = 0.01  # family-wise, for a variance that is not of the prior

MOST_OUTLIERS = 3


@dataclass(frozen=True)
class Variances:
    """Variances of the cells of a family: of the logarithm of one launch's median."""

    values: FloatArray  # [cell]; NaN for a cell with one launch
    degrees: FloatArray  # of freedom, [cell]; 0 likewise
    num_launches: int  # that most cells have


def t_quantile(degrees: FloatArray | float, probability: FloatArray | float) -> FloatArray:
    """Quantiles of Student's t, of the shape that both arguments broadcast to."""
    from scipy import special  # scipy.stats has the same by name, but takes seconds to import

    return np.asarray(special.stdtrit(degrees, probability), dtype=np.float64)


def inflated(variances: Variances, factors: FloatArray | float) -> Variances:
    return replace(variances, values=variances.values * factors)


def own_variances(logs: FloatArray) -> Variances:
    """Each cell's variance over its launches, [cell, launch] with NaN where there is none, by itself."""
    known = np.isfinite(logs)
    count = known.sum(axis=1)
    deviations = np.where(known, logs - means(logs)[:, None], 0.0)
    degrees = np.maximum(count - 1, 0).astype(np.float64)
    values = np.where(degrees > 0, (deviations**2).sum(axis=1) / np.maximum(degrees, 1), np.nan)
    return Variances(values, degrees, int(np.median(count)))


def variances_within_launches(logs: FloatArray) -> Variances:
    """Of [cell, launch], without what the cells of a launch share: for differences between cells, and between
    folders. A single cell has nothing to differ from: 0 degrees."""
    deviations, num_cells = logs - means(logs)[:, None], len(logs)
    if num_cells < 2:
        return Variances(np.full(num_cells, np.nan), np.zeros(num_cells), 1)
    correction: FloatArray | float
    if num_cells < FEWEST_FOR_MEDIAN:
        alone = deviations - np.nanmean(deviations, axis=0)
        correction = (num_cells - 1) / num_cells
    else:
        weights = steadiness(logs)
        alone = deviations - medians_of_others(deviations, weights)
        others = np.maximum((weights**2).sum() - weights**2, 1e-100)
        correction = 1 + MEDIAN_OF_OTHERS * np.minimum(1 / (num_cells - 1), weights**2 / others)
    alone_variances = own_variances(alone)
    return Variances(
        alone_variances.values / correction,
        alone_variances.degrees * (num_cells - 1) / num_cells,
        alone_variances.num_launches,
    )


def steadiness(logs: FloatArray) -> FloatArray:
    """Each cell's weight in what the cells of a launch share, [cell]: 1 over the standard deviation of its
    differences from the other cells with which it scatters least (STEADIEST). A cell of one launch counts for
    nothing."""
    differences = logs[:, None, :] - logs[None, :, :]
    counts = np.isfinite(differences).sum(axis=2)
    deviations = np.where(
        np.isfinite(differences),
        differences - (np.nansum(differences, axis=2) / np.maximum(counts, 1))[..., None],
        0.0,
    )
    squares = np.where(counts > 1, (deviations**2).sum(axis=2) / np.maximum(counts - 1, 1), np.nan)
    np.fill_diagonal(squares, np.nan)
    known = np.isfinite(squares).any(axis=1)
    if not known.any():
        return np.ones(len(logs))
    values = np.full(len(logs), np.nan)
    others = squares[~np.eye(len(logs), dtype=bool)].reshape(len(logs), -1)
    # The same to the last digit, and of all cells at once where no pair lacks a common launch.
    quantile = np.quantile if np.isfinite(others).all() else np.nanquantile
    values[known] = quantile(others[known], STEADIEST, axis=1)
    smallest = SMALLEST_RATIO * float(np.median(values[known]))
    weights = np.zeros(len(logs))
    weights[known] = np.sqrt(smallest / np.maximum(values[known], smallest)) if smallest else 1.0
    return weights


def _median_of_ordered(values: FloatArray, weights: FloatArray) -> float:
    """The value with half of the weight below it, interpolated."""
    return float(np.interp(weights.sum() / 2, np.cumsum(weights) - weights / 2, values))


def medians_of_others(values: FloatArray, weights: FloatArray | None = None) -> FloatArray:
    """For each value, the (weighted) median of the others in its column, [cell, column]; NaN is ignored."""
    result = np.full(values.shape, np.nan)
    weights = np.ones(len(values)) if weights is None else weights
    for column, column_values in enumerate(values.T):
        known = np.isfinite(column_values)
        order = np.argsort(column_values, kind="stable")
        order = order[(known & (weights > 0))[order]]
        sorted_values, sorted_weights = column_values[order], weights[order]
        for cell in np.flatnonzero(known):
            others = order != cell
            result[cell, column] = (
                _median_of_ordered(sorted_values[others], sorted_weights[others]) if others.any() else 0.0
            )
    return result


def moderated(variances: Variances, smallest: FloatArray | float = 0.0) -> Variances:
    """Steps 2 to 4: each cell's variance, combined with that of its family; NaN and 0 degrees for all where
    no cell has two launches. One of 0 degrees gets the prior's, with its degrees less one launch's.
    `smallest`: what the timer cannot tell from zero, [cell]: it takes the place of a variance of zero."""
    degrees, known = variances.degrees, variances.degrees > 0
    if not known.any():
        return variances
    values = np.where(variances.values > 0, variances.values, np.maximum(smallest, ROUNDING))
    if known.sum() < 2:
        return replace(variances, values=np.where(known, values, np.nan))
    values = np.maximum(values, SMALLEST_RATIO * float(np.median(values[known])))
    others, (prior, prior_degrees) = _without_outliers(replace(variances, values=values), known)
    result = np.where(known, (prior_degrees * prior + degrees * values) / (prior_degrees + degrees), np.nan)
    total = np.minimum(prior_degrees + degrees, float(known.sum()) * degrees)
    is_outlier = known & ~others
    all_values, all_degrees = np.where(is_outlier, values, result), np.where(is_outlier, degrees, total)
    return replace(variances, values=all_values, degrees=all_degrees)


@dataclass(frozen=True)
class Scatter:
    within: Variances  # of differences between cells of a launch: without what these share
    total: Variances  # of a cell's time, and of its difference from another launch's


def scatter(families: Sequence[FloatArray], smallest: Sequence[FloatArray] | None = None) -> list[Scatter]:
    """Steps 1 to 5 of a study's cells: of each world size, logarithms of the launches' times, [cell, launch],
    NaN where a cell has no such launch, and the variance that the timer cannot tell from zero, [cell].
    Families of fewer than FEWEST_FOR_MEDIAN cells have one prior together."""
    floors = [np.zeros(len(logs)) for logs in families] if smallest is None else smallest
    scatters: dict[int, Scatter] = {}
    few = [index for index, logs in enumerate(families) if len(logs) < FEWEST_FOR_MEDIAN]
    for index in sorted(set(range(len(families))) - set(few)):
        logs = families[index]
        within = moderated(variances_within_launches(logs), floors[index])
        common = common_variance(logs, within)
        total = with_common(within, common)  # step 5: what both know counts once
        degrees = np.minimum(total.degrees, np.maximum(within.degrees, common[1]))
        scatters[index] = Scatter(within, replace(total, degrees=degrees))
    if few:
        floor = np.concatenate([floors[index] for index in few])
        totals = moderated(_joined([own_variances(families[index]) for index in few]), floor)
        totals = _with_shared(totals, [families[index] for index in few])
        differences = moderated(_joined([variances_within_launches(families[index]) for index in few]), floor)
        ends = np.cumsum([len(families[index]) for index in few])
        for index, stop in zip(few, ends, strict=True):
            rows = slice(stop - len(families[index]), stop)
            scatters[index] = Scatter(_part(differences, rows), _part(totals, rows))
    return [scatters[index] for index in range(len(families))]


def _with_shared(totals: Variances, families: Sequence[FloatArray]) -> Variances:
    """For cells of small families: the degrees of freedom that cells with nothing in common would have."""
    independent = sum(len(logs) / (1 + (len(logs) - 1) * SHARED_OF_FEW) for logs in families)
    own_degrees = np.concatenate([own_variances(logs).degrees for logs in families])
    return replace(totals, degrees=np.minimum(totals.degrees, independent * own_degrees))


def _joined(variances: Sequence[Variances]) -> Variances:
    values, degrees = (
        np.concatenate([getattr(part, name) for part in variances]) for name in ("values", "degrees")
    )
    return Variances(values, degrees, int(np.median([part.num_launches for part in variances])))


def _part(variances: Variances, rows: slice) -> Variances:
    return replace(variances, values=variances.values[rows], degrees=variances.degrees[rows])


def common_variance(logs: FloatArray, within: Variances | None = None) -> tuple[float, int]:
    """The variance over launches of what the cells of a launch share, [cell, launch], with its degrees of
    freedom; the median of the cells' own variances `within` counts as a further launch."""
    known = logs[:, np.isfinite(logs).any(axis=0)]
    medians = np.nanmedian(known - means(known)[:, None], axis=0)
    degrees = len(medians) - 1
    if degrees < 1:
        return 0.0, 0
    variance = float(medians.var(ddof=1))
    if within is None or not (within.degrees > 0).any():
        return variance, degrees
    has_own = within.degrees > 0
    # Of cells of very unequal noise nearer to the steady ones: what all share is no more than these show.
    own = np.maximum(within.values[has_own], ROUNDING)
    own.sort()
    typical = _median_of_ordered(own, own**-0.25)
    return (degrees * variance + LAUNCHES_ADDED * typical) / (degrees + LAUNCHES_ADDED), degrees


def with_common(within: Variances, common: tuple[float, float]) -> Variances:
    """The sum of a cell's variance and a common one that was found apart from it."""
    shared, shared_degrees = common
    if shared_degrees == 0:
        return within
    known, total = within.degrees > 0, within.values + shared
    below = within.values**2 / np.where(known, within.degrees, 1.0) + shared**2 / shared_degrees
    return replace(within, values=total, degrees=np.where(known, total**2 / below, 0.0))


_Prior = tuple[float, float]  # value and degrees


def _without_outliers(variances: Variances, known: NDArray[np.bool_]) -> tuple[NDArray[np.bool_], _Prior]:
    """The cells from which the prior is made, and the prior (step 3)."""
    from scipy import special

    values, degrees = variances.values, variances.degrees
    ordinary, num_cells = known.copy(), int(known.sum())
    for _ in range(min(num_cells // 4, MOST_OUTLIERS)):
        largest = int(np.argmax(np.where(ordinary, values, -np.inf)))
        others = ordinary.copy()
        others[largest] = False
        prior, prior_degrees = _prior(variances, others)
        probability = special.fdtrc(degrees[largest], prior_degrees, values[largest] / prior)
        if num_cells * probability >= OUTLIER_LEVEL:
            break
        ordinary = others
    return ordinary, _prior(variances, ordinary)


def _prior(variances: Variances, chosen: NDArray[np.bool_]) -> _Prior:
    """The prior from some of the cells (step 2)."""
    from scipy import special

    values, degrees = variances.values[chosen], variances.degrees[chosen]
    half = degrees / 2
    expected = float(np.mean(special.polygamma(1, half)))
    shifted = np.log(values) - special.psi(half) + np.log(half)
    is_of_two = variances.num_launches <= 2
    typical = TYPICAL_EXCESS_OF_TWO if is_of_two else TYPICAL_EXCESS
    mean = float(shifted.mean())
    squares = float(((shifted - mean) ** 2).sum()) + PRIOR_CELLS * (expected + typical)
    excess = squares / (len(values) - 1 + PRIOR_CELLS) - expected
    if excess <= 0:
        return float(np.average(values, weights=degrees)), CERTAIN
    prior_degrees = min(2 * _inverse_trigamma(excess), MOST_DEGREES_OF_TWO if is_of_two else CERTAIN)
    half_prior = prior_degrees / 2
    return math.exp(mean + float(special.psi(half_prior)) - math.log(half_prior)), prior_degrees


def _inverse_trigamma(value: float) -> float:
    """Newton's method on 1 / psi', as in Smyth's appendix; `value` is positive."""
    from scipy import special

    if value > 1e7:
        return 1 / math.sqrt(value)
    if value < 1e-6:
        return 1 / value
    result = 0.5 + 1 / value
    for _ in range(50):
        trigamma = float(special.polygamma(1, result))
        step = trigamma * (1 - trigamma / value) / float(special.polygamma(2, result))
        result += step
        if -step / result < 1e-8:
            break
    return result


def means(logs: FloatArray) -> FloatArray:
    """Means over the launches that a cell has, [cell]."""
    known = np.isfinite(logs)
    result: FloatArray = np.where(known, logs, 0.0).sum(axis=1) / np.maximum(known.sum(axis=1), 1)
    return result

"""Steps to a target by batch: those of trainings, and the curve S(B) = S_min (1 + B_crit / B) through them.

Method and sources: docs/background/learning.md.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from scaling.analysis import columns
from scaling.analysis.columns import Row, by_key
from scaling.analysis.learning import BITS_TARGET, index_of_target
from scaling.analysis.moderated import t_quantile
from scaling.analysis.samples import CellResult, Floats, TrainingSamples
from scaling.measure.statistics import CONFIDENCE

FEWEST_BATCHES = 3
SMALLEST = -30.0  # logarithm of the variance that stands for no lack of fit
RULES = {"fixed": 0.0, "sqrt": 0.5, "linear": 1.0}  # learning rate ~ batch to this power
Reached = tuple[float, float]  # steps to the target, and the variance of their logarithm


class Fitted(NamedTuple):
    """A positive value and its 95% interval; 0 or inf where an end is open."""

    value: float
    low: float
    high: float


def widened(logs: Fitted, *halves: float) -> Fitted:
    """From logarithms to values, with independent half widths added to both sides."""
    low, high = (math.hypot(end - logs.value, *halves) for end in (logs.low, logs.high))
    return Fitted(*(math.exp(min(end, 700.0)) for end in (logs.value, logs.value - low, logs.value + high)))


@dataclass(frozen=True)
class BatchSteps:
    """A batch's trainings at its best learning rate."""

    batch: int
    rate: float  # the best of the rates
    rates: tuple[float, ...]  # that were trained at this batch, ascending
    steps: tuple[float, ...]  # to the target, one a training
    evaluation: float  # variance of their logarithm from evaluating once an epoch
    rows: tuple[Row, ...] = ()

    @property
    def logs(self) -> Floats:
        return np.log(np.array(self.steps))

    def values(self) -> dict[str, Any]:
        found: dict[str, Any] = {"steps": float(np.exp(self.logs.mean())), "num_seeds": len(self.steps)}
        found["is_at_end"] = self.rate in (self.rates[0], self.rates[-1])
        return {**columns.pick(vars(self), "batch", "rate", "rates"), **found}


@dataclass(frozen=True)
class StepsFit:
    """S(B) = S_min (1 + B_crit / B), with every curve that the trainings allow."""

    log_critical: Floats  # B_crit of the curves, [curve]
    log_least: Floats  # their best S_min
    squares: Floats  # their sums of squares over the variance, less the least of all
    weight: float  # by how much a curve's squares rise with (log S_min - best)^2
    quantile: float  # of Student's t
    new_variance: float  # of the log steps of one more training: its seed, evaluation and lack of fit
    misfit: float  # the part of it that is lack of fit
    own: Mapping[int, tuple[float, float]]
    """Batch -> the mean of its trainings' log steps, and that mean's variance; none of one seed each."""

    @cached_property
    def _inside(self) -> NDArray[np.bool_]:
        return self.squares <= self.quantile**2

    def _best(self, values: Floats) -> float:
        return float(values[np.argmin(self.squares)])

    def _range(self, values: Floats, slope: float = 1.0) -> Fitted:
        """Of slope log S_min + values, over all curves that are allowed."""
        slack = abs(slope) * np.sqrt((self.quantile**2 - self.squares[self._inside]) / self.weight)
        logs = slope * self.log_least + values
        inside = logs[self._inside]
        return Fitted(self._best(logs), float((inside - slack).min()), float((inside + slack).max()))

    def _shape(self, batch: int) -> Floats:
        return np.log1p(np.exp(self.log_critical) / batch)

    @property
    def critical(self) -> Fitted:
        """B_crit in samples."""
        allowed = np.exp(self.log_critical[self._inside])
        low = 0.0 if self._inside[0] else float(allowed[0])
        high = math.inf if self._inside[-1] else float(allowed[-1])
        return Fitted(self._best(np.exp(self.log_critical)), low, high)

    @property
    def least(self) -> Fitted:
        """S_min in steps."""
        found = widened(self._range(np.zeros_like(self.squares)))
        return found._replace(low=0.0) if self._inside[-1] else found

    def _known(self, batch: int) -> tuple[float, Floats, float]:
        """Of the batch's log steps a + b log S_min: b, a of each curve, and the variance of lack of fit left.

        A trained batch is as far off each curve as its own trainings say, weighted by both variances.
        """
        mean, variance = self.own.get(batch, (0.0, math.inf))
        share = self.misfit / (self.misfit + variance)
        left = self.misfit * (1 - share)
        return 1 - share, share * mean + (1 - share) * self._shape(batch), left

    def steps(self, batch: int) -> Fitted:
        """Of one more training at that batch, trained or not."""
        slope, values, left = self._known(batch)
        half = self.quantile * math.sqrt(self.new_variance - self.misfit + left)
        return widened(self._range(values, slope), half)

    def log_ratio(self, first: int, second: int) -> Fitted:
        """The logarithm of S(second) / S(first), whose curve is the same."""
        (slope, values, left), (other, others, of_other) = self._known(first), self._known(second)
        found = self._range(others - values, other - slope)
        half = 0.0 if first == second else self.quantile * math.sqrt(left + of_other)
        return Fitted(found.value, found.low - half, found.high + half)


def fit_steps(trained: Sequence[BatchSteps]) -> StepsFit | None:
    """The curve of steps by batch; None with fewer than FEWEST_BATCHES batches."""
    from scipy.optimize import brentq

    if len(trained) < FEWEST_BATCHES:
        return None
    described = [(one.batch, one.logs.mean(), one.evaluation, len(one.steps)) for one in trained]
    batches, logs, evaluation, counts = np.array(described, dtype=float).T
    of_seeds, of_batches = int(counts.sum()) - len(trained), len(trained) - 2
    squares_of_seeds = sum(float(((one.logs - one.logs.mean()) ** 2).sum()) for one in trained)
    seeds = squares_of_seeds / max(of_seeds, 1)
    # Of one seed each the scatter over seeds is part of the lack of fit, and all batches count the same.
    variances = seeds / counts + (evaluation if of_seeds else evaluation.mean())
    log_critical = np.linspace(math.log(batches.min()) - 12, math.log(batches.max()) + 12, 6001)
    residuals = logs - np.log1p(np.exp(log_critical)[:, None] / batches)

    def curves(misfit: float) -> tuple[Floats, Floats, float]:
        weights = 1 / (variances + misfit)
        least = (residuals * weights).sum(axis=1) / weights.sum()
        return ((residuals - least[:, None]) ** 2 * weights).sum(axis=1), least, float(weights.sum())

    def excess(log_misfit: float) -> float:
        return float(curves(math.exp(log_misfit))[0].min()) - of_batches

    misfit = math.exp(SMALLEST if excess(SMALLEST) <= 0 else brentq(excess, SMALLEST, 9.0))
    squares, least, weight = curves(misfit)
    quantile = float(t_quantile(of_batches, (1 + CONFIDENCE) / 2))
    new_variance = seeds + float(evaluation.mean()) + misfit
    own = dict(zip((one.batch for one in trained), zip(logs, variances, strict=True), strict=True))
    return StepsFit(
        log_critical,
        least,
        squares - squares.min(),
        weight,
        quantile,
        new_variance,
        misfit,
        own if of_seeds else {},
    )


def steps_to_target(training: TrainingSamples, cell: Mapping[str, Any]) -> Reached | None:
    """Steps to the target, and the variance of their logarithm; None where it is not reached, or unknown."""
    index = index_of_target(training, cell)
    if index is None or not np.isfinite(training.steps[: index + 1]).all():
        return None
    bits = cell.get(BITS_TARGET)
    values = training.test_accuracy if bits is None else training.test_loss
    goal = cell["target_accuracy"] if bits is None else bits * math.log(2)
    width, share = float(training.steps[index]), 0.5
    if index and np.isfinite(values[index - 1]):
        share = float((goal - values[index - 1]) / (values[index] - values[index - 1]))
    steps = float(training.steps[:index].sum()) + share * width
    return (steps, (width / steps) ** 2 / 12) if steps > 0 else None


def best_rate(batch: int, by_rate: Mapping[float, Sequence[Reached | None]]) -> BatchSteps | None:
    """Of the rates at which all trainings reach the target that with the fewest mean steps."""
    found = {rate: np.array(all_, float) for rate, all_ in by_rate.items() if all_ and None not in all_}
    if not found:
        return None
    rate = min(found, key=lambda rate: found[rate][:, 0].mean())
    steps, variances = found[rate].T
    return BatchSteps(batch, rate, tuple(sorted(by_rate)), tuple(steps), float(variances.mean()))


def _rate(row: Row) -> float:
    """The peak learning rate at the row's batch, to six digits."""
    growth = row["global_batch"] / (row["base_batch"] or row["global_batch"])
    return float(f"{row['learning_rate'] * growth ** RULES[row['learning_rate_rule'] or 'fixed']:.6g}")


def trained_at_best(rows: Sequence[Row], cells: Mapping[str, CellResult]) -> BatchSteps | None:
    """Of the trainings at one batch those of the best rate; None where one fails or misses at each rate."""
    by_rate = by_key(rows, _rate)
    reached: dict[float, list[Reached | None]] = {}
    for rate, same in by_rate.items():
        reached[rate] = [None for row in same if row["state"] == "failed"]
        # A seed on several numbers of workers, or repeated, is one training as far as its steps go.
        for of_seed in by_key(same, lambda row: row["seed"]).values():
            runs = [cells[row["cell_id"]] for row in of_seed]
            steps = [steps_to_target(training, run.cell) for run in runs for training in run.trainings]
            if None in steps:
                reached[rate].append(None)
            elif steps:
                reached[rate].append(tuple(np.mean(np.array(steps, float), axis=0)))
    best = best_rate(rows[0]["global_batch"], reached)
    return best and replace(best, rows=tuple(by_rate[best.rate]))


def rate_rule(trained: Sequence[BatchSteps]) -> str | None:
    """The only rule that is within half a step of each batch's grid, if there is one; the ends are open."""
    fitting = []
    for name, power in RULES.items():
        lowest, highest = -math.inf, math.inf
        for one in trained:
            place, own = one.rates.index(one.rate), math.log(one.rate) - power * math.log(one.batch)
            if place:
                lowest = max(lowest, own + math.log(one.rates[place - 1] / one.rate) / 2)
            if place < len(one.rates) - 1:
                highest = min(highest, own + math.log(one.rates[place + 1] / one.rate) / 2)
        fitting += [name] if lowest <= highest else []
    return fitting[0] if len(fitting) == 1 else None

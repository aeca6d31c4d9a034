"""Seconds to a target by workers and batch: the steps that trainings took, times the time of a step.

Trainings belong together where they differ only in batch, learning rate and its rule, workers, exact
exchange, seed, and settings that change the time alone.

1. A training's steps lie in the epoch that first shows the target: they are interpolated from the evaluation
   before (half of the first epoch), with the variance of any place in the epoch, width^2 / 12.
2. Of each batch the rate with the fewest mean steps counts, of rates at which all seeds reach the target.
3. S(B) = S_min (1 + B_crit / B) (arXiv 1812.06162, 1811.03600) is fitted to log S by least squares, weighted
   by the variance of seeds and evaluation. To it comes the lack of fit, if any, with which the batches are as
   far from the curve as expected (R. C. Paule, J. Mandel, J. Res. Natl. Bur. Stand. 87, 1982).
4. Intervals are of all curves whose sum of squares is within t^2 of the least; t has two degrees of freedom
   less than there are batches. An end is open (0 or inf) where the batches show no plateau, or nothing else.
5. Seconds are iteration_s x S(B); lossy exchanges have their own steps, trained at that batch on as many
   workers. Evaluation and the rest of the epoch that reaches the target are not counted.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from operator import itemgetter
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from scaling.analysis import columns
from scaling.analysis.columns import Row, by_key
from scaling.analysis.decisions import TIE_RATIO
from scaling.analysis.findings import Finding
from scaling.analysis.learning import BITS_TARGET, half_widths_of_time, index_of_target
from scaling.analysis.moderated import t_quantile
from scaling.analysis.objectives import front
from scaling.analysis.samples import CellResult, Floats, TrainingSamples
from scaling.analysis.seed_noise import is_lossy
from scaling.axes import Role, Shared, axis, with_columns
from scaling.measure.statistics import CONFIDENCE

FEWEST_BATCHES = 3
NEARLY_LEAST = 0.1  # at B_crit over it, the steps are above S_min by this part: no more to save
SMALLEST = -30.0  # logarithm of the variance that stands for no lack of fit
RULES = {"fixed": 0.0, "sqrt": 0.5, "linear": 1.0}  # learning rate ~ batch to this power
_FREE = ("scaling", "learning_rate", "learning_rate_rule", "base_batch")
_FAMILY = [one.key for one in with_columns(role=Role.GIVEN | Role.RECIPE) if one.key not in _FREE]
_TIMED = [one.key for one in with_columns(Shared.TIMED) if one.key in _FAMILY]
_own = itemgetter("global_batch", "world_size", "aggregator", "wire", "sync_every", "outer_update")


class Fitted(NamedTuple):
    """A positive value and its 95% interval; 0 or inf where an end is open."""

    value: float
    low: float
    high: float


def _widened(logs: Fitted, *halves: float) -> Fitted:
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
        found |= {"rates": self.rates, "is_at_end": self.rate in (self.rates[0], self.rates[-1])}
        return {"batch": self.batch, "rate": self.rate, **found}


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

    @cached_property
    def _best(self) -> int:
        return int(np.argmin(self.squares))

    @cached_property
    def _inside(self) -> NDArray[np.bool_]:
        return self.squares <= self.quantile**2

    def _range(self, values: Floats) -> Fitted:
        """Of log S_min + values, over all curves that are allowed."""
        slack = np.sqrt((self.quantile**2 - self.squares[self._inside]) / self.weight)
        logs = self.log_least + values
        ends = logs[self._inside] - slack, logs[self._inside] + slack
        return Fitted(float(logs[self._best]), float(ends[0].min()), float(ends[1].max()))

    def _shape(self, batch: float) -> Floats:
        return np.log1p(np.exp(self.log_critical) / batch)

    @property
    def critical(self) -> Fitted:
        """B_crit in samples."""
        allowed = np.exp(self.log_critical[self._inside])
        low = 0.0 if self._inside[0] else float(allowed[0])
        high = math.inf if self._inside[-1] else float(allowed[-1])
        return Fitted(float(np.exp(self.log_critical[self._best])), low, high)

    @property
    def least(self) -> Fitted:
        """S_min in steps."""
        found = _widened(self._range(np.zeros_like(self.squares)))
        return found._replace(low=0.0) if self._inside[-1] else found

    def steps(self, batch: float) -> Fitted:
        """Of one more training at that batch, trained or not."""
        return _widened(self._range(self._shape(batch)), self.quantile * math.sqrt(self.new_variance))

    def log_ratio(self, first: float, second: float) -> Fitted:
        """The logarithm of S(second) / S(first), whose curve is the same."""
        shapes = self._shape(second) - self._shape(first)
        allowed = shapes[self._inside]
        half = 0.0 if first == second else self.quantile * math.sqrt(2 * self.misfit)
        return Fitted(float(shapes[self._best]), float(allowed.min()) - half, float(allowed.max()) + half)


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
    return StepsFit(log_critical, least, squares - squares.min(), weight, quantile, new_variance, misfit)


def steps_to_target(training: TrainingSamples, cell: Mapping[str, Any]) -> tuple[float, float] | None:
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


def _rate(row: Row) -> float:
    """The peak learning rate at the row's batch, to six digits."""
    growth = row["global_batch"] / (row["base_batch"] or row["global_batch"])
    return float(f"{row['learning_rate'] * growth ** RULES[row['learning_rate_rule'] or 'fixed']:.6g}")


def best_rate(rows: Sequence[Row], cells: Mapping[str, CellResult]) -> BatchSteps | None:
    """Of the trainings at one batch those of the best rate; None where one fails or misses at each rate."""
    by_rate, found = by_key(rows, _rate), {}
    for rate, same in by_rate.items():
        runs = [cells[row["cell_id"]] for row in same]
        reached = [steps_to_target(training, run.cell) for run in runs for training in run.trainings]
        if reached and None not in reached and not any(row["state"] == "failed" for row in same):
            found[rate] = np.array(reached, dtype=float)
    if not found:
        return None
    rate = min(found, key=lambda rate: found[rate][:, 0].mean())
    (steps, variances), own, rates = found[rate].T, tuple(by_rate[rate]), tuple(sorted(by_rate))
    return BatchSteps(own[0]["global_batch"], rate, rates, tuple(steps), float(variances.mean()), own)


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


@dataclass(frozen=True)
class WorkersAndBatch:
    row: Row  # of the fastest cell with these workers, batch and exchange
    steps: Fitted
    seconds: Fitted
    is_extrapolated: bool  # its batch is outside those trained
    is_own: bool  # the steps are those of a lossy exchange

    @property
    def hours(self) -> float:
        """GPU, or worker, hours."""
        return float(self.row["world_size"] * self.seconds.value / 3600)

    def values(self) -> dict[str, Any]:
        found = {name: self.row[name] for name in ("world_size", "global_batch", "iteration_s", "cell_id")}
        found |= {name: value for name, value in vars(self).items() if name != "row"} | {"hours": self.hours}
        unit = columns.unit_of_workers(self.row)
        return {**found, "exchange": columns.with_local_updates(self.row), "unit": unit}


@dataclass(frozen=True)
class LearningPlan:
    """A target, the steps to it by batch, and the seconds of every timed setting."""

    given: Mapping[str, Any]  # model, dataset, device, target_accuracy, target_bits_per_byte, further (texts)
    trained: Sequence[BatchSteps]  # by batch
    missed: Sequence[int]  # batches at which every rate has a training that missed the target
    fit: StepsFit | None
    settings: Sequence[WorkersAndBatch]  # the fastest first
    not_trained: Sequence[str]  # lossy settings that were timed, without a training of their own
    num_large: int = 0  # timed cells whose memory is unknown or above the most
    num_shared: int = 0  # timed cells whose workers share GPUs
    unfinished: Sequence[int] = ()  # batches with a training that failed or has not ended

    @property
    def front(self) -> list[WorkersAndBatch]:
        """Those that no other one beats in seconds and in hours, the fewest hours first."""
        return front(self.settings, lambda one: one.hours, lambda one: one.seconds.value, TIE_RATIO)

    @property
    def knee(self) -> WorkersAndBatch:
        """Of the front the smallest product: beyond it, 1% less time costs more than 1% more hours."""
        return min(self.front, key=lambda one: one.hours * one.seconds.value)

    @property
    def by_workers(self) -> dict[int, WorkersAndBatch]:
        """Number of workers -> the fastest."""
        sizes = by_key(self.settings, lambda one: int(one.row["world_size"]))
        return {size: sizes[size][0] for size in sorted(sizes)}

    def times_faster(self, one: WorkersAndBatch, base: WorkersAndBatch) -> Fitted:
        """The base's seconds over those of the other; steps of exact exchanges are of one curve."""
        value = math.log(base.seconds.value / one.seconds.value)
        if self.fit is None or one.is_own or base.is_own:
            halves = [math.log(each.seconds.high / each.seconds.value) for each in (one, base)]
            return _widened(Fitted(value, value, value), *halves)
        ratio = self.fit.log_ratio(one.row["global_batch"], base.row["global_batch"])
        logs = Fitted(*(value + end - ratio.value for end in ratio))
        return _widened(logs, *(math.hypot(*half_widths_of_time(each.row)) for each in (one, base)))

    def findings(self) -> Iterator[Finding]:
        rows = [row for one in self.trained for row in one.rows]
        ids = tuple(row["cell_id"] for row in rows)
        is_divided = any(row["preconditioned_noise_scale_low"] for row in rows)
        scale = "preconditioned_noise_scale" if is_divided else "noise_scale"
        known = [row for row in rows if row[f"{scale}_low"]]
        lows = [row[f"{scale}_low"] for row in known]
        highs = [row[f"{scale}_high"] or math.inf for row in known]
        values: dict[str, Any] = {
            "given": self.given,
            "batches": [one.values() for one in self.trained],
            "missed": self.missed,
            "unfinished": self.unfinished,
            "fewest": FEWEST_BATCHES,
            "rule": rate_rule(self.trained),
            "noise": {"low": min(lows), "high": max(highs), "is_divided": is_divided} if known else None,
        }
        if self.fit is None:
            yield Finding("critical_batch_unknown", ids, values)
            return
        critical = self.fit.critical
        values |= {"critical": critical, "least": self.fit.least, "nearly": NEARLY_LEAST}
        values |= {"enough": critical.high / NEARLY_LEAST, "misfit": math.sqrt(self.fit.misfit)}
        values["differs"] = bool(known) and (critical.low > max(highs) or critical.high < min(lows))
        yield Finding("critical_batch", ids, values)
        names = ("given", "not_trained", "num_large", "num_shared")
        left_out = {name: getattr(self, name) for name in names}
        if not self.settings:
            yield Finding("seconds_not_timed", ids, left_out)
            return
        base, *others = self.by_workers.values()
        values = {
            **left_out,
            "best": self.settings[0].values(),
            "base": base.values(),
            "others": [{**one.values(), "times": self.times_faster(one, base)} for one in others],
            "front": [one.values() for one in self.front],
            "knee": self.knee.values(),
            "lacks": any(_augmentation(one.row) != _augmentation(rows[0]) for one in self.settings),
        }
        yield Finding("seconds_by_workers", tuple(one.row["cell_id"] for one in self.settings), values)


def learning_plans(
    rows: Sequence[Row], cells: Mapping[str, CellResult], max_memory_bytes: float = math.inf
) -> list[LearningPlan]:
    """One plan for each target of exact trainings, in the summary's order."""
    usable = [row for row in rows if not columns.has_no_model(row) and not columns.is_aa_replicate(row)]
    usable = [row for row in usable if row["world_size"] == 1 or not columns.is_control_arm(row)]
    usable = [row for row in usable if columns.is_unchanged(row)]
    timed = [row for row in usable if row["kind"] == "iteration" and row["iteration_s"]]

    def loses(row: Row) -> bool:
        return bool(row["world_size"] > 1 and is_lossy(cells[row["cell_id"]]))

    known = [row for row in usable if row["kind"] != "iteration" and (row["learning_rate"] or 0) > 0]
    # The row of a training that failed has no target.
    known = [{**row, "target_accuracy": cells[row["cell_id"]].cell.get("target_accuracy")} for row in known]
    aimed = [row for row in known if row["target_accuracy"] or row[BITS_TARGET]]
    families = by_key(aimed, lambda row: (*(row[name] for name in _FAMILY), row["target_accuracy"]))
    names = ("model", "dataset", "device", "target_accuracy", BITS_TARGET)
    values = {name: {family[0][name] for family in families.values()} for name in _FAMILY}
    differing = [name for name in _FAMILY if name not in names and len(values[name]) > 1]
    plans = []
    for family in families.values():
        ended = [row for row in family if row["repeats"] or row["state"] == "failed"]
        first, by_loss = family[0], by_key(ended, loses)
        by_batch = sorted(by_key(by_loss.get(False, []), lambda row: int(row["global_batch"])).items())
        found = {batch: best_rate(same, cells) for batch, same in by_batch}
        trained = [best for best in found.values() if best is not None]
        lossy = by_key(by_loss.get(True, []), _own)
        fit, own = fit_steps(trained), {key: best_rate(same, cells) for key, same in lossy.items()}
        further = [axis(name).text(first[name]) for name in differing if first[name] is not None]
        given = {**{name: first[name] for name in names}, "further": further}
        missed = [batch for batch, best in found.items() if best is None]
        settings, not_trained = [], []
        same_step = [row for row in timed if all(row[name] == first[name] for name in _TIMED)]
        augmented = ("none", _augmentation(first))
        same_step = [row for row in same_step if _augmentation(row) in augmented]
        alone = [row for row in same_step if not columns.shares_gpus(row)]
        fitting = [row for row in alone if (row["memory_peak_bytes"] or math.inf) <= max_memory_bytes]
        for key, alike in by_key(fitting if fit else [], _own).items():
            row = min(alike, key=lambda row: (_augmentation(row) != augmented[1], float(row["iteration_s"])))
            steps = own.get(key)
            is_outside = not trained[0].batch <= row["global_batch"] <= trained[-1].batch
            if fit and not loses(row):
                settings.append(_setting(row, fit.steps(row["global_batch"]), is_outside, is_own=False))
            elif fit and steps:
                settings.append(_setting(row, _steps_of(steps, fit), False, is_own=True))
            else:
                name = columns.with_local_updates(row)
                not_trained.append(f"{name} on {columns.workers_of(row)} at batch {row['global_batch']:,}")
        settings.sort(key=lambda one: one.seconds.value)
        unfinished = sorted({int(row["global_batch"]) for row in family if row["state"] != "done"})
        more = (len(alone) - len(fitting), len(same_step) - len(alone), unfinished)
        plans.append(LearningPlan(given, trained, missed, fit, settings, not_trained, *more))
    return [plan for plan in plans if plan.trained or plan.missed]


def _augmentation(row: Row) -> str:
    return row["augmentation"] or "none"


def _setting(row: Row, steps: Fitted, is_extrapolated: bool, *, is_own: bool) -> WorkersAndBatch:
    logs = Fitted(*(math.log(row["iteration_s"] * end) for end in steps))
    seconds = _widened(logs, math.hypot(*half_widths_of_time(row)))
    return WorkersAndBatch(row, steps, seconds, is_extrapolated, is_own)


def _steps_of(trained: BatchSteps, fit: StepsFit) -> Fitted:
    """Of one more training of a lossy exchange, which scatters as the exact ones do."""
    mean = float(trained.logs.mean())
    half = fit.quantile * math.sqrt(fit.new_variance * (1 + 1 / len(trained.steps)))
    return _widened(Fitted(mean, mean, mean), half)

"""Seconds to a target by workers and batch: the steps that trainings took, times the time of a step.

Trainings belong together where they differ only in batch, learning rate and its rule, workers, exact
exchange, seed, and settings that change the time alone. Method and sources: docs/background/learning.md.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
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


Reached = tuple[float, float]  # steps to the target, and the variance of their logarithm


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

    @cached_property
    def _inside(self) -> NDArray[np.bool_]:
        return self.squares <= self.quantile**2

    def _best(self, values: Floats) -> float:
        return float(values[np.argmin(self.squares)])

    def _range(self, values: Floats) -> Fitted:
        """Of log S_min + values, over all curves that are allowed."""
        slack = np.sqrt((self.quantile**2 - self.squares[self._inside]) / self.weight)
        logs = self.log_least + values
        inside = logs[self._inside]
        return Fitted(self._best(logs), float((inside - slack).min()), float((inside + slack).max()))

    def _shape(self, batch: float) -> Floats:
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
        return Fitted(self._best(shapes), float(allowed.min()) - half, float(allowed.max()) + half)


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


def _rate(row: Row) -> float:
    """The peak learning rate at the row's batch, to six digits."""
    growth = row["global_batch"] / (row["base_batch"] or row["global_batch"])
    return float(f"{row['learning_rate'] * growth ** RULES[row['learning_rate_rule'] or 'fixed']:.6g}")


def best_rate(batch: int, by_rate: Mapping[float, Sequence[Reached | None]]) -> BatchSteps | None:
    """Of the rates at which all trainings reach the target that with the fewest mean steps."""
    found = {rate: np.array(all_, float) for rate, all_ in by_rate.items() if all_ and None not in all_}
    if not found:
        return None
    rate = min(found, key=lambda rate: found[rate][:, 0].mean())
    steps, variances = found[rate].T
    return BatchSteps(batch, rate, tuple(sorted(by_rate)), tuple(steps), float(variances.mean()))


def _trained(rows: Sequence[Row], cells: Mapping[str, CellResult]) -> BatchSteps | None:
    """Of the trainings at one batch those of the best rate; None where one fails or misses at each rate."""
    by_rate, reached = by_key(rows, _rate), {}
    for rate, same in by_rate.items():
        runs = [cells[row["cell_id"]] for row in same]
        reached[rate] = [steps_to_target(training, run.cell) for run in runs for training in run.trainings]
        reached[rate] += [None for row in same if row["state"] == "failed"]
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


@dataclass(frozen=True)
class WorkersAndBatch:
    row: Row  # of the fastest cell with these workers, batch and exchange
    steps: Fitted
    is_extrapolated: bool  # its batch is outside those trained
    is_own: bool  # the steps are those of a lossy exchange

    @property
    def seconds(self) -> Fitted:
        logs = Fitted(*(math.log(self.row["iteration_s"] * end) for end in self.steps))
        return _widened(logs, *half_widths_of_time(self.row))

    @property
    def hours(self) -> float:
        """GPU, or worker, hours."""
        return float(self.row["world_size"] * self.seconds.value / 3600)

    @property
    def joules(self) -> float | None:
        """Of all GPUs, where the energy of the timed steps is known."""
        each = self.row["joules_per_sample"]
        return None if each is None else float(each * self.row["global_batch"] * self.steps.value)

    def values(self) -> dict[str, Any]:
        return {
            **columns.pick(self.row, "world_size", "global_batch", "iteration_s", "cell_id"),
            "exchange": columns.with_local_updates(self.row),
            "unit": columns.unit_of_workers(self.row),
            **columns.pick(vars(self), "steps", "is_extrapolated", "is_own"),
            **{name: getattr(self, name) for name in ("seconds", "hours", "joules")},
        }


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
        ids, noise = tuple(row["cell_id"] for row in rows), _noise_scale(rows)
        values: dict[str, Any] = {
            **columns.pick(vars(self), "given", "missed", "unfinished"),
            "batches": [one.values() for one in self.trained],
            "fewest": FEWEST_BATCHES,
            "rule": rate_rule(self.trained),
            "noise": noise,
        }
        if self.fit is None:
            yield Finding("critical_batch_unknown", ids, values)
            return
        critical = self.fit.critical
        values |= {"critical": critical, "least": self.fit.least, "nearly": NEARLY_LEAST}
        values |= {"enough": critical.high / NEARLY_LEAST, "misfit": math.sqrt(self.fit.misfit)}
        values["differs"] = bool(noise) and (critical.low > noise["high"] or critical.high < noise["low"])
        yield Finding("critical_batch", ids, values)
        left_out = columns.pick(vars(self), "given", "not_trained", "num_large", "num_shared")
        if not self.settings:
            yield Finding("seconds_not_timed", ids, left_out)
            return
        base, *others = self.by_workers.values()
        known = [one for one in self.settings if one.joules is not None]
        values = {
            **left_out,
            "best": self.settings[0].values(),
            "base": base.values(),
            "others": [{**one.values(), "times": self.times_faster(one, base)} for one in others],
            "front": [one.values() for one in self.front],
            "knee": self.knee.values(),
            "least_energy": min(known, key=lambda one: one.joules or 0.0).values() if known else None,
            "lacks": any(_augmentation(one.row) != _augmentation(rows[0]) for one in self.settings),
        }
        yield Finding("seconds_by_workers", tuple(one.row["cell_id"] for one in self.settings), values)


def _noise_scale(rows: Sequence[Row]) -> dict[str, Any]:
    """The widest interval of these trainings' noise scales, with Adam of the preconditioned ones; or {}."""
    is_divided = any(row["preconditioned_noise_scale_low"] for row in rows)
    name = "preconditioned_noise_scale" if is_divided else "noise_scale"
    ends = [(row[f"{name}_low"], row[f"{name}_high"] or math.inf) for row in rows if row[f"{name}_low"]]
    if not ends:
        return {}
    lows, highs = zip(*ends, strict=True)
    return {"low": min(lows), "high": max(highs), "is_divided": is_divided}


def learning_plans(
    rows: Sequence[Row], cells: Mapping[str, CellResult], max_memory_bytes: float = math.inf
) -> list[LearningPlan]:
    """One plan for each target of exact trainings, in the summary's order."""
    usable = [row for row in rows if not columns.has_no_model(row) and columns.is_unchanged(row)]
    usable = [row for row in usable if not columns.is_aa_replicate(row)]
    usable = [row for row in usable if row["world_size"] == 1 or not columns.is_control_arm(row)]
    timed = [row for row in usable if row["kind"] == "iteration" and row["iteration_s"]]
    known = [row for row in usable if row["kind"] != "iteration" and (row["learning_rate"] or 0) > 0]
    # The row of a training that failed has no target.
    known = [{**row, "target_accuracy": cells[row["cell_id"]].cell.get("target_accuracy")} for row in known]
    aimed = [row for row in known if row["target_accuracy"] or row[BITS_TARGET]]
    families = by_key(aimed, lambda row: (*(row[name] for name in _FAMILY), row["target_accuracy"])).values()
    differing = [name for name in _FAMILY if len({family[0][name] for family in families}) > 1]
    plans = [_plan(family, timed, cells, max_memory_bytes, differing) for family in families]
    return [plan for plan in plans if plan.trained or plan.missed]


_GIVEN = ("model", "dataset", "device", "target_accuracy", BITS_TARGET)


def _plan(
    family: Sequence[Row],
    timed: Sequence[Row],
    cells: Mapping[str, CellResult],
    max_memory_bytes: float,
    differing: Sequence[str],
) -> LearningPlan:
    def loses(row: Row) -> bool:
        return bool(row["world_size"] > 1 and is_lossy(cells[row["cell_id"]]))

    first = family[0]
    ended = by_key([row for row in family if row["repeats"] or row["state"] == "failed"], loses)
    by_batch = by_key(ended.get(False, []), lambda row: int(row["global_batch"]))
    found = {batch: _trained(by_batch[batch], cells) for batch in sorted(by_batch)}
    trained = [best for best in found.values() if best is not None]
    own = {key: _trained(same, cells) for key, same in by_key(ended.get(True, []), _own).items()}
    fit, settings, not_trained = fit_steps(trained), [], []
    augmented = ("none", _augmentation(first))
    same_step = [row for row in timed if all(row[name] == first[name] for name in _TIMED)]
    same_step = [row for row in same_step if _augmentation(row) in augmented]
    alone = [row for row in same_step if not columns.shares_gpus(row)]
    fitting = [row for row in alone if (row["memory_peak_bytes"] or math.inf) <= max_memory_bytes]
    for key, alike in by_key(fitting if fit else [], _own).items():
        row = min(alike, key=lambda row: (_augmentation(row) != augmented[1], float(row["iteration_s"])))
        batch, steps = row["global_batch"], own.get(key)
        if fit and not loses(row):
            is_outside = not trained[0].batch <= batch <= trained[-1].batch
            settings.append(WorkersAndBatch(row, fit.steps(batch), is_outside, is_own=False))
        elif fit and steps:
            settings.append(WorkersAndBatch(row, _steps_of(steps, fit), is_extrapolated=False, is_own=True))
        else:
            name = columns.with_local_updates(row)
            not_trained.append(f"{name} on {columns.workers_of(row)} at batch {batch:,}")
    further = [name for name in differing if name not in _GIVEN and first[name] is not None]
    return LearningPlan(
        {**columns.pick(first, *_GIVEN), "further": [axis(name).text(first[name]) for name in further]},
        trained,
        [batch for batch, best in found.items() if best is None],
        fit,
        sorted(settings, key=lambda one: one.seconds.value),
        not_trained,
        len(alone) - len(fitting),
        len(same_step) - len(alone),
        sorted({int(row["global_batch"]) for row in family if row["state"] != "done"}),
    )


def _augmentation(row: Row) -> str:
    return row["augmentation"] or "none"


def _steps_of(trained: BatchSteps, fit: StepsFit) -> Fitted:
    """Of one more training of a lossy exchange, which scatters as the exact ones do."""
    mean = float(trained.logs.mean())
    half = fit.quantile * math.sqrt(fit.new_variance * (1 + 1 / len(trained.steps)))
    return _widened(Fitted(mean, mean, mean), half)

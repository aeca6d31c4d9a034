"""Seconds to a target by workers and batch: the steps that trainings took, times the time of a step.

Trainings belong together where they differ only in batch, learning rate and its rule, workers, exact
exchange, seed, and settings that change the time alone. Method and sources: docs/background/learning.md.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Any

from scaling.analysis import columns, steps_by_batch
from scaling.analysis.columns import Row, by_key
from scaling.analysis.decisions import TIE_RATIO
from scaling.analysis.findings import Finding
from scaling.analysis.learning import BITS_TARGET, half_widths_of_time
from scaling.analysis.objectives import front
from scaling.analysis.samples import CellResult
from scaling.analysis.seed_noise import is_lossy
from scaling.analysis.steps_by_batch import BatchSteps, Fitted, StepsFit, trained_at_best, widened
from scaling.axes import Role, Shared, axis, with_columns

NEARLY_LEAST = 0.1  # at B_crit over it, the steps are above S_min by this part: no more to save
_FREE = ("scaling", "learning_rate", "learning_rate_rule", "base_batch")
_FAMILY = [one.key for one in with_columns(role=Role.GIVEN | Role.RECIPE) if one.key not in _FREE]
_TIMED = [one.key for one in with_columns(Shared.TIMED) if one.key in _FAMILY]
_GIVEN = ("model", "dataset", "device", "target_accuracy", BITS_TARGET)
_goal = itemgetter(*_GIVEN)
_BY_WORKERS = ("world_size", "local_batch", "peer_access")
_STEP = [one for one in with_columns(role=Role.PREDICTED) if one.key not in _BY_WORKERS]
_own = itemgetter("global_batch", "world_size", "aggregator", "wire", "sync_every", "outer_update")


@dataclass(frozen=True)
class WorkersAndBatch:
    row: Row  # of the fastest cell with these workers, batch and exchange
    steps: Fitted
    is_extrapolated: bool  # its batch is outside those trained
    is_own: bool  # the steps are those of a lossy exchange
    rate: float | None = None  # the best learning rate of its batch, where that was trained

    @property
    def seconds(self) -> Fitted:
        logs = Fitted(*(math.log(self.row["iteration_s"] * end) for end in self.steps))
        return widened(logs, *half_widths_of_time(self.row))

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
            **columns.pick(vars(self), "steps", "is_extrapolated", "is_own", "rate"),
            "is_predicted": "is_predicted" in self.row,
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

    def least(self, quantity: str) -> WorkersAndBatch | None:
        """Of seconds, hours or joules; None where no setting has a known one."""
        known = [one for one in self.settings if getattr(one, quantity) is not None]
        return min(known, key=lambda one: one.values()[quantity], default=None)

    def times_faster(self, one: WorkersAndBatch, base: WorkersAndBatch) -> Fitted:
        """The base's seconds over those of the other; steps of exact exchanges are of one curve."""
        value = math.log(base.seconds.value / one.seconds.value)
        if self.fit is None or one.is_own or base.is_own:
            halves = [math.log(each.seconds.high / each.seconds.value) for each in (one, base)]
            return widened(Fitted(value, value, value), *halves)
        ratio = self.fit.log_ratio(one.row["global_batch"], base.row["global_batch"])
        logs = Fitted(*(value + end - ratio.value for end in ratio))
        return widened(logs, *(math.hypot(*half_widths_of_time(each.row)) for each in (one, base)))

    def findings(self, quantity: str = "seconds") -> Iterator[Finding]:
        """`quantity`: what is to be small, as in `least`; seconds are said in any case."""
        rows = [row for one in self.trained for row in one.rows]
        ids, noise = tuple(row["cell_id"] for row in rows), _noise_scale(rows)
        values: dict[str, Any] = {
            **columns.pick(vars(self), "given", "missed", "unfinished"),
            "batches": [one.values() for one in self.trained],
            "fewest": steps_by_batch.FEWEST_BATCHES,
            "rule": steps_by_batch.rate_rule(self.trained),
            "noise": noise,
        }
        if self.fit is None:
            yield Finding("critical_batch_unknown", ids, values)
            return
        critical = self.fit.critical
        values |= {"critical": critical, "least": self.fit.least, "nearly": NEARLY_LEAST}
        values |= {"enough": critical.high / NEARLY_LEAST, "misfit": math.sqrt(self.fit.misfit)}
        values["differs"] = bool(noise) and (critical.low > noise["high"] or critical.high < noise["low"])
        yield self.by_seconds(quantity)
        yield Finding("critical_batch", ids, values)

    def by_seconds(self, quantity: str) -> Finding:
        left_out = columns.pick(vars(self), "given", "not_trained", "num_large", "num_shared")
        if not self.settings:
            return Finding("seconds_not_timed", (), left_out)
        best, (base, *others) = self.settings[0], self.by_workers.values()
        first, least = self.trained[0].rows[0], self.least(quantity)
        values = {
            **left_out,
            **columns.pick(best.row, "world_size", "device"),
            "best": best.values(),
            "times": None if best is base else self.times_faster(best, base).value,
            "base": base.values(),
            "others": [{**one.values(), "times": self.times_faster(one, base)} for one in others],
            "front": [one.values() for one in self.front],
            "knee": self.knee.values(),
            "quantity": quantity,
            "least": least and least.values(),
            "lacks": any(_augmentation(one.row) != _augmentation(first) for one in self.settings),
        }
        return Finding("seconds_by_workers", tuple(one.row["cell_id"] for one in self.settings), values)


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
    rows: Sequence[Row],
    cells: Mapping[str, CellResult],
    max_memory_bytes: float = math.inf,
    predicted: Sequence[Mapping[str, Any]] = (),
) -> list[LearningPlan]:
    """One plan for each recipe and target of exact trainings, the fastest first. `predicted`: rows as of
    `scaling predict --json`, for numbers of workers whose step was not timed."""
    usable = [row for row in rows if not columns.has_no_model(row) and columns.is_unchanged(row)]
    usable = [row for row in usable if not columns.is_aa_replicate(row)]
    usable = [row for row in usable if row["world_size"] == 1 or not columns.is_control_arm(row)]
    timed = [row for row in usable if row["kind"] == "iteration" and row["iteration_s"]]
    timed += _predicted_steps(timed, predicted)
    known = [row for row in usable if row["kind"] != "iteration" and (row["learning_rate"] or 0) > 0]
    # The row of a training that failed has no target.
    known = [{**row, "target_accuracy": cells[row["cell_id"]].cell.get("target_accuracy")} for row in known]
    aimed = [row for row in known if row["target_accuracy"] or row[BITS_TARGET]]
    families = by_key(aimed, lambda row: (*(row[name] for name in _FAMILY), row["target_accuracy"])).values()
    distinguishing = _distinguishing([family[0] for family in families])
    plans = [_plan(family, timed, cells, max_memory_bytes, distinguishing) for family in families]
    by_target = by_key([plan for plan in plans if plan.trained or plan.missed], lambda one: _goal(one.given))
    return [plan for same in by_target.values() for plan in sorted(same, key=_fastest_s)]


def _fastest_s(plan: LearningPlan) -> float:
    return plan.settings[0].seconds.value if plan.settings else math.inf


def _distinguishing(firsts: Sequence[Row]) -> list[str]:
    """So many settings, in their order, as distinguish the trainings to one target."""
    distinguishing: list[str] = []
    for name in _FAMILY:
        if len(by_key(firsts, itemgetter(*_GIVEN, *distinguishing, name))) > len(
            by_key(firsts, itemgetter(*_GIVEN, *distinguishing))
        ):
            distinguishing.append(name)
    return distinguishing


def _predicted_steps(timed: Sequence[Row], predicted: Sequence[Mapping[str, Any]]) -> list[Row]:
    """As timed rows, those of predictions that differ from a timed step in the workers alone."""

    def setting(row: Mapping[str, Any]) -> list[Any]:
        labels = [row[name] for name in ("model", "dataset", "aggregator")]
        return labels + [row.get(one.key) or one.default for one in _STEP]

    sizes, found = {row["world_size"] for row in timed}, []
    for one in predicted:
        if one.get("iteration_s") and one["world_size"] not in sizes:
            step = columns.pick(one, "world_size", "iteration_s", "iteration_s_low", "iteration_s_high")
            step |= dict.fromkeys(("joules_per_sample", "memory_peak_bytes", "repeats"), None)
            alike = [row for row in timed if setting(row) == setting(one) and not columns.is_control_arm(row)]
            found += [{**row, **step, "is_predicted": True} for row in alike]
    return found


def _plan(
    family: Sequence[Row],
    timed: Sequence[Row],
    cells: Mapping[str, CellResult],
    max_memory_bytes: float,
    distinguishing: Sequence[str],
) -> LearningPlan:
    def loses(row: Row) -> bool:
        return bool(row["world_size"] > 1 and is_lossy(cells[row["cell_id"]]))

    first = family[0]
    ended = by_key([row for row in family if row["repeats"] or row["state"] == "failed"], loses)
    by_batch = by_key(ended.get(False, []), lambda row: int(row["global_batch"]))
    found = {batch: trained_at_best(by_batch[batch], cells) for batch in sorted(by_batch)}
    trained = [best for best in found.values() if best is not None]
    own = {key: trained_at_best(same, cells) for key, same in by_key(ended.get(True, []), _own).items()}
    fit, settings, not_trained = steps_by_batch.fit_steps(trained), [], []
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
            rate = next((one.rate for one in trained if one.batch == batch), None)
            settings.append(WorkersAndBatch(row, fit.steps(batch), is_outside, is_own=False, rate=rate))
        elif fit and steps:
            of_lossy = _steps_of(steps, fit)
            settings.append(
                WorkersAndBatch(row, of_lossy, is_extrapolated=False, is_own=True, rate=steps.rate)
            )
        else:
            name = columns.with_local_updates(row)
            not_trained.append(f"{name} on {columns.workers_of(row)} at batch {batch:,}")
    further = [name for name in distinguishing if first[name] is not None]
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
    return widened(Fitted(mean, mean, mean), half)

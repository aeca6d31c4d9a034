"""`kind: convergence`: loss and test accuracy over epochs and over seconds of training."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field

from scaling.axes import DEFAULTS
from scaling.errors import StudyError
from scaling.study.cell import TIMING_BATCHES
from scaling.study.kinds.training import TrainingKind, check_images, named
from scaling.study.parts import PositiveInt, Recipe, TrainingPart, Workload, chosen
from scaling.training.learning_rate import DEFAULT_GAMMA

if TYPE_CHECKING:
    from scaling.aggregators.base import Aggregator
    from scaling.study.cell import Cell
    from scaling.study.rank.context import RankSummary, RunContext
    from scaling.study.workloads import ChosenWorkload


class ConvergencePart(TrainingPart, Recipe):
    """Loss and test accuracy over epochs and over seconds of training."""

    kind: Literal["convergence"] = "convergence"
    epochs: PositiveInt = 5
    """Length of the training."""
    keep_checkpoints: bool = False
    """Keep the checkpoints of a finished training."""
    workers_per_gpu: PositiveInt = Field(
        1,
        description="workers that share a GPU take turns on it: they learn what as many GPUs would, but "
        "their times are not those of as many GPUs",
    )
    """Most workers that may share a GPU; their times are not those of as many GPUs."""


class ConvergenceKind(TrainingKind[ConvergencePart]):
    part = ConvergencePart

    def check(
        self, part: ConvergencePart, aggregators: Sequence[Aggregator[Any]], sizes: Sequence[int], device: str
    ) -> None:
        """Refuses control arms, whose replicas drift apart, and what has no replicas."""
        for aggregator in aggregators:
            if aggregator.ddp_path() == "fully_sharded":
                raise StudyError(
                    f"aggregator {aggregator.label()!r} is timed only: its training is that of "
                    "all_reduce, which use here, or zero2"
                )
            if not aggregator.exchanges and max(sizes) > 1:
                raise StudyError(
                    f"aggregator {aggregator.label()!r} exchanges nothing: replicas drift apart, so "
                    "it is never a convergence result at world sizes above 1; leave it out of this part"
                )

    def extents(self, workload: ChosenWorkload, part: ConvergencePart, device: str) -> list[dict[str, Any]]:
        return [{**recipe_of(workload, part), "keep_checkpoints": part.keep_checkpoints}]

    def run(self, cell: Cell, context: RunContext) -> RankSummary:
        from scaling.study.rank.convergence import converge

        return converge(cell, context)

    def steps_s(self, cell: Cell, step_s: float) -> float:
        from scaling.workloads.registry import create_dataset, create_model, resolve_shape

        assert cell.epochs is not None
        dataset = create_dataset(cell.dataset, cell.dataset_parameters)
        shape = resolve_shape(create_model(cell.model, cell.model_parameters), dataset)
        num_samples = dataset.num_samples(shape) or TIMING_BATCHES * cell.global_batch
        return cell.epochs * max(1, num_samples // cell.global_batch) * step_s

    def summary(self, ranks: Sequence[RankSummary]) -> dict[str, Any]:
        """Also the hosts of a training that was cut off and went on elsewhere."""
        before = ranks[0].hosts_before
        return {**super().summary(ranks), **({"hosts_before": before} if before else {})}


def recipe_of(choice: ChosenWorkload, part: ConvergencePart) -> dict[str, Any]:
    """The fields of `Cell` of a training, None where the rule or schedule lacks a key. Raises StudyError."""
    workload = choice.keys
    values = {key: chosen(key, workload, part, DEFAULTS.get(key)) for key in Recipe.model_fields}
    where = named(workload)
    _check_base_batch(values, workload, part, where)
    _check_schedule(values, workload, part, where)
    if values["warmup_epochs"] >= values["epochs"]:
        raise StudyError(
            f"{where}: warmup_epochs {values['warmup_epochs']:g} must be less than the epochs, "
            f"{values['epochs']}: else the learning rate never reaches its peak"
        )
    if values["target_bits_per_byte"] is not None and not choice.dataset.bits_per_byte:
        raise StudyError(
            f"{where}: target_bits_per_byte is a target of texts of bytes, such as data set text; use "
            "target_accuracy"
        )
    if None not in (values["target_bits_per_byte"], values["target_accuracy"]):
        raise StudyError(f"{where}: target_bits_per_byte and target_accuracy are two targets; leave one out")
    if values["augmentation"] == "standard":
        check_images(choice, where)
    return values


def _check_base_batch(values: dict[str, Any], workload: Workload, part: ConvergencePart, where: str) -> None:
    rule = values["learning_rate_rule"]
    if rule != "fixed" and values["base_batch"] is None:
        raise StudyError(
            f"{where}: learning_rate_rule: {rule} needs base_batch, the global batch for which learning_rate "
            "was chosen"
        )
    if rule == "fixed" and values["base_batch"] is not None:
        if _is_own("base_batch", "learning_rate_rule", workload, part):
            raise StudyError(
                f"{where}: base_batch belongs to learning_rate_rule: linear or sqrt; fixed has none"
            )
        values["base_batch"] = None


def _check_schedule(values: dict[str, Any], workload: Workload, part: ConvergencePart, where: str) -> None:
    schedule, milestones = values["schedule"], values["milestones"]
    if schedule == "step":
        if milestones is None:
            raise StudyError(f"{where}: schedule: step needs milestones, the epochs behind which it falls")
        if sorted(set(milestones)) != milestones:
            raise StudyError(f"{where}: milestones {milestones} must ascend")
        values["milestones"] = tuple(milestones)
        values["gamma"] = DEFAULT_GAMMA if values["gamma"] is None else values["gamma"]
        return
    for key in ("milestones", "gamma"):
        if values[key] is not None and _is_own(key, "schedule", workload, part):
            raise StudyError(f"{where}: {key} belongs to schedule: step, not to {schedule}; leave it out")
        values[key] = None


def _is_own(key: str, chooser: str, workload: Workload, part: ConvergencePart) -> bool:
    """Whether `key` stands where `chooser` was chosen, and not in a part that chose otherwise."""
    return getattr(workload, key) is not None or getattr(workload, chooser) is None

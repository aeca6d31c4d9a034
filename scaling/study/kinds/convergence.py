"""`kind: convergence`: loss and test accuracy over epochs and over seconds of training."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field

from scaling.errors import StudyError
from scaling.study.cell import TIMING_BATCHES
from scaling.study.kinds.training import TrainingKind
from scaling.study.parts import PositiveInt, Recipe, TrainingPart

if TYPE_CHECKING:
    from scaling.aggregators.base import Aggregator
    from scaling.study.cell import Cell
    from scaling.study.rank.context import RunContext
    from scaling.study.rank.summary import RankSummary
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
    """Trainings."""

    part = ConvergencePart

    def check(
        self,
        part: ConvergencePart,
        aggregators: Sequence[Aggregator[Any]],
        sizes: Sequence[int],
        device: str,
        where: str,
    ) -> None:
        """Refuses control arms, whose replicas drift apart, and what has no replicas."""
        for aggregator in aggregators:
            if aggregator.ddp_path() == "fully_sharded":
                raise StudyError(
                    f"{where}aggregator {aggregator.label()!r} is timed only: its training is that of "
                    "all_reduce, which use here, or zero2"
                )
            if not aggregator.exchanges and max(sizes) > 1:
                raise StudyError(
                    f"{where}aggregator {aggregator.label()!r} exchanges nothing: replicas drift apart, so "
                    "it is never a convergence result at world sizes above 1; leave it out of this part"
                )

    def extent(
        self, workload: ChosenWorkload, part: ConvergencePart, device: str, placement: str
    ) -> dict[str, Any]:
        """How long it is trained, with which rates and augmentation."""
        from scaling.study.recipes import recipe_of

        return {**recipe_of(workload, part), "keep_checkpoints": part.keep_checkpoints}

    def run(self, cell: Cell, context: RunContext) -> RankSummary:
        """Trains it."""
        from scaling.study.rank.convergence import converge

        return converge(cell, context)

    def steps_s(self, cell: Cell, step_s: float) -> float:
        """Of all epochs."""
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

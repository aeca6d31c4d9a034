"""What the kinds that train a network have in common."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from scaling.errors import StudyError
from scaling.store.upgrades import DATA_IN_HOST_MEMORY
from scaling.study.cell import AvailableMachine
from scaling.study.kinds.base import Kind, ModelSize, check_seconds, set_up_seconds, step_seconds
from scaling.study.parts import TrainingPart, Workload

if TYPE_CHECKING:
    from scaling.aggregators.base import Aggregator
    from scaling.study.cell import Cell
    from scaling.study.rank.context import RankSummary
    from scaling.study.workloads import ChosenWorkload

TrainingPartT = TypeVar("TrainingPartT", bound=TrainingPart)


class TrainingKind(Kind[TrainingPartT, "Cell"]):
    """A cell for each combination of workload, aggregator, world size and the other variables."""

    def cells(self, part: TrainingPartT, machine: AvailableMachine, notes: list[str]) -> Iterable[Cell]:
        from scaling.study.training_cells import training_cells

        return training_cells(self, part, machine, notes)

    def check(
        self, part: TrainingPartT, aggregators: Sequence[Aggregator[Any]], sizes: Sequence[int], device: str
    ) -> None:
        """Raises StudyError for what cannot be in this kind, with a way out. `sizes`: on this machine."""

    @abstractmethod
    def extents(self, workload: ChosenWorkload, part: TrainingPartT, device: str) -> list[dict[str, Any]]:
        """The fields of `Cell` that say how long it runs, and on which data: one for each place of these."""

    @abstractmethod
    def steps_s(self, cell: Cell, step_s: float) -> float:
        """What all steps of the cell take, if each takes `step_s`."""

    def seconds(self, cell: Cell, num_cores: int, size: ModelSize | None) -> float:
        assert size is not None
        steps_s = self.steps_s(cell, step_seconds(cell, size, num_cores))
        return set_up_seconds(cell, size) + check_seconds(cell, size) + steps_s

    def summary(self, ranks: Sequence[RankSummary]) -> dict[str, Any]:
        first = ranks[0]
        same = ("num_parameters", "tensor_shapes", "checksums", "tokens_per_sample", "checks")
        each = ("matrix_rate", "optimizer_state_bytes", DATA_IN_HOST_MEMORY)
        return {
            **super().summary(ranks),
            **{name: getattr(first, name) for name in same},
            **{name: [getattr(rank, name) for rank in ranks] for name in each},
            "wire_bytes_per_rank": [rank.bytes_sent for rank in ranks],
            "messages_per_rank": [rank.messages_sent for rank in ranks],
            "model_flops": first.model_flops and first.model_flops * len(ranks),
            **({"bucket_bytes": first.bucket_bytes} if first.bucket_bytes else {}),
        }

    def label(self, cell: Mapping[str, Any]) -> str:
        """`iteration fcn-r, ring`."""
        return f"{cell['kind']} {cell['model_label']}, {cell['aggregator_label']}"


def named(workload: Workload) -> str:
    return f"workload {workload.model.name} on {workload.dataset.name}"


def check_images(workload: ChosenWorkload, where: str) -> None:
    """Raises StudyError where the data is no images, which alone are augmented."""
    shape = workload.shape
    if shape.tokens or len(shape.input_shape) != 3:
        raise StudyError(
            f"{where}: augmentation: standard crops and mirrors images [channels, height, width]; the data "
            f"has samples of shape {list(shape.input_shape)}; use augmentation: none"
        )

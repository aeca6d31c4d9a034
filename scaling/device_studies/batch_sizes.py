"""Which mini-batch does a device need? Training steps of the seven networks over batch sizes, CPU and GPU.

A batch that is too large for a device's memory, or would take longer than the limit of a cell, is a result:
the report says so. On the CPU with all cores; on the GPU eager and captured.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, final

from pydantic import PositiveInt

from scaling.device_studies.base import Budget, Experiment, Point
from scaling.device_studies.cpu_threads import SEVEN_NETWORKS

if TYPE_CHECKING:
    import torch


@final
@dataclass(frozen=True)
class BatchSizes(Experiment):
    """Time of a training step, and samples a second, over mini-batch sizes.

    Attributes:
        networks: models by name.
        batches: samples of a step.
    """

    name: ClassVar[str] = "batch-sizes"

    networks: tuple[str, ...] = SEVEN_NETWORKS
    batches: tuple[PositiveInt, ...] = (1, 4, 16, 64, 256, 1024, 4096)

    def points(self) -> list[Point]:
        """Every network at every batch: on the CPU and the GPU eager, on the GPU captured as well."""
        points: list[Point] = []
        for name in self.networks:
            for batch in self.batches:
                common: Point = {"model": name, "batch": batch}
                points += [{**common, "step": "eager"}, {**common, "step": "captured", "only_device": "cuda"}]
        return points

    def measure(
        self, point: Mapping[str, Any], device: torch.device, budget: Budget
    ) -> Iterator[dict[str, Any]]:
        """Seconds of a training step."""
        from scaling.device_studies.training_step import network_steps, timed

        make = network_steps(point["model"], device, captured=point["step"] == "captured")
        yield from timed(make, point["batch"], device, budget)

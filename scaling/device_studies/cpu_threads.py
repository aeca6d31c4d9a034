"""How many CPU threads are worth it? Training steps of the seven networks with 1, 2, 4, ... threads.

The batches are smaller than those that the networks were published with, so that a step with one thread ends
within a second or two. Threads are those that torch's operations share; the process is bound to no core.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Literal, final

from pydantic import PositiveInt

from scaling.device_studies.base import Budget, Experiment, Point

if TYPE_CHECKING:
    import torch

REDUCED_BATCHES = {
    "fcn-r": 64,
    "alexnet-r": 64,
    "resnet-56": 16,
    "fcn-s4": 16,
    "alexnet-s": 4,
    "resnet-50": 2,
    "lstm": 16,
}
SEVEN_NETWORKS = tuple(REDUCED_BATCHES)
OTHER_BATCH = 16
"""Of a network that is not among the seven."""


@final
@dataclass(frozen=True)
class CpuThreads(Experiment):
    """Time of a training step over the number of threads.

    Attributes:
        networks: models by name.
        threads: numbers of threads; those above the cores are left out, "all" is every core.
        batches: network -> samples of a step, where it is not to be the reduced batch.
    """

    name: ClassVar[str] = "cpu-threads"

    networks: tuple[str, ...] = SEVEN_NETWORKS
    threads: tuple[PositiveInt | Literal["all"], ...] = (1, 2, 4, 8, 16, 32, 64, 128, "all")
    batches: dict[str, PositiveInt] = field(default_factory=dict)

    def points(self) -> list[Point]:
        """Every network with every number of threads, on the CPU."""
        return [
            {"model": name, "batch": self._batch(name), "only_device": "cpu", "threads": threads}
            for name in self.networks
            for threads in self.threads
        ]

    def _batch(self, name: str) -> int:
        return self.batches.get(name) or REDUCED_BATCHES.get(name, OTHER_BATCH)

    def measure(
        self, point: Mapping[str, Any], device: torch.device, budget: Budget
    ) -> Iterator[dict[str, Any]]:
        """Seconds of a training step."""
        from scaling.device_studies.training_step import network_steps, timed

        yield from timed(network_steps(point["model"], device), point["batch"], device, budget)

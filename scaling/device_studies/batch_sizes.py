"""Which mini-batch does a device need? Training steps of the seven networks over batch sizes, CPU and GPU.

A batch that is too large for the memory, or takes longer than a cell's limit, is a result that is
reported."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, final

from pydantic import PositiveInt

from scaling.device_studies.base import Budget, Device, Experiment, Point, Samples, Variables
from scaling.device_studies.cpu_threads import SEVEN_NETWORKS
from scaling.device_studies.declaration import ARMS, Enough, Lines, Panels, Report, Rows, Setting

PANELS = (Panels("batch", by=("model",), title="{model}"),)
REPORT = Report(
    question="Which mini-batch does a device need?",
    named=("model", "batch"),
    figures=(
        Lines("throughput", "Column samples_per_s.", "throughput of a training step, {arms}", PANELS,
              label="samples/s", per="samples"),
        Lines("time", "Column iteration_s. Where a line is flat, a larger batch costs nothing.",
              "time of a training step, {arms}", PANELS),
    ),
    tables=(Rows("a training step over mini-batch sizes", ("model", "batch"), variants=ARMS),),
    answer=(
        Enough(
            "For 90% of the highest throughput measured (in brackets), ", "batch", "model", ratio=1 / 0.9,
            bracket="{per_s} samples/s", before="For 90% of the highest throughput, ",
            short="{enough} on the {on}", is_bound=True,
            ahead="At the best measured batch of each, the time of a sample on the CPU over that on the GPU: "
            "",
        ),
    ),
    labels={"model": "network"},
    order={"model": Setting("networks")},
)  # fmt: skip


@final
@dataclass(frozen=True)
class BatchSizes(Experiment):
    """Time of a training step, and samples a second, over mini-batch sizes."""

    name: ClassVar[str] = "batch-sizes"
    report: ClassVar[Report] = REPORT

    networks: tuple[str, ...] = SEVEN_NETWORKS
    batches: tuple[PositiveInt, ...] = (1, 4, 16, 64, 256, 1024, 4096)

    def points(self) -> list[Point]:
        points: list[Point] = []
        for name in self.networks:
            for batch in self.batches:
                common: Point = {"model": name, "batch": batch}
                points += [{**common, "step": "eager"}, {**common, "step": "captured", "only_device": "cuda"}]
        return points

    def measure(self, point: Variables, device: Device, budget: Budget) -> Samples:
        from scaling.device_studies.training_step import network_steps, timed

        make = network_steps(point["model"], device, captured=point["step"] == "captured")
        yield from timed(make, point["batch"], device, budget)

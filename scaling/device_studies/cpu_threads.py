"""How many CPU threads are worth it? Training steps of the seven networks with 1, 2, 4, ... threads.

Batches are reduced, so that a step with one thread ends within a second or two; no core is bound."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import ClassVar, Literal, final

from pydantic import PositiveInt

from scaling.device_studies.base import Budget, Device, Experiment, Point, Samples, Variables, facts
from scaling.device_studies.declaration import STEP_TIME, Enough, Lines, Panels, Report, Rows, Setting, Show

REDUCED_BATCHES = {
    **{"fcn-r": 64, "alexnet-r": 64, "resnet-56": 16},
    **{"fcn-s4": 16, "alexnet-s": 4, "resnet-50": 2, "lstm": 16},
}
SEVEN_NETWORKS = tuple(REDUCED_BATCHES)
OTHER_BATCH = 16  # of a network that is not among the seven
REPORT = Report(
    question="How many CPU threads are worth it?",
    named=("model", "batch"),
    figures=(
        Lines(
            "speedup", "Time of a training step with the fewest threads over that with more (column "
            "iteration_s), launch by launch. Dashed: as many times as threads. Batches are reduced, as the "
            "table says.",
            "training steps on the CPU, {cores}", (Panels("threads", where={"device": "cpu"}),),
            lines="model", label="speedup over the fewest threads", over_first=True,
        ),
    ),
    tables=(
        Rows("a training step on the CPU, reduced batches", ("model", "batch", "threads"),
             (*STEP_TIME, Show("speedup", "over_first", "threads"), Show("on", "fact", "threads_on"))),
    ),
    answer=(
        Enough(
            "Of {least} to {most}, the fewest that take at most 3% more than the least time are ",
            "threads", "model", ratio=1.03, bracket="{least} takes {times} as long",
            short="{enough} of {most}: a training step takes {times} times as long with {least}",
        ),
    ),
    labels={"model": "network"},
    order={"model": Setting("networks")},
)  # fmt: skip


@final
@dataclass(frozen=True)
class CpuThreads(Experiment):
    """Time of a training step over the number of threads; those above twice the cores are left out, "all" is
    every core. `batches`: network -> samples of a step, where it is not to be the reduced batch."""

    name: ClassVar[str] = "cpu-threads"
    report: ClassVar[Report] = REPORT
    most_threads_a_core: ClassVar[int] = 2

    networks: tuple[str, ...] = SEVEN_NETWORKS
    threads: tuple[PositiveInt | Literal["all"], ...] = (1, 2, 4, 8, 16, 32, 64, 128, "all")
    batches: dict[str, PositiveInt] = field(default_factory=dict)

    def points(self) -> list[Point]:
        batches = {**dict.fromkeys(self.networks, OTHER_BATCH), **REDUCED_BATCHES, **self.batches}
        return [
            {"model": name, "batch": batches[name], "only_device": "cpu", "threads": threads}
            for name in self.networks
            for threads in self.threads
        ]

    def measure(self, point: Variables, device: Device, budget: Budget) -> Samples:
        import torch

        from scaling.device_studies.training_step import network_steps, timed
        from topologies.detect import num_usable_cores
        from topologies.detect_host import num_physical

        usable = num_usable_cores()
        mine = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else range(usable)
        physical, threads = min(usable, num_physical(mine)), torch.get_num_threads()
        others = "hyperthreads" if threads <= usable else "more than processors"
        yield from facts(
            physical_cores=physical, threads_on="physical cores" if threads <= physical else others
        )
        yield from timed(network_steps(point["model"], device), point["batch"], device, budget)

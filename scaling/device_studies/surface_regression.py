"""Is a GPU worth it for a network of 171 parameters on a surface of 40,000 points?

The whole surface is one batch, the loss the mean squared error. Phases: `step`, one epoch, which is one
update; `compile` or `capture`, what it takes once until the step is compiled or a CUDA graph; `train`, all
epochs together, where the number of points is that of the fit, which is told on a coarser grid."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, Literal, final

from pydantic import PositiveFloat, PositiveInt

from scaling.device_studies.base import Budget, Device, Experiment, Point, Samples, Variables, facts, steps
from scaling.device_studies.declaration import (
    STEP_TIME,
    BreakEven,
    Lines,
    Panels,
    Report,
    Rows,
    Setting,
    Show,
    Times,
    Variant,
)

VARIANTS = tuple(
    Variant(name, {"device": device, "step": step, "data": data})
    for name, device, step, data in (
        ("CPU eager", "cpu", "eager", "device"),
        ("CPU compiled", "cpu", "compiled", "device"),
        ("CPU eager, DataLoader", "cpu", "eager", "loader"),
        ("GPU eager", "cuda", "eager", "device"),
        ("GPU compiled", "cuda", "compiled", "device"),
        ("GPU captured", "cuda", "captured", "device"),
        ("GPU eager, data in host memory", "cuda", "eager", "host"),
        ("GPU eager, DataLoader", "cuda", "eager", "loader"),
    )
)
REPORT = Report(
    question="Is a GPU worth it for the surface, with a network of 171 parameters?",
    named=("points", "step", "data"),
    figures=(
        Lines(
            "epochs", "An epoch, which is one update on all points (columns points and iteration_s; step, "
            "data). On the GPU a line is flat as long as launching kernels, not computing, decides.",
            "an epoch of the 2-20-5-1 network", (Panels("points"),), label="ms an epoch",
        ),
    ),
    tables=(
        Rows(
            "an epoch over the number of points", ("device", "step", "data", "points"),
            (Show("ms an epoch"), STEP_TIME[1], Show("points/s", "per_s", "samples")),
        ),
        Rows(
            "a complete training, Adam {learning_rate:g}", ("device", "step", "points", "epochs"),
            (Show("compile, s", "seconds", phase="compile"), Show("capture, s", "seconds", phase="capture"),
             Show("all epochs, s", "seconds", phase="train"), Show("rms residual", "number", "rms_residual"),
             Show("largest", "number", "largest_residual"), Show("rms height", "number", "rms_height")),
            {"epochs": Setting("epochs")},
            below="Residuals are the surface's heights less the network's, of one seed: other initial "
            "weights end at other residuals. The root mean square of the heights is about their mean.",
        ),
    ),
    answer=(
        BreakEven(
            "An epoch takes less time than on the CPU (eager, threads: {threads}), in numbers of points: ",
            "points", first=(VARIANTS[3], VARIANTS[5]), than=VARIANTS[0].where,
        ),
    ),
    findings=(
        Times(
            "On the {on}, an epoch with a DataLoader, which assembles the batch point by point, takes, in "
            "multiples of one with data on the device, ",
            over={"step": "eager", "data": "device"}, of={"": {"data": "loader"}}, at=("points",),
            each="{times} at {points} points",
        ),
    ),
    variants=VARIANTS,
    own="fit",
)  # fmt: skip


@final
@dataclass(frozen=True)
class SurfaceRegression(Experiment):
    """Time of an epoch over the number of points, and one complete training. With the `data` in `host` memory
    it is copied once an epoch; `loader` is torch's DataLoader, which assembles it point by point."""

    name: ClassVar[str] = "surface-regression"
    report: ClassVar[Report] = REPORT

    sides: tuple[PositiveInt, ...] = (10, 32, 100, 200, 316, 1000)
    fit_side: PositiveInt = 200  # trained for all `epochs`, if the data is on the device
    epochs: PositiveInt = 2000
    learning_rate: PositiveFloat = 0.08
    activation: Literal["relu", "tanh"] = "relu"  # the source has relu; tanh fits better
    step_modes: tuple[Literal["eager", "compiled", "captured"], ...] = ("eager", "compiled", "captured")
    data: tuple[Literal["device", "host", "loader"], ...] = ("device", "host", "loader")
    seed: int = 1

    def points(self) -> list[Point]:
        return [
            {"points": side * side, **arm}
            for side in dict.fromkeys((*self.sides, self.fit_side))
            for arm in self._arms(side)
        ]

    def _arms(self, side: int) -> Iterator[Point]:
        for mode in self.step_modes:
            if mode == "compiled" and side != self.fit_side:
                continue
            for place in self.data if mode == "eager" else ("device",):
                # In the CPU's memory the data is on the device.
                on_gpu: Point = {"only_device": "cuda"} if mode == "captured" or place == "host" else {}
                yield {"step": mode, "data": place, **on_gpu}

    def measure(self, point: Variables, device: Device, budget: Budget) -> Samples:
        from scaling.device_studies.surface_training import SurfaceTraining, ready, require_loader

        side = round(point["points"] ** 0.5)
        if point["data"] == "loader":
            require_loader(point["points"], budget)
        training = SurfaceTraining(self, side, point["data"], device)
        yield from facts(samples=point["points"])
        step, made = ready(training, point["step"])
        if made is not None:
            yield {"phase": "compile" if point["step"] == "compiled" else "capture", "seconds": made}
        yield from steps(budget.samples(step, device))
        if side == self.fit_side and point["data"] == "device":
            training.start_again()
            yield from training.whole(step)

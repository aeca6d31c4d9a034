"""How should an LSTM be written, and in which precision? Three implementations on CPU and GPU.

Phases, each on one batch: `step`, an optimizer update on samples on the device; `evaluate`, forward pass,
loss and the number of right answers there; `predict`, from host memory to host memory. At one width and batch
the cell also trains anew with every seed and tells the accuracy on held-out samples. Weights and order of
samples depend on the seed alone, so that cells can be compared in pairs. On a CPU these trainings take one
thread, so that accuracies do not depend on the cores."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, Literal, final

from pydantic import PositiveFloat, PositiveInt

from scaling.device_studies.base import Budget, Device, Experiment, Point, Samples, Variables
from scaling.device_studies.declaration import DEVICES, Lines, Panels, Report, Rows, Setting, Show, Times

SYNTHETIC = "temporal-order"
REAL = {"mnist-rows": "mnist", "digits-rows": "digits"}  # task -> data set
TIMED = {"task": tuple(REAL), "width": Setting("width")}
FUSED = {**TIMED, "implementation": "fused", "precision": "float32"}
PHASES = {"step": "training", "evaluate": "evaluation", "predict": "prediction"}
NAMES = {"elementary": "elementary operations", "cell": "LSTMCell loop", "fused": "fused nn.LSTM"}
NAMED = ("task", "width", "batch", "precision", "implementation")
IMPLEMENTATIONS = tuple(
    replace(device, name=f"{device.name}, {name}", where={**device.where, "implementation": implementation})
    for device in DEVICES
    for implementation, name in NAMES.items()
)
REPORT = Report(
    question="Does the accuracy change with the implementation or the precision?",
    named=NAMED,
    figures=(
        Lines(
            "speed", "Samples a second over the mini-batch, a column of panels for each precision (columns "
            "batch, precision; batch over iteration_s, evaluate_seconds and predict_seconds). Training: an "
            "optimizer update on samples on the device. Evaluation: forward pass, loss and right answers "
            "there. Prediction: from host memory to host memory.",
            "speed of one LSTM layer, width {width}",
            tuple(
                Panels("batch", where=TIMED, by=("precision",), title=f"{name}, {{precision}}", phase=phase)
                for phase, name in PHASES.items()
            ),
            IMPLEMENTATIONS,
            label="samples/s", per="batch", columns=3,
        ),
    ),
    tables=(
        Rows(
            "ms of one LSTM layer in float32", ("task", "width", "batch"),
            (Show("training, ms"), Show("evaluation, ms", phase="evaluate")),
            {"precision": "float32", "task": tuple(REAL)},
            IMPLEMENTATIONS,
        ),
        Rows(
            "speed of one LSTM layer", NAMED,
            (Show("ms a training step", "both"),
             *(Show(f"{name}, samples/s", "per_s", "batch", phase) for phase, name in PHASES.items())),
            variants=DEVICES,
        ),
    ),
    findings=(
        Times(
            "On the {on}, {task}, width {width}, float32, in multiples of the fused LSTM's time: ",
            over=FUSED, at=("batch",), phases=PHASES,
            of={
                "by a loop over LSTMCell": {**FUSED, "implementation": "cell"},
                "by elementary operations": {**FUSED, "implementation": "elementary"},
            },
        ),
        Times(
            "{task}, width {width}, float32, elementary operations: the time of training on the CPU over "
            "that on the GPU is ", at=("batch",), each="{times} at batch {batch}",
            over={**FUSED, "implementation": "elementary", "device": "cuda"},
            of={"": {**FUSED, "implementation": "elementary", "device": "cpu"}},
        ),
        Times(
            "On the {on}, {task}, width {width}, in multiples of the time in float32, training of the fused "
            "LSTM takes ", over=FUSED, at=("batch",),
            of={f"in {name}": {**FUSED, "precision": name} for name in ("float64", "float16")},
        ),
        Times(
            "{task}, width {width}, float32, the implementation of least time on each: the time of training "
            "on the CPU over that on the GPU is ", at=("batch",), each="{times} at batch {batch}",
            over={**TIMED, "precision": "float32", "device": "cuda"},
            of={"": {**TIMED, "precision": "float32", "device": "cpu"}},
        ),
    ),
    order={
        "task": (SYNTHETIC, *REAL),
        "precision": ("float64", "float32", "float16"),
        "implementation": tuple(NAMES),
    },
    own="accuracy",
)  # fmt: skip


@final
@dataclass(frozen=True)
class LstmFused(Experiment):
    """Speed and accuracy of one LSTM layer with a linear layer behind it."""

    name: ClassVar[str] = "lstm-fused"
    report: ClassVar[Report] = REPORT

    implementations: tuple[Literal["elementary", "cell", "fused"], ...] = ("elementary", "cell", "fused")
    precisions: tuple[Literal["float64", "float32", "float16"], ...] = ("float64", "float32", "float16")
    batches: tuple[PositiveInt, ...] = (128, 1024, 4700)  # of the real task, where the speed is measured
    width: PositiveInt = 64
    length: PositiveInt = 20
    real: Literal["auto", "mnist", "digits"] = "auto"  # auto: MNIST where it is on this machine, else digits
    shrink: PositiveInt = 1  # so many pixels of an image become one, in both directions
    train_samples: PositiveInt = 60_000
    test_samples: PositiveInt = 10_000
    accuracy_batch: PositiveInt = 128  # with these the accuracy is measured, on both tasks
    accuracy_width: PositiveInt = 32
    steps: PositiveInt = 100
    learning_rate: PositiveFloat = 0.02
    seeds: tuple[int, ...] = (1, 2, 3)
    training_limit_s: PositiveFloat = 20.0  # of all trainings of a cell; on a CPU: of its time

    def points(self) -> list[Point]:
        from scaling.workloads.registry import create_dataset

        found = "mnist" if create_dataset("mnist").available() else "digits"
        real = f"{found if self.real == 'auto' else self.real}-rows"
        trained = [(task, self.accuracy_width, self.accuracy_batch) for task in (SYNTHETIC, real)]
        timed = [(real, self.width, batch) for batch in self.batches]
        names = ("task", "implementation", "precision", "width", "batch")
        return [
            dict(zip(names, (task, implementation, precision, width, batch), strict=True))
            for task, width, batch in dict.fromkeys([*trained, *timed])
            for precision in self.precisions
            for implementation in self.implementations
        ]

    def measure(self, point: Variables, device: Device, budget: Budget) -> Samples:
        from scaling.device_studies.lstm_training import LstmMeasurement, image_rows, temporal_order

        sizes, dataset = (self.train_samples, self.test_samples), REAL.get(point["task"])
        task = image_rows(dataset, self.shrink, *sizes) if dataset else temporal_order(self.length, *sizes)
        yield from LstmMeasurement(self, task, point, device).rows(budget)

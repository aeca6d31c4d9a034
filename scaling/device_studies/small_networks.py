"""When is a GPU worth it for a small network? Training steps of perceptrons of many sizes, on CPU and GPU.

Sweeps around one point: every width at every batch, then depths and numbers of input features. Also recurrent
networks, each with a perceptron of as many parameters that takes the same sequence at once."""

from __future__ import annotations

from bisect import bisect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, final

from pydantic import PositiveInt

from scaling.device_studies.base import Budget, Device, Experiment, Point, Samples, Variables, facts
from scaling.device_studies.declaration import (
    ARMS,
    BreakEven,
    Lines,
    Panels,
    Report,
    Rows,
    Setting,
    Show,
    Times,
)

NUM_CLASSES = 10
SEQUENCE_LENGTH, SEQUENCE_INPUTS = 32, 16  # steps of a recurrent network, and numbers that each reads
GRID = {"network": "mlp", "equal_parameters": 0, "inputs": Setting("inputs"), "depth": Setting("depth")}
BASE = {**GRID, "width": Setting("width"), "batch": Setting("batch")}
BY_DEPTH, BY_INPUTS = (
    {name: value for name, value in BASE.items() if name != axis} for axis in ("depth", "inputs")
)
PAIRS = {"equal_parameters": Setting("equal_parameters")}
NAMED = ("network", "batch", "depth", "inputs", "width")
BOTH = (Show("ms a step", "both"),)
REPORT = Report(
    question="When is the GPU worth it for a small network?",
    named=NAMED,
    figures=(
        Lines(
            "break-even", "The time of a step on the CPU, with the threads of least time there, over that "
            "on the GPU (column iteration_s), a line for each batch: above 1 the GPU takes less.",
            "GPU over CPU by batch, perceptrons of {depth} hidden layers, {inputs} inputs",
            tuple(
                Panels("width", where={**GRID, "device": "cuda", "step": step}, title=f"GPU {step}")
                for step in ("eager", "captured")
            ),
            "batch", "CPU time / GPU time", over={"device": "cpu"},
        ),
        Lines(
            "widths", "A training step over the width of the hidden layers (column iteration_s).",
            "time over width, perceptrons of {depth} hidden layers, {inputs} inputs",
            (Panels("width", where=GRID, by=("batch",), title="batch {batch:,}"),),
        ),
        Lines(
            "sweeps", "A training step over the number of hidden layers and of input features (column "
            "iteration_s), other variables as in the title.",
            "width {width}, batch {batch}, else {depth} hidden layers and {inputs} inputs",
            (Panels("depth", "hidden layers", BY_DEPTH), Panels("inputs", "input features", BY_INPUTS)),
        ),
        Lines(
            "recurrent", "A training step over trainable parameters (columns parameters and iteration_s): a "
            "recurrent network over a sequence, and a perceptron that takes the whole sequence at once.",
            "recurrent and feed-forward networks, batch {batch}",
            (Panels("parameters", where=PAIRS, by=("network",), title="{network}"),),
        ),
    ),
    tables=(
        Rows("a training step, perceptrons", (*NAMED, "parameters"), BOTH, {"equal_parameters": 0}, ARMS,
             ratio=True),
        Rows("recurrent against feed-forward at equal parameters", (*NAMED, "parameters"), BOTH, PAIRS, ARMS,
             ratio=True),
    ),
    answer=(
        BreakEven(
            "For perceptrons of {depth} hidden layers and {inputs} inputs, a training step on the GPU takes "
            "less time than one on the CPU with the threads of least time, interpolated between measured "
            "widths: ",
            "width", "width", GRID, by="batch",
        ),
    ),
    findings=(
        Times(
            "On the {on}, in multiples of the time of a perceptron with as many parameters (each with its "
            "least time there), a step of the recurrent network takes ",
            over={"network": "mlp", **PAIRS}, of={"parameters": {"network": "lstm"}},
            at=("equal_parameters",), each="{times} at {equal_parameters}",
        ),
        BreakEven("At inputs {inputs}, width {width}, batch {batch}, the GPU takes less time, in numbers of "
                  "hidden layers: ", "depth", where=BY_DEPTH),
        BreakEven("At depth {depth}, width {width}, batch {batch}, the GPU takes less time, in numbers of "
                  "input features: ", "inputs", where=BY_INPUTS),
        BreakEven("On the CPU {most} threads take less time than {least}: ", "width", "width", GRID,
                  by="batch", threads=True),
    ),
    labels={"lstm": "recurrent (LSTM)", "mlp": "perceptron", "depth": "layers"},
)  # fmt: skip


@final
@dataclass(frozen=True)
class SmallNetworks(Experiment):
    """Where the GPU begins to win: around a point `inputs`, `depth`, `width`, `batch` one is varied."""

    name: ClassVar[str] = "small-networks"
    report: ClassVar[Report] = REPORT

    inputs: PositiveInt = 64
    depth: PositiveInt = 2
    width: PositiveInt = 128
    batch: PositiveInt = 64
    widths: tuple[PositiveInt, ...] = (10, 32, 128, 512, 2048, 8192)
    batches: tuple[PositiveInt, ...] = (1, 8, 64, 512, 8192)
    depths: tuple[PositiveInt, ...] = (1, 2, 4, 8, 16, 32)
    input_sizes: tuple[PositiveInt, ...] = (4, 64, 1024, 16384, 131072, 1_000_000)
    equal_parameters: tuple[PositiveInt, ...] = (10_000, 100_000, 1_000_000, 10_000_000)
    threads: tuple[PositiveInt | Literal["all"], ...] = (1, 4, "all")

    def points(self) -> list[Point]:
        base = {"inputs": self.inputs, "depth": self.depth, "width": self.width, "batch": self.batch}
        varied = [
            *({**base, "width": width, "batch": batch} for batch in self.batches for width in self.widths),
            *({**base, "depth": depth} for depth in self.depths),
            *({**base, "inputs": inputs} for inputs in self.input_sizes),
        ]
        networks: list[Point] = [{"network": "mlp", "equal_parameters": 0, **settings} for settings in varied]
        flat = SEQUENCE_INPUTS * SEQUENCE_LENGTH
        for size in self.equal_parameters:
            recurrent = {"inputs": SEQUENCE_INPUTS, "depth": 1, "width": lstm_width(size)}
            forward = {"inputs": flat, "depth": self.depth, "width": mlp_width(size, flat, self.depth)}
            for network, settings in (("lstm", recurrent), ("mlp", forward)):
                same = {"equal_parameters": size, **settings, "batch": self.batch}
                networks.append({"network": network, **same})
        arms: list[Point] = [
            {"step": "eager", "only_device": "cpu", "threads": threads} for threads in self.threads
        ]
        arms += [{"step": step, "only_device": "cuda"} for step in ("eager", "captured")]
        unique = {tuple(network.items()): network for network in networks}
        return [{**network, **arm} for network in unique.values() for arm in arms]

    def measure(self, point: Variables, device: Device, budget: Budget) -> Samples:
        import torch

        from scaling.device_studies.lstm_training import SequenceClassifier
        from scaling.device_studies.training_step import num_parameters, timed, training_step
        from scaling.workloads.base import DataShape
        from scaling.workloads.networks import build_mlp

        inputs, width = point["inputs"], point["width"]
        is_recurrent = point["network"] == "lstm"
        size = (SEQUENCE_LENGTH, inputs) if is_recurrent else (inputs,)
        with device:
            if is_recurrent:
                module: torch.nn.Module = SequenceClassifier("fused", inputs, width, NUM_CLASSES)
            else:
                module = build_mlp(DataShape(size, NUM_CLASSES), [width] * point["depth"])
        yield from facts(parameters=num_parameters(module))

        def make(batch: int) -> Any:
            inputs = torch.randn(batch, *size, device=device)
            targets = torch.randint(NUM_CLASSES, (batch,), device=device)
            return training_step(module, inputs, targets, captured=point["step"] == "captured")

        yield from timed(make, point["batch"], device, budget)


def lstm_width(parameters: int) -> int:
    read = SEQUENCE_INPUTS + 2
    return _width(parameters, lambda w: 4 * w * (read + w) + (w + 1) * NUM_CLASSES)


def mlp_width(parameters: int, inputs: int, depth: int) -> int:
    between = depth - 1
    return _width(parameters, lambda w: (between * w + NUM_CLASSES) * (w + 1) + (inputs + 1) * w)


def _width(parameters: int, count: Callable[[float], float]) -> int:
    """The whole number next to where `count`, which grows, is about that of the parameters; 1 at least."""
    return max(1, bisect(range(1, parameters), float(parameters), key=lambda width: count(width - 0.5)))

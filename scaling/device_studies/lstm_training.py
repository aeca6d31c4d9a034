"""What `lstm-fused` trains: one LSTM layer in three implementations, in three precisions, on two tasks.

At every step of the sequence, with gates i, f, g, o = W_ih x + b_ih + W_hh h + b_hh:

    c = sigmoid(f) c + sigmoid(i) tanh(g),    h = sigmoid(o) tanh(c)

- `elementary`: those lines as they stand, an operation of the framework for each;
- `cell`: a loop over `nn.LSTMCell`, which computes the gates' part in one kernel;
- `fused`: `nn.LSTM`, which is given the whole sequence: cuDNN on a GPU, oneDNN or native code on a CPU.

Weights, activations and gradients are of the precision. In float16 the optimizer works on float32 copies of
the weights, and the loss is multiplied by a constant power of two before the backward pass, since small
gradients would be zero; the loss itself is computed in float32.

- `temporal-order`: a sequence of symbols, one of six at a step; two of them, each X or Y, count, and stand
  somewhere in its second and its third quarter, so that one has to be remembered. Four classes: XX,
  XY, YX, YY. Easier than the original, whose sequences have a hundred steps.
- `mnist-rows`, `digits-rows`: an image is a sequence of its rows, from above; ten classes.

References: S. Hochreiter, J. Schmidhuber, "Long short-term memory", Neural Computation 9 (1997), with its
task 6a; F. Gers, J. Schmidhuber, F. Cummins, "Learning to forget", Neural Computation 12 (2000); P.
Micikevicius et al., "Mixed precision training", arXiv 1710.03740; Q. V. Le, N. Jaitly, G. E. Hinton, "A
simple way to initialize recurrent networks of rectified linear units", arXiv 1504.00941.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from scaling.device_studies.base import Budget, LeftOutError, Samples, steps
from scaling.workloads.base import cross_entropy
from scaling.workloads.registry import create_dataset

PILOT_STEPS = 3  # training steps, the first one apart, from which the time of a training is foreseen
TEST_BATCH = 2048
COMPARED_SAMPLES = 64  # on so many the logits are compared with those of float64
IMPLEMENTATIONS = ("elementary", "cell", "fused")
FORGET_BIAS = 1.0
"""Added to the forget gate's bias: a new network remembers, and learns sooner.

Source: R. Jozefowicz, W. Zaremba, I. Sutskever, "An empirical exploration of recurrent network
architectures", ICML 2015.
"""


class ElementaryLstm(nn.Module):
    """Every operation on its own; parameters are named and shaped as in `nn.LSTMCell`. `inputs` numbers are
    read at a step; the state has `width`."""

    def __init__(self, inputs: int, width: int) -> None:
        super().__init__()
        self.width = width
        bound = width**-0.5  # range and order are those of nn.LSTM
        shapes = [(4 * width, inputs), (4 * width, width), (4 * width,), (4 * width,)]
        drawn = (nn.Parameter(torch.empty(shape).uniform_(-bound, bound)) for shape in shapes)
        self.weight_ih, self.weight_hh, self.bias_ih, self.bias_hh = drawn

    def forward(self, sequence: Tensor) -> Tensor:
        """[n, length, inputs] -> the last output, [n, width]."""
        hidden = cell = sequence.new_zeros(len(sequence), self.width)
        weight_ih, weight_hh = self.weight_ih.t(), self.weight_hh.t()
        for inputs in sequence.unbind(1):
            gates = inputs @ weight_ih + self.bias_ih + hidden @ weight_hh + self.bias_hh
            admit, forget, new, emit = gates.chunk(4, dim=1)
            cell = torch.sigmoid(forget) * cell + torch.sigmoid(admit) * torch.tanh(new)
            hidden = torch.sigmoid(emit) * torch.tanh(cell)
        return hidden


class CellLoopLstm(nn.Module):
    """A loop over `nn.LSTMCell`; see `ElementaryLstm`."""

    def __init__(self, inputs: int, width: int) -> None:
        super().__init__()
        self.width = width
        self.cell = nn.LSTMCell(inputs, width)

    def forward(self, sequence: Tensor) -> Tensor:
        hidden = cell = sequence.new_zeros(len(sequence), self.width)
        for inputs in sequence.unbind(1):
            hidden, cell = self.cell(inputs, (hidden, cell))
        return hidden


class FusedLstm(nn.Module):
    def __init__(self, inputs: int, width: int) -> None:
        super().__init__()
        self.lstm = nn.LSTM(inputs, width, batch_first=True)

    def forward(self, sequence: Tensor) -> Tensor:
        outputs, _ = self.lstm(sequence)
        last: Tensor = outputs[:, -1]
        return last


class SequenceClassifier(nn.Module):
    """An LSTM layer and a linear layer on its last output. Two of different implementations have the same
    weights after the same `torch.manual_seed`: both draw the layer's four tensors in the same order from the
    same range."""

    def __init__(self, implementation: str, inputs: int, width: int, num_classes: int) -> None:
        super().__init__()
        layers = {"elementary": ElementaryLstm, "cell": CellLoopLstm, "fused": FusedLstm}
        self.recurrent = layers[implementation](inputs, width)
        self.linear = nn.Linear(width, num_classes)
        with torch.no_grad():
            for name, parameter in self.recurrent.named_parameters():
                if "bias_ih" in name:
                    parameter[width : 2 * width] += FORGET_BIAS

    def forward(self, sequence: Tensor) -> Tensor:
        """[n, length, inputs] -> logits [n, num_classes]."""
        logits: Tensor = self.linear(self.recurrent(sequence))
        return logits


PRECISIONS = {"float64": torch.float64, "float32": torch.float32, "float16": torch.float16}
LOSS_SCALE = 1024.0


class PreciseTraining:
    """A network in training. The network, which is on its device, is changed to the precision; Adam has
    torch's other defaults."""

    def __init__(self, network: nn.Module, precision: str, learning_rate: float) -> None:
        self.network = network.to(PRECISIONS[precision])
        self._weights: list[Tensor] = list(network.parameters())
        self._is_half = precision == "float16"
        self._masters = self._weights
        if self._is_half:
            self._masters = [weight.detach().float().requires_grad_() for weight in self._weights]
        self._optimizer = torch.optim.Adam(self._masters, lr=learning_rate, fused=True)

    def step(self, inputs: Tensor, targets: Tensor) -> Tensor:
        self.network.zero_grad(set_to_none=True)
        logits = self.network(inputs)
        if not self._is_half:
            loss = cross_entropy(logits, targets)
            loss.backward()  # type: ignore[no-untyped-call]
            self._optimizer.step()
            return loss.detach()
        loss = cross_entropy(logits.float(), targets)
        (loss * LOSS_SCALE).backward()  # type: ignore[no-untyped-call]
        with torch.no_grad():
            for weight, master in zip(self._weights, self._masters, strict=True):
                assert weight.grad is not None
                master.grad = weight.grad.float() / LOSS_SCALE
            self._optimizer.step()
            for weight, master in zip(self._weights, self._masters, strict=True):
                weight.copy_(master)
        return loss.detach()


NUM_SYMBOLS = 6
NUM_DISTRACTORS = 4  # the first four symbols count nothing; the last two are X and Y
DATA_SEED = 0  # of the synthetic task's sequences: the same for every seed of a training


@dataclass(frozen=True)
class SequenceTask:
    """Sequences in memory; to train on: [n, length, features] float32, [n] int64."""

    inputs: Tensor
    targets: Tensor
    test_inputs: Tensor
    test_targets: Tensor
    num_classes: int

    def to(self, device: torch.device, dtype: torch.dtype) -> SequenceTask:
        inputs, test_inputs = (inputs.to(device, dtype) for inputs in (self.inputs, self.test_inputs))
        targets, test_targets = self.targets.to(device), self.test_targets.to(device)
        return SequenceTask(inputs, targets, test_inputs, test_targets, self.num_classes)


@lru_cache(maxsize=2)
def temporal_order(length: int, num_train: int, num_test: int) -> SequenceTask:
    """The synthetic task, from a generator of its own; kept between cells."""
    generator = torch.Generator().manual_seed(DATA_SEED)
    num_all = num_train + num_test
    symbols = torch.randint(NUM_DISTRACTORS, (num_all, length), generator=generator)
    marks = torch.randint(2, (num_all, 2), generator=generator)
    quarter = length // 4
    within = torch.randint(quarter, (num_all, 2), generator=generator)
    places = within + torch.tensor([quarter, 2 * quarter])
    symbols.scatter_(1, places, NUM_DISTRACTORS + marks)
    inputs = nn.functional.one_hot(symbols, NUM_SYMBOLS).float()
    targets = marks @ torch.tensor([2, 1])
    return SequenceTask(
        inputs[:num_train], targets[:num_train], inputs[num_train:], targets[num_train:], num_classes=4
    )


@lru_cache(maxsize=2)
def image_rows(name: str, shrink: int, num_train: int, num_test: int) -> SequenceTask:
    """The first images of a data set of grey ones, row by row; kept between cells. `shrink` pixels in both
    directions become one, their mean; `num_train` and `num_test` at most are taken. Raises DataError: a file
    is missing or damaged."""
    dataset = create_dataset(name)
    splits = dataset.load(dataset.shape(None), num_train, DATA_SEED)
    train, test = splits.train, splits.test

    def rows(images: Tensor) -> Tensor:
        return nn.functional.avg_pool2d(images, shrink).squeeze(1)

    return SequenceTask(
        rows(train.inputs[:num_train]),
        train.targets[:num_train],
        rows(test.inputs[:num_test]),
        test.targets[:num_test],
        num_classes=dataset.shape(None).num_classes,
    )


@dataclass(frozen=True)
class Measurement:
    """One cell of the study."""

    study: Any
    task: SequenceTask
    point: Mapping[str, Any]
    device: torch.device

    def rows(self, budget: Budget) -> Samples:
        point, task = self.point, self.task
        yield {"fact": "sequence_length", "value": task.inputs.shape[1]}
        yield {"fact": "features", "value": task.inputs.shape[2]}
        yield {"fact": "train_samples", "value": len(task.targets)}
        yield {"fact": "test_samples", "value": len(task.test_targets)}
        yield {"fact": "logit_difference", "value": self._logit_difference()}
        placed = task.to(self.device, PRECISIONS[point["precision"]])
        if (point["width"], point["batch"]) == (self.study.accuracy_width, self.study.accuracy_batch):
            with one_thread():
                rows = list(self._accuracies(placed))
            yield from rows
        yield from self._phases(placed, budget)

    def _network(self, seed: int, implementation: str | None = None) -> SequenceClassifier:
        torch.manual_seed(seed)
        sizes = (self.task.inputs.shape[2], self.point["width"], self.task.num_classes)
        return SequenceClassifier(implementation or self.point["implementation"], *sizes)

    def _logit_difference(self) -> float:
        inputs, seed = self.task.inputs[:COMPARED_SAMPLES], self.study.seeds[0]
        dtype = PRECISIONS[self.point["precision"]]
        network = self._network(seed).to(self.device, dtype)
        exact = self._network(seed, "elementary").double()
        with torch.inference_mode():
            logits = network(inputs.to(self.device, dtype)).cpu().double()
            return float((logits - exact(inputs.double())).abs().max())

    def _accuracies(self, task: SequenceTask) -> Samples:
        seeds = self.study.seeds
        try:
            scores = [self._accuracy(task, seed) for seed in seeds]
        except LeftOutError as error:
            yield {"fact": "accuracy_left_out", "value": str(error)}
            return
        yield {"fact": "accuracy_by_seed", "x": list(seeds), "y": scores}
        yield {"fact": "accuracy", "value": float(np.mean(scores))}
        if len(scores) > 1:
            yield {"fact": "accuracy_sd", "value": float(np.std(scores, ddof=1))}
        yield {"fact": "training_steps", "value": self.study.steps}

    def _accuracy(self, task: SequenceTask, seed: int) -> float:
        """Right answers per held-out sample after a training. Raises LeftOutError: the cell's trainings would
        take too long."""
        network, study = self._network(seed).to(self.device), self.study
        training = PreciseTraining(network, self.point["precision"], study.learning_rate)
        generator = torch.Generator().manual_seed(seed)
        shape = (self.study.steps, self.point["batch"])
        order = torch.randint(len(task.targets), shape, generator=generator).to(self.device)
        now = time.perf_counter if self.device.type == "cuda" else time.thread_time
        start = now()
        for done, picked in enumerate(order):
            training.step(task.inputs[picked], task.targets[picked])
            if done == 0:
                start = now()
            elif done == PILOT_STEPS and seed == self.study.seeds[0]:
                expected_s = (now() - start) / PILOT_STEPS * study.steps * len(study.seeds)
                if expected_s > study.training_limit_s:
                    raise LeftOutError(
                        f"{len(study.seeds)} trainings of {study.steps} steps would take {expected_s:.0f} s, "
                        f"more than training_limit_s: {study.training_limit_s:g}"
                    )
        right = 0
        with torch.inference_mode():
            for first in range(0, len(task.test_targets), TEST_BATCH):
                part = slice(first, first + TEST_BATCH)
                right += int((network(task.test_inputs[part]).argmax(1) == task.test_targets[part]).sum())
        return right / len(task.test_targets)

    def _phases(self, placed: SequenceTask, budget: Budget) -> Samples:
        device = self.device
        picked = (torch.arange(self.point["batch"]) % len(placed.targets)).to(device)
        inputs, targets = placed.inputs[picked], placed.targets[picked]
        host_inputs = inputs.cpu()
        network = self._network(self.study.seeds[0]).to(device)
        training = PreciseTraining(network, self.point["precision"], self.study.learning_rate)

        @torch.inference_mode()
        def evaluate() -> object:
            logits = network(inputs)
            return cross_entropy(logits.float(), targets), (logits.argmax(1) == targets).sum()

        @torch.inference_mode()
        def predict() -> object:
            return network(host_inputs.to(device)).argmax(1).cpu()

        yield {"fact": "samples", "value": self.point["batch"]}
        yield from steps(budget.samples(lambda: training.step(inputs, targets), device))
        yield from steps(budget.samples(evaluate, device), "evaluate")
        yield from steps(budget.samples(predict, device), "predict")


@contextmanager
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)

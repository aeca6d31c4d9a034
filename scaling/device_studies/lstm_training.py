"""What `lstm-fused` trains: one LSTM layer in three implementations, in three precisions, on two tasks.

With gates i, f, g, o = W_ih x + b_ih + W_hh h + b_hh: c = sigmoid(f) c + sigmoid(i) tanh(g), h = sigmoid(o)
tanh(c). `elementary` has those lines as they stand; `cell` is a loop over `nn.LSTMCell`; `fused` is
`nn.LSTM`, which is given the whole sequence: cuDNN on a GPU, oneDNN or native code on a CPU.

In float16 the optimizer works on float32 copies of the weights, and the loss, in float32, is multiplied by a
power of two before the backward pass, since small gradients would be zero.

`temporal-order`: of a sequence of symbols two, each X or Y, count, and stand somewhere in its second and its
third quarter. Four classes: XX, XY, YX, YY; the original's sequences have a hundred steps. `mnist-rows`,
`digits-rows`: an image is a sequence of its rows, from above; ten classes.

References: S. Hochreiter, J. Schmidhuber, "Long short-term memory", Neural Computation 9 (1997), task 6a; F.
Gers, J. Schmidhuber, F. Cummins, "Learning to forget", Neural Computation 12 (2000); P. Micikevicius et al.,
"Mixed precision training", arXiv 1710.03740; Q. V. Le, N. Jaitly, G. E. Hinton, "A simple way to initialize
recurrent networks of rectified linear units", arXiv 1504.00941."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from scaling.aggregators.host import threads
from scaling.device_studies.base import Budget, LeftOutError, Samples, facts, steps
from scaling.workloads.base import Split, cross_entropy
from scaling.workloads.registry import create_dataset

PILOT_STEPS = 3  # training steps, the first one apart, from which the time of a training is foreseen
TEST_BATCH = 2048
COMPARED_SAMPLES = 64  # on so many the logits are compared with those of float64
# Added to the forget gate's bias: a new network remembers, and learns sooner. R. Jozefowicz, W. Zaremba, I.
# Sutskever, "An empirical exploration of recurrent network architectures", ICML 2015.
FORGET_BIAS = 1.0


class SequenceClassifier(nn.Module):
    """An LSTM layer and a linear layer on its last output. Implementations have the same weights after the
    same `torch.manual_seed`: all draw the layer's four tensors in the same order from the same range."""

    def __init__(self, implementation: str, inputs: int, width: int, num_classes: int) -> None:
        super().__init__()
        self._implementation, self._width = implementation, width
        is_fused = implementation == "fused"
        self.recurrent = nn.LSTM(inputs, width, batch_first=True) if is_fused else nn.LSTMCell(inputs, width)
        self.linear = nn.Linear(width, num_classes)
        with torch.no_grad():
            for name, parameter in self.recurrent.named_parameters():
                if "bias_ih" in name:
                    parameter[width : 2 * width] += FORGET_BIAS

    def forward(self, sequence: Tensor) -> Tensor:
        """[n, length, inputs] -> logits [n, num_classes]."""
        logits: Tensor = self.linear(self._last(sequence))
        return logits

    def _last(self, sequence: Tensor) -> Tensor:
        if self._implementation == "fused":
            outputs: Tensor = self.recurrent(sequence)[0]
            return outputs[:, -1]
        hidden = cell = sequence.new_zeros(len(sequence), self._width)
        *weights, bias_ih, bias_hh = self.recurrent.parameters()
        weight_ih, weight_hh = (weight.t() for weight in weights)
        for inputs in sequence.unbind(1):
            if self._implementation == "cell":
                hidden, cell = self.recurrent(inputs, (hidden, cell))
                continue
            gates = inputs @ weight_ih + bias_ih + hidden @ weight_hh + bias_hh
            admit, forget, new, emit = gates.chunk(4, dim=1)
            cell = torch.sigmoid(forget) * cell + torch.sigmoid(admit) * torch.tanh(new)
            hidden = torch.sigmoid(emit) * torch.tanh(cell)
        return hidden


PRECISIONS = {"float64": torch.float64, "float32": torch.float32, "float16": torch.float16}
LOSS_SCALE = 1024.0


class PreciseTraining:
    """A network in training, changed to the precision; Adam has torch's other defaults."""

    def __init__(self, network: nn.Module, precision: str, learning_rate: float) -> None:
        self.network = network.to(PRECISIONS[precision])
        self._is_half = precision == "float16"
        masters: list[Tensor] = list(network.parameters())
        if self._is_half:
            masters = [weight.detach().float().requires_grad_() for weight in masters]
        self._pairs = [*zip(network.parameters(), masters, strict=True)]
        self._optimizer = torch.optim.Adam(masters, lr=learning_rate, fused=True)

    def step(self, inputs: Tensor, targets: Tensor) -> Tensor:
        self.network.zero_grad(set_to_none=True)
        logits = self.network(inputs)
        loss = cross_entropy(logits.float() if self._is_half else logits, targets)
        (loss * LOSS_SCALE if self._is_half else loss).backward()  # type: ignore[no-untyped-call]
        for weight, master in self._pairs if self._is_half else ():
            assert weight.grad is not None
            master.grad = weight.grad.float() / LOSS_SCALE
        self._optimizer.step()
        with torch.no_grad():
            for weight, master in self._pairs if self._is_half else ():
                weight.copy_(master)
        return loss.detach()


NUM_DISTRACTORS = 4  # the first four symbols count nothing; the last two are X and Y
DATA_SEED = 0  # of the synthetic task's sequences: the same for every seed of a training


class SequenceTask(NamedTuple):
    """Sequences in memory: [n, length, features] float32."""

    train: Split
    test: Split
    num_classes: int


@lru_cache(maxsize=2)
def temporal_order(length: int, num_train: int, num_test: int) -> SequenceTask:
    generator = torch.Generator().manual_seed(DATA_SEED)
    num_all = num_train + num_test
    symbols = torch.randint(NUM_DISTRACTORS, (num_all, length), generator=generator)
    marks = torch.randint(2, (num_all, 2), generator=generator)
    quarter = length // 4
    within = torch.randint(quarter, (num_all, 2), generator=generator)
    symbols.scatter_(1, within + torch.tensor([quarter, 2 * quarter]), NUM_DISTRACTORS + marks)
    inputs = nn.functional.one_hot(symbols, 6).float()
    targets = marks @ torch.tensor([2, 1])
    train, test = (Split(inputs[part], targets[part]) for part in (slice(num_train), slice(num_train, None)))
    return SequenceTask(train, test, num_classes=4)


@lru_cache(maxsize=2)
def image_rows(name: str, shrink: int, num_train: int, num_test: int) -> SequenceTask:
    """The first images, row by row; `shrink` x `shrink` pixels become their mean. May raise DataError."""
    dataset = create_dataset(name)
    shape = dataset.shape(None)
    splits = dataset.load(shape, num_train, DATA_SEED)
    train, test = (
        Split(nn.functional.avg_pool2d(part.inputs[:most], shrink).squeeze(1), part.targets[:most])
        for part, most in ((splits.train, num_train), (splits.test, num_test))
    )
    return SequenceTask(train, test, shape.num_classes)


@dataclass(frozen=True)
class LstmMeasurement:
    study: Any
    task: SequenceTask
    point: Mapping[str, Any]
    device: torch.device

    def rows(self, budget: Budget) -> Samples:
        point, (train, test, _) = self.point, self.task
        _, length, features = train.inputs.shape
        yield from facts(sequence_length=length, features=features)
        yield from facts(train_samples=len(train), test_samples=len(test))
        yield from facts(logit_difference=self._logit_difference())
        train, test = (
            Split(part.inputs.to(self.device, PRECISIONS[point["precision"]]), part.targets.to(self.device))
            for part in (train, test)
        )
        if (point["width"], point["batch"]) == (self.study.accuracy_width, self.study.accuracy_batch):
            with threads(1):
                rows = list(self._accuracies(train, test))
            yield from rows
        yield from self._phases(train, budget)

    def _network(self, seed: int, implementation: str | None = None) -> SequenceClassifier:
        torch.manual_seed(seed)
        sizes = (self.task.train.inputs.shape[2], self.point["width"], self.task.num_classes)
        return SequenceClassifier(implementation or self.point["implementation"], *sizes)

    def _training(self, seed: int) -> PreciseTraining:
        network = self._network(seed).to(self.device)
        return PreciseTraining(network, self.point["precision"], self.study.learning_rate)

    def _logit_difference(self) -> float:
        inputs, seed = self.task.train.inputs[:COMPARED_SAMPLES], self.study.seeds[0]
        dtype = PRECISIONS[self.point["precision"]]
        network = self._network(seed).to(self.device, dtype)
        exact = self._network(seed, "elementary").double()
        with torch.inference_mode():
            logits = network(inputs.to(self.device, dtype)).cpu().double()
            return float((logits - exact(inputs.double())).abs().max())

    def _accuracies(self, train: Split, test: Split) -> Samples:
        seeds = self.study.seeds
        try:
            scores = [self._accuracy(train, test, seed) for seed in seeds]
        except LeftOutError as error:
            yield from facts(accuracy_left_out=str(error))
            return
        yield {"fact": "accuracy_by_seed", "x": list(seeds), "y": scores}
        yield from facts(accuracy=float(np.mean(scores)))
        if len(scores) > 1:
            yield from facts(accuracy_sd=float(np.std(scores, ddof=1)))
        yield from facts(training_steps=self.study.steps)

    def _accuracy(self, train: Split, test: Split, seed: int) -> float:
        """Right answers per held-out sample. Raises LeftOutError: the cell's trainings would take too
        long."""
        study, training = self.study, self._training(seed)
        generator = torch.Generator().manual_seed(seed)
        shape = (study.steps, self.point["batch"])
        order = torch.randint(len(train), shape, generator=generator).to(self.device)
        now = time.perf_counter if self.device.type == "cuda" else time.thread_time
        start = now()
        for done, picked in enumerate(order):
            training.step(train.inputs[picked], train.targets[picked])
            if done == 0:
                start = now()
            elif done == PILOT_STEPS and seed == study.seeds[0]:
                expected_s = (now() - start) / PILOT_STEPS * study.steps * len(study.seeds)
                if expected_s > study.training_limit_s:
                    raise LeftOutError(
                        f"{len(study.seeds)} trainings of {study.steps} steps would take {expected_s:.0f} s, "
                        f"more than training_limit_s: {study.training_limit_s:g}"
                    )
        with torch.inference_mode():
            firsts = range(0, len(test), TEST_BATCH)
            answers = [training.network(test.inputs[at : at + TEST_BATCH]).argmax(1) for at in firsts]
            return float((torch.cat(answers) == test.targets).sum()) / len(test)

    def _phases(self, train: Split, budget: Budget) -> Samples:
        device = self.device
        picked = (torch.arange(self.point["batch"]) % len(train)).to(device)
        inputs, targets = train.inputs[picked], train.targets[picked]
        host_inputs = inputs.cpu()
        training = self._training(self.study.seeds[0])
        network = training.network

        @torch.inference_mode()
        def evaluate() -> object:
            logits = network(inputs)
            return cross_entropy(logits.float(), targets), (logits.argmax(1) == targets).sum()

        @torch.inference_mode()
        def predict() -> object:
            return network(host_inputs.to(device)).argmax(1).cpu()

        yield from facts(samples=self.point["batch"])
        yield from steps(budget.samples(lambda: training.step(inputs, targets), device))
        yield from steps(budget.samples(evaluate, device), "evaluate")
        yield from steps(budget.samples(predict, device), "predict")

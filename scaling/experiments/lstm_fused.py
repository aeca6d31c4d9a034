"""How should an LSTM be written, and in which precision? Three implementations on CPU and GPU.

A cell is one task, implementation, precision, width and batch. Its phases, each on one batch:

- `step`: an optimizer update on samples that are on the device (`samples_per_s` is of it);
- `evaluate`: forward pass, loss and the number of right answers, all on the device;
- `predict`: samples from host memory, answers back to it.

At one width and batch the cell also trains anew with every seed and tells the accuracy on held-out samples.
Weights and order of samples depend on the seed alone, so that implementations and precisions can be compared
in pairs. On a CPU these trainings take one thread, so that accuracies do not depend on the cores.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar, Literal, final

import numpy as np
import torch
from pydantic import PositiveFloat, PositiveInt

from scaling.experiments.base import Budget, Experiment, LeftOutError, Point, steps
from scaling.experiments.precise_training import PRECISIONS, PreciseTraining, num_right
from scaling.experiments.recurrent_networks import SequenceClassifier
from scaling.experiments.sequence_tasks import SequenceTask, image_rows, temporal_order
from scaling.workloads.base import cross_entropy
from scaling.workloads.registry import create_dataset

SYNTHETIC = "temporal-order"
REAL = {"mnist-rows": "mnist", "digits-rows": "digits"}
"""Task -> data set."""

PILOT_STEPS = 3
"""Training steps, the first one apart, from which the time of a training is foreseen."""

TEST_BATCH = 2048
COMPARED_SAMPLES = 64
"""On so many the logits are compared with those of float64."""


@final
@dataclass(frozen=True)
class LstmFused(Experiment):
    """Speed and accuracy of one LSTM layer with a linear layer behind it.

    Attributes:
        implementations: of `elementary`, `cell`, `fused`.
        precisions: of `float64`, `float32`, `float16`.
        batches: samples of a step on the real task, where the speed is measured.
        width: of the LSTM's state there.
        length: of the synthetic sequences.
        real: data set that is read row by row; `auto` is MNIST where it is on this machine, else digits.
        shrink: so many pixels of an image become one, in both directions.
        train_samples, test_samples: at most.
        accuracy_batch, accuracy_width: with these the accuracy is measured, on both tasks.
        steps: optimizer updates of such a training.
        learning_rate: of Adam in it.
        seeds: a training for each.
        training_limit_s: a cell's trainings are left out where they would take longer (on a CPU: of its
            time, however busy it is).
    """

    name: ClassVar[str] = "lstm-fused"

    implementations: tuple[Literal["elementary", "cell", "fused"], ...] = ("elementary", "cell", "fused")
    precisions: tuple[Literal["float64", "float32", "float16"], ...] = ("float64", "float32", "float16")
    batches: tuple[PositiveInt, ...] = (128, 1024, 4700)
    width: PositiveInt = 64
    length: PositiveInt = 20
    real: Literal["auto", "mnist", "digits"] = "auto"
    shrink: PositiveInt = 1
    train_samples: PositiveInt = 60_000
    test_samples: PositiveInt = 10_000
    accuracy_batch: PositiveInt = 128
    accuracy_width: PositiveInt = 32
    steps: PositiveInt = 100
    learning_rate: PositiveFloat = 0.02
    seeds: tuple[int, ...] = (1, 2, 3)
    training_limit_s: PositiveFloat = 20.0

    def points(self) -> list[Point]:
        """Accuracy on both tasks, speed on the real one; all in every way and precision."""
        real = self._real_task()
        trained = [(task, self.accuracy_width, self.accuracy_batch) for task in (SYNTHETIC, real)]
        timed = [(real, self.width, batch) for batch in self.batches]
        return [
            {
                "task": task,
                "implementation": implementation,
                "precision": precision,
                "width": width,
                "batch": batch,
            }
            for task, width, batch in dict.fromkeys([*trained, *timed])
            for precision in self.precisions
            for implementation in self.implementations
        ]

    def _real_task(self) -> str:
        wanted = self.real
        if wanted == "auto":
            wanted = "mnist" if create_dataset("mnist").available() else "digits"
        return next(task for task, dataset in REAL.items() if dataset == wanted)

    def measure(
        self, point: Mapping[str, Any], device: torch.device, budget: Budget
    ) -> Iterator[dict[str, Any]]:
        """Difference from float64, accuracy where it is this batch's turn, and the three phases."""
        task = self._task(point["task"])
        yield from self._facts(task)
        yield {"fact": "logit_difference", "value": self._logit_difference(task, point, device)}
        placed = task.to(device, PRECISIONS[point["precision"]])
        if (point["width"], point["batch"]) == (self.accuracy_width, self.accuracy_batch):
            with one_thread():
                rows = list(self._accuracies(placed, point, device))
            yield from rows
        yield from self._phases(task, placed, point, device, budget)

    def _task(self, name: str) -> SequenceTask:
        if name == SYNTHETIC:
            return synthetic_task(self.length, self.train_samples, self.test_samples)
        return real_task(REAL[name], self.shrink, self.train_samples, self.test_samples)

    def _facts(self, task: SequenceTask) -> Iterator[dict[str, Any]]:
        yield {"fact": "sequence_length", "value": task.inputs.shape[1]}
        yield {"fact": "features", "value": task.inputs.shape[2]}
        yield {"fact": "train_samples", "value": len(task.targets)}
        yield {"fact": "test_samples", "value": len(task.test_targets)}

    def _network(self, task: SequenceTask, point: Mapping[str, Any], seed: int) -> SequenceClassifier:
        torch.manual_seed(seed)
        return SequenceClassifier(
            point["implementation"], task.inputs.shape[2], point["width"], task.num_classes
        )

    def _logit_difference(self, task: SequenceTask, point: Mapping[str, Any], device: torch.device) -> float:
        """The largest difference of an untrained network's logits from those in float64 on the CPU."""
        inputs = task.inputs[:COMPARED_SAMPLES]
        dtype = PRECISIONS[point["precision"]]
        network = self._network(task, point, self.seeds[0]).to(device, dtype)
        exact = self._network(task, {**point, "implementation": "elementary"}, self.seeds[0]).double()
        with torch.inference_mode():
            logits = network(inputs.to(device, dtype)).cpu().double()
            return float((logits - exact(inputs.double())).abs().max())

    def _accuracies(
        self, task: SequenceTask, point: Mapping[str, Any], device: torch.device
    ) -> Iterator[dict[str, Any]]:
        try:
            scores = [self._accuracy(task, point, device, seed) for seed in self.seeds]
        except LeftOutError as error:
            yield {"fact": "accuracy_left_out", "value": str(error)}
            return
        yield {"fact": "accuracy_by_seed", "x": list(self.seeds), "y": scores}
        yield {"fact": "accuracy", "value": float(np.mean(scores))}
        if len(scores) > 1:
            yield {"fact": "accuracy_sd", "value": float(np.std(scores, ddof=1))}
        yield {"fact": "training_steps", "value": self.steps}

    def _accuracy(
        self, task: SequenceTask, point: Mapping[str, Any], device: torch.device, seed: int
    ) -> float:
        """Right answers per held-out sample after a training.

        Raises:
            LeftOutError: the cell's trainings would take too long.
        """
        network = self._network(task, point, seed).to(device)
        training = PreciseTraining(network, point["precision"], self.learning_rate)
        generator = torch.Generator().manual_seed(seed)
        shape = (self.steps, point["batch"])
        order = torch.randint(len(task.targets), shape, generator=generator).to(device)
        now = time.perf_counter if device.type == "cuda" else time.thread_time
        start = now()
        for done, picked in enumerate(order):
            training.step(task.inputs[picked], task.targets[picked])
            if done == 0:
                start = now()
            elif done == PILOT_STEPS and seed == self.seeds[0]:
                self._check_time((now() - start) / PILOT_STEPS)
        right = 0
        for first in range(0, len(task.test_targets), TEST_BATCH):
            part = slice(first, first + TEST_BATCH)
            right += int(num_right(network, task.test_inputs[part], task.test_targets[part]))
        return right / len(task.test_targets)

    def _check_time(self, step_s: float) -> None:
        expected_s = step_s * self.steps * len(self.seeds)
        if expected_s > self.training_limit_s:
            raise LeftOutError(
                f"{len(self.seeds)} trainings of {self.steps} steps would take {expected_s:.0f} s, more than "
                f"training_limit_s: {self.training_limit_s:g}"
            )

    def _phases(
        self,
        task: SequenceTask,
        placed: SequenceTask,
        point: Mapping[str, Any],
        device: torch.device,
        budget: Budget,
    ) -> Iterator[dict[str, Any]]:
        picked = torch.arange(point["batch"]) % len(task.targets)
        inputs, targets = placed.inputs[picked.to(device)], placed.targets[picked.to(device)]
        host_inputs = inputs.cpu()
        network = self._network(task, point, self.seeds[0]).to(device)
        training = PreciseTraining(network, point["precision"], self.learning_rate)

        @torch.inference_mode()
        def evaluate() -> object:
            logits = network(inputs)
            return cross_entropy(logits.float(), targets), (logits.argmax(1) == targets).sum()

        @torch.inference_mode()
        def predict() -> object:
            return network(host_inputs.to(device)).argmax(1).cpu()

        yield {"fact": "samples", "value": point["batch"]}
        yield from steps(budget.samples(lambda: training.step(inputs, targets), device))
        yield from steps(budget.samples(evaluate, device), "evaluate")
        yield from steps(budget.samples(predict, device), "predict")


@contextmanager
def one_thread() -> Iterator[None]:
    """Within it torch computes on a CPU with one thread."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@lru_cache(maxsize=2)
def synthetic_task(length: int, num_train: int, num_test: int) -> SequenceTask:
    """See `temporal_order`; kept between cells."""
    return temporal_order(length, num_train, num_test)


@lru_cache(maxsize=2)
def real_task(dataset: str, shrink: int, num_train: int, num_test: int) -> SequenceTask:
    """See `image_rows`; kept between cells."""
    return image_rows(dataset, shrink, num_train, num_test)

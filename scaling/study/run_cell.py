"""Runs one cell on one rank: builds what its names stand for, measures or trains, hands out samples."""

from __future__ import annotations

import gc
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from scaling.aggregators.base import PhaseMarker
from scaling.aggregators.registry import create as create_aggregator
from scaling.measure.clock import clock_for
from scaling.measure.phases import PhaseRecorder
from scaling.process_group import TorchGroup
from scaling.study.cells import Cell
from scaling.training.captured import CapturedStep
from scaling.training.convergence import TrainingPlan, train
from scaling.training.replica import Replica
from scaling.training.step import EagerStep, Step
from scaling.training.timing import Extent, measure_iterations
from scaling.training.update import SgdSettings
from scaling.workloads.base import DataSplits, Split
from scaling.workloads.registry import build_module, create_dataset, create_model, resolve_shape
from scaling.workloads.sampling import epoch_batches, shard

TIMING_BATCHES = 4
"""Different global batches that timed iterations take in turn."""

MAX_LOADED = 2
"""Data sets that stay on the device between cells, which come in random order; its memory is finite."""

WriteSamples = Callable[[Iterable[Mapping[str, Any]]], None]


@dataclass(frozen=True)
class RankSummary:
    """What one rank says of a finished cell, besides its samples."""

    num_parameters: int
    bytes_sent: int
    messages_sent: int | None
    warmup_iterations: int | None
    checksums: dict[str, str]
    diverged: bool
    notes: list[str]


class CellRunner:
    """Runs cells on one rank; keeps the data sets it has loaded.

    Args:
        device: this rank's.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._loaded: dict[str, DataSplits] = {}

    def run(self, cell: Cell, group: TorchGroup, write: WriteSamples) -> RankSummary:
        """Measures or trains `cell`. Collective.

        Args:
            cell: on this rank's kind of device and of the group's world size.
            group: the ranks of the cell.
            write: takes this rank's samples, in order.
        """
        configure_torch(cell, self._device)
        try:
            splits = self._data(cell)
            step = self._step(cell, group)
            if cell.kind == "iteration":
                return self._time(cell, group, step, splits, write)
            return self._converge(cell, group, step, splits, write)
        finally:
            group.release_host_buffers()
            gc.collect()
            if self._device.type == "cuda":
                torch.cuda.empty_cache()

    def _data(self, cell: Cell) -> DataSplits:
        dataset = create_dataset(cell.dataset, cell.dataset_parameters)
        shape = resolve_shape(create_model(cell.model, cell.model_parameters), dataset)
        needed = TIMING_BATCHES * cell.global_batch
        key = f"{dataset} {shape} {(needed, cell.seed) if not dataset.real else ''}"
        if key not in self._loaded:
            if len(self._loaded) >= MAX_LOADED:
                self._loaded.clear()
            loaded = dataset.load(shape, needed, cell.seed)
            self._loaded[key] = DataSplits(
                self._on_device(loaded.train), self._on_device(loaded.test), loaded.checksums
            )
        return self._loaded[key]

    def _on_device(self, split: Split) -> Split:
        return Split(split.inputs.to(self._device), split.targets.to(self._device))

    def _step(self, cell: Cell, group: TorchGroup) -> Step:
        model = create_model(cell.model, cell.model_parameters)
        shape = resolve_shape(model, create_dataset(cell.dataset, cell.dataset_parameters))
        torch.manual_seed(cell.seed)  # the same weights on every rank
        replica = Replica(build_module(model, shape).to(self._device))
        aggregator = create_aggregator(cell.aggregator, cell.aggregator_parameters)
        settings = SgdSettings(cell.learning_rate, cell.momentum, cell.weight_decay, cell.nesterov)
        if cell.step == "eager":
            return EagerStep(replica, aggregator, settings, group)
        eager = EagerStep(replica, aggregator, settings, group, capturable=True)
        samples = slice(0, cell.local_batch)
        train = self._data(cell).train
        return CapturedStep(eager, train.inputs[samples], train.targets[samples], group)

    def _time(
        self, cell: Cell, group: TorchGroup, step: Step, splits: DataSplits, write: WriteSamples
    ) -> RankSummary:
        assert cell.warmup is not None
        assert cell.iterations is not None
        batches = epoch_batches(len(splits.train), cell.global_batch, cell.seed, 1)[:TIMING_BATCHES]
        own = shard(batches, group.rank, group.world_size).to(self._device)
        num_done = 0

        def iterate(phase: PhaseMarker) -> None:
            nonlocal num_done
            group.meter.reset()
            with phase("input"):
                samples = own[num_done % len(own)]
                inputs, targets = splits.train.inputs[samples], splits.train.targets[samples]
            step(inputs, targets, phase)
            num_done += 1

        extent = Extent(cell.warmup, cell.iterations, cell.max_seconds)
        rows = measure_iterations(iterate, PhaseRecorder(clock_for(self._device)), extent, group)
        write(rows)
        num_warmup = sum(bool(row["warmup"]) for row in rows)
        return self._summary(step, splits, group.meter.bytes_sent, group.meter.messages_sent, num_warmup)

    def _converge(
        self, cell: Cell, group: TorchGroup, step: Step, splits: DataSplits, write: WriteSamples
    ) -> RankSummary:
        assert cell.epochs is not None
        plan = TrainingPlan(cell.global_batch, cell.epochs, cell.seed)
        clock = clock_for(self._device)
        self._throw_away_step(cell, group, splits.train)
        bytes_per_step, diverged = 0, False
        for row in train(step, splits.train, splits.test, plan, group, clock, group.largest):
            bytes_per_step = row["bytes_sent"] // len(row["step_losses"])
            diverged = diverged or not math.isfinite(row["train_loss"])
            # Losses and accuracy are the same on every rank; one copy is enough.
            own = ("epoch", "train_s", "bytes_sent")
            write([row if group.rank == 0 else {key: row[key] for key in own}])
        return self._summary(step, splits, bytes_per_step, None, None, diverged=diverged)

    def _throw_away_step(self, cell: Cell, group: TorchGroup, split: Split) -> None:
        """One step on a replica of its own.

        Libraries and connections are set up on first use, and which cell of a launch comes first is chance.
        """
        samples = slice(0, cell.local_batch)
        self._step(cell, group)(split.inputs[samples], split.targets[samples])
        clock_for(self._device).settle()

    def _summary(
        self,
        step: Step,
        splits: DataSplits,
        bytes_sent: int,
        messages_sent: int | None,
        num_warmup: int | None,
        *,
        diverged: bool = False,
    ) -> RankSummary:
        return RankSummary(
            num_parameters=step.replica.layout.num_elements,
            bytes_sent=bytes_sent,
            messages_sent=messages_sent,
            warmup_iterations=num_warmup,
            checksums=splits.checksums,
            diverged=diverged,
            notes=step.notes,
        )


def configure_torch(cell: Cell, device: torch.device) -> None:
    """Threads and precision of this process, as the cell has them; float32 means float32 everywhere."""
    torch.set_num_threads(cell.threads)
    if device.type == "cuda":
        torch.backends.cuda.matmul.allow_tf32 = bool(cell.tf32)
        torch.backends.cudnn.allow_tf32 = bool(cell.tf32)

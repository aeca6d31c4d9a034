"""Runs one cell on one rank: builds what its names stand for, measures or trains, hands out samples."""

from __future__ import annotations

import copy
import gc
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, cast

import torch
from torch import Tensor, nn

from scaling.aggregators.registry import create as create_aggregator
from scaling.bucket import shapes_by_dtype_text
from scaling.measure import power
from scaling.measure.clock import clock_for
from scaling.measure.phases import Marks, PhaseRecorder
from scaling.process_group import TorchGroup
from scaling.study.cells import AnyCell, Cell
from scaling.study.device import DeviceCell
from scaling.study.run_convergence import SavedCheckpoints, train_cell
from scaling.study.run_device import measure_device
from scaling.study.run_transfer import measure_transfers
from scaling.study.transfer import TransferCell
from scaling.training.batch_norm import has_batch_norm, synchronized
from scaling.training.captured import CapturedStep
from scaling.training.feeding import AugmentedFeeder, InputPlacement, feeder_for
from scaling.training.layered import LayeredStep
from scaling.training.memory_format import with_channels_last
from scaling.training.overlapped import OverlappedStep
from scaling.training.replica import FlatReplica, Replica
from scaling.training.step import EagerStep, Step
from scaling.training.step_check import FIRST_STEPS, LATER_STEPS, StepCheck
from scaling.training.timing import Extent, Measurement
from scaling.training.update import SgdSettings
from scaling.workloads.augmentation import epoch_variations
from scaling.workloads.base import DataSplits, Split
from scaling.workloads.registry import build_module, create_dataset, create_model, resolve_shape
from scaling.workloads.sampling import epoch_batches, shard

TIMING_BATCHES = 4
"""Different global batches that timed iterations take in turn."""

UNUSED_BUCKET_MB = 25.0  # of a step without DDP

MAX_LOADED = 4
"""Data sets that stay on the device, and initial models that stay on the host, between cells, which come in
random order; memory is finite."""

IN_HOST_MEMORY = (
    "the data set does not fit on the device and lies in host memory: a training copies each batch from "
    "there, in its measured time; timed iterations have theirs where input_placement says"
)

WriteSamples = Callable[[Iterable[Mapping[str, Any]]], None]


@dataclass(frozen=True)
class RankSummary:
    """What one rank says of a finished cell, besides its samples.

    Attributes:
        num_parameters: trainable ones; None where there is no model.
        bytes_sent, messages_sent: by this rank in a step, as metered; None where it cannot be counted.
        checksums: of the data.
        notes: what was decided at the start.
        diverged: a loss was not finite.
        memory_peak_bytes: the most that tensors took on this rank's GPU, with the data sets that lie there.
        seconds: part of the run (`setup`, `warmup`, `unsplit`, `split`) -> wall time of the slowest rank.
        warmup_iterations, warmup_end, stop_reason: see `scaling.training.timing`.
        clock_uncertainty_s: how far `start_s` of the samples may be off.
        gpu: see `scaling.measure.power`.
        hosts_before: where a training was before it was cut off, beside the host of the run.
        tensor_shapes: of the trainable parameters (`scaling.bucket.shapes_by_dtype_text`), for predictions.
        checks: what the checks of its exchanges found (`scaling.training.step_check`).
    """

    num_parameters: int | None
    bytes_sent: int | None
    messages_sent: int | None
    checksums: dict[str, str]
    notes: list[str]
    diverged: bool = False
    memory_peak_bytes: int | None = None
    seconds: dict[str, float] = field(default_factory=dict)
    warmup_iterations: int | None = None
    warmup_end: str | None = None
    stop_reason: str | None = None
    clock_uncertainty_s: float | None = None
    gpu: dict[str, Any] | None = None
    hosts_before: list[str] = field(default_factory=list)
    tensor_shapes: str = ""
    checks: dict[str, Any] = field(default_factory=dict)


def notes_of(ranks: Sequence[RankSummary]) -> list[str]:
    """What the record of a run says: rank 0's notes, and on how many ranks the data lay in host memory.

    Each rank finds out for itself whether the data fit, since other processes may fill one GPU alone.
    """
    notes = [note for note in ranks[0].notes if note != IN_HOST_MEMORY]
    if count := sum(IN_HOST_MEMORY in rank.notes for rank in ranks):
        notes.append(f"{IN_HOST_MEMORY} (on {count} of {len(ranks)} rank{'s' if len(ranks) > 1 else ''})")
    return notes


class CellRunner:
    """Runs cells on one rank; keeps the data sets it has loaded.

    Args:
        device: this rank's.

    Attributes:
        seconds: part of the last cell -> wall time, as far as it came.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._loaded: dict[str, DataSplits] = {}
        self._initial: dict[str, tuple[nn.Module, Tensor]] = {}
        self._started = 0.0
        self._peak_bytes: int | None = None  # before the last checks
        self.seconds: dict[str, float] = {}

    def run(
        self,
        cell: AnyCell,
        group: TorchGroup,
        write: WriteSamples,
        saved: SavedCheckpoints | None = None,
    ) -> RankSummary:
        """Measures or trains `cell`. Collective.

        Args:
            cell: on this rank's kind of device and of the group's world size.
            group: the ranks of the cell.
            write: takes this rank's samples, in order.
            saved: where a training's checkpoints are; None: it has none.
        """
        configure_torch(cell, self._device)
        self._started, self.seconds, self._peak_bytes = time.perf_counter(), {}, None
        if self._device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self._device)
        try:
            if isinstance(cell, TransferCell):
                return self._transfer(cell, group, write)
            if isinstance(cell, DeviceCell):
                return self._experiment(cell, write)
            splits = self._data(cell)
            step = self._step(cell, group)
            if cell.kind == "iteration":
                return self._time(cell, group, step, splits, write)
            return self._converge(cell, group, step, splits, write, saved)
        finally:
            group.release_host_buffers()
            gc.collect()
            if self._device.type == "cuda":
                torch.cuda.empty_cache()

    def _transfer(self, cell: TransferCell, group: TorchGroup, write: WriteSamples) -> RankSummary:
        notes = measure_transfers(cell, group, self._device, write)
        self.seconds["unsplit"] = group.largest(time.perf_counter() - self._started)
        return RankSummary(None, None, None, {}, notes, seconds=self.seconds)

    def _experiment(self, cell: DeviceCell, write: WriteSamples) -> RankSummary:
        measure_device(cell, self._device, write)
        self.seconds["unsplit"] = time.perf_counter() - self._started
        return RankSummary(None, None, None, {}, [], False, self._memory_peak_bytes(), self.seconds)

    def _data(self, cell: Cell) -> DataSplits:
        dataset = create_dataset(cell.dataset, cell.dataset_parameters)
        shape = resolve_shape(create_model(cell.model, cell.model_parameters), dataset)
        needed = TIMING_BATCHES * cell.global_batch
        key = f"{dataset} {shape} {(needed, cell.seed) if not dataset.real else ''}"
        if key not in self._loaded:
            if len(self._loaded) >= MAX_LOADED:
                self._loaded.clear()
            loaded = dataset.load(shape, needed, cell.seed)
            self._loaded[key] = self._placed(loaded)
        return self._loaded[key]

    def _placed(self, loaded: DataSplits) -> DataSplits:
        """The data set on the device, or in host memory where it does not fit there.

        It is tried beside this worker's other data sets, then without them. What other workers keep on a GPU
        that they share stays: each clears its own alone.
        """
        for _ in range(2):
            try:
                train, test = self._on_device(loaded.train), self._on_device(loaded.test)
                return DataSplits(train, test, loaded.checksums)
            except torch.OutOfMemoryError:
                self._loaded.clear()
            gc.collect()  # what the failure kept
            torch.cuda.empty_cache()
        return replace(loaded, notes=(IN_HOST_MEMORY,))

    def _on_device(self, split: Split) -> Split:
        return Split(split.inputs.to(self._device), split.targets.to(self._device))

    def _step(self, cell: Cell, group: TorchGroup) -> Step:
        module = self._module(cell).to(self._device)
        if cell.batch_norm == "sync":
            module = synchronized(module, group)
        if cell.memory_format == "channels_last":
            module = with_channels_last(module)
        aggregator = create_aggregator(cell.aggregator, cell.aggregator_parameters)
        settings = settings_of(cell)
        loss = create_model(cell.model, cell.model_parameters).loss
        train = self._data(cell).train
        inputs, targets = (
            values[: cell.local_batch].to(self._device) for values in (train.inputs, train.targets)
        )
        if cell.step == "overlapped":
            bucket_mb = cell.bucket_mb or UNUSED_BUCKET_MB
            replica = Replica(module, loss)
            return OverlappedStep(
                replica, aggregator, settings, group, bucket_mb=bucket_mb, inputs=inputs, targets=targets
            )
        captured = cell.step == "captured"
        if captured and cell.bucket_mb is not None:
            flat = FlatReplica(module, loss)
            layered = LayeredStep(
                flat, aggregator, settings, group, bucket_mb=cell.bucket_mb, capturable=True
            )
            return CapturedStep(layered, inputs, targets, group)
        eager = EagerStep(FlatReplica(module, loss), aggregator, settings, group, capturable=captured)
        return CapturedStep(eager, inputs, targets, group) if captured else eager

    def _module(self, cell: Cell) -> nn.Module:
        """The model with its initial weights, the same on every rank, in host memory; the caller's own.

        Drawing the weights of a large model takes seconds, so those of the last models are kept.
        """
        model = create_model(cell.model, cell.model_parameters)
        shape = resolve_shape(model, create_dataset(cell.dataset, cell.dataset_parameters))
        key = f"{cell.model} {cell.model_parameters} {shape} {cell.seed}"
        torch.manual_seed(cell.seed)  # of GPUs too, whose numbers no weight is made of
        if key not in self._initial:
            if len(self._initial) >= MAX_LOADED:
                self._initial.pop(next(iter(self._initial)))
            module = build_module(model, shape)
            self._initial[key] = (module, torch.get_rng_state())
        module, random_state = self._initial[key]
        torch.set_rng_state(random_state)
        return copy.deepcopy(module)

    def _time(
        self, cell: Cell, group: TorchGroup, step: Step, splits: DataSplits, write: WriteSamples
    ) -> RankSummary:
        batches = epoch_batches(len(splits.train), cell.global_batch, cell.seed, 1)[:TIMING_BATCHES]
        own = shard(batches, group.rank, group.world_size)
        placement = cast(InputPlacement, cell.input_placement)
        feeder = feeder_for(placement, splits.train, own, self._device, cell.loader_workers or 0)
        if cell.augmentation == "standard":
            variations = epoch_variations(len(splits.train), cell.seed, 1)
            feeder = AugmentedFeeder(feeder, own, variations, self._device)

        def iterate(marks: Marks) -> None:
            group.meter.reset()
            step(*feeder.next(marks), marks)

        recorder = PhaseRecorder(clock_for(self._device))
        offset_s, offset_uncertainty_s = group.host_clock_offset()
        measurement = Measurement(iterate, recorder, extent_of(cell), group, offset_s, seconds=self.seconds)
        check = self._check(cell, group, step)
        self._check_steps(check, cell, group, splits.train, FIRST_STEPS)
        self.seconds["setup"] = group.largest(time.perf_counter() - self._started)
        measurement.warm_up()
        gpu = power.open_device(self._device)
        before = gpu.reading() if gpu else None
        measurement.measure()
        after = gpu.reading() if gpu else None
        memory_peak_bytes = self._memory_peak_bytes()  # what marking takes besides is not the step's
        step.check()
        if step.prepare_split(recorder):
            measurement.split(settle_each=step.settle_split)
        step.check()
        write(measurement.rows)
        check.replicas()
        self._check_steps(check, cell, group, splits.train, LATER_STEPS)
        num_samples = cell.local_batch * sum(not (row["warmup"] or row["split"]) for row in measurement.rows)
        return replace(
            self._summary(step, splits, group.meter.bytes_sent, group.meter.messages_sent),
            checks=check.findings.as_dict(),
            memory_peak_bytes=memory_peak_bytes,
            warmup_iterations=sum(row["warmup"] and not row["split"] for row in measurement.rows),
            warmup_end=measurement.warmup_end,
            stop_reason=measurement.stop_reason,
            clock_uncertainty_s=recorder.uncertainty_s + offset_uncertainty_s,
            gpu=power.summary(before, after, num_samples) if before and after else None,
            seconds=self.seconds,
        )

    def _converge(
        self,
        cell: Cell,
        group: TorchGroup,
        step: Step,
        splits: DataSplits,
        write: WriteSamples,
        saved: SavedCheckpoints | None,
    ) -> RankSummary:
        self._throw_away_step(cell, group, splits.train)
        check = self._check(cell, group, step)
        self._check_steps(check, cell, group, splits.train, FIRST_STEPS)

        def check_again() -> None:
            check.replicas()
            self._check_steps(check, cell, group, splits.train, LATER_STEPS)

        trained = train_cell(cell, group, step, splits, self._device, write, saved, check_again)
        summary = self._summary(step, splits, trained.bytes_per_step, None)
        notes = [*summary.notes, *trained.notes]
        if cell.batch_norm == "sync" and not has_batch_norm(step.replica.module):
            notes.append("batch_norm: sync changes nothing: the model has no batch normalisation")
        return replace(
            summary,
            checks=check.findings.as_dict(),
            diverged=trained.diverged,
            notes=notes,
            hosts_before=trained.hosts_before,
        )

    def _check(self, cell: Cell, group: TorchGroup, step: Step) -> StepCheck:
        aggregator = create_aggregator(cell.aggregator, cell.aggregator_parameters)
        return StepCheck(step, aggregator, settings_of(cell), group)

    def _check_steps(
        self, check: StepCheck, cell: Cell, group: TorchGroup, split: Split, max_steps: int
    ) -> None:
        """Checks some steps on the first batches; the memory that this takes is no part of the peak."""
        self._peak_bytes = self._memory_peak_bytes()
        batches = epoch_batches(len(split), cell.global_batch, cell.seed, 1)[:TIMING_BATCHES]
        own = shard(batches, group.rank, group.world_size).to(split.inputs.device)
        check.steps(
            [(split.inputs[one].to(self._device), split.targets[one].to(self._device)) for one in own],
            max_steps,
        )
        if self._device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self._device)

    def _throw_away_step(self, cell: Cell, group: TorchGroup, split: Split) -> None:
        """One step on a replica of its own.

        Libraries and connections are set up on first use, and which cell of a launch comes first is chance.
        """
        inputs, targets = (values[: cell.local_batch] for values in (split.inputs, split.targets))
        self._step(cell, group)(inputs.to(self._device), targets.to(self._device))
        clock_for(self._device).settle()

    def _summary(
        self, step: Step, splits: DataSplits, bytes_sent: int, messages_sent: int | None
    ) -> RankSummary:
        return RankSummary(
            num_parameters=step.replica.layout.num_elements,
            bytes_sent=bytes_sent,
            messages_sent=messages_sent,
            checksums=splits.checksums,
            notes=[*step.notes, *splits.notes],
            memory_peak_bytes=self._memory_peak_bytes(),
            seconds=self.seconds,
            tensor_shapes=shapes_by_dtype_text(step.replica.layouts),
        )

    def _memory_peak_bytes(self) -> int | None:
        if self._device.type != "cuda":
            return None
        return max(self._peak_bytes or 0, torch.cuda.max_memory_allocated(self._device))


def settings_of(cell: Cell) -> SgdSettings:
    """The optimizer's."""
    return SgdSettings(cell.learning_rate, cell.momentum, cell.weight_decay, cell.nesterov)


def extent_of(cell: Cell) -> Extent:
    """How long a timed cell is measured."""
    assert cell.warmup is not None
    assert cell.iterations is not None
    return Extent(
        cell.warmup,
        cell.iterations,
        cell.precision_goal,
        cell.min_seconds or 0.0,
        cell.max_seconds,
        cell.split_iterations or 0,
    )


def configure_torch(cell: AnyCell, device: torch.device) -> None:
    """Threads and precision of this process, as the cell has them; float32 means float32 everywhere."""
    torch.set_num_threads(cell.threads)
    if device.type == "cuda" and not isinstance(cell, TransferCell):
        torch.backends.cuda.matmul.allow_tf32 = bool(cell.tf32)
        torch.backends.cudnn.allow_tf32 = bool(cell.tf32)

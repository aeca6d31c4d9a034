"""Times the iterations of a cell on one rank."""

from __future__ import annotations

import os
from contextlib import closing
from dataclasses import asdict, replace
from typing import cast

from torch import Tensor

from scaling.measure import host, power
from scaling.measure.clock import clock_for
from scaling.measure.phases import Marks, PhaseRecorder
from scaling.study.cell import Cell
from scaling.study.rank.context import RankSummary, RunContext
from scaling.study.rank.prepared_step import PreparedStep
from scaling.training.feeding import AugmentedFeeder, Feeder, InputPlacement, feeder_for
from scaling.training.replica import add_up, not_finite
from scaling.training.timing import MIN_ITERATIONS, Extent, Measurement
from scaling.workloads.sampling import epoch_variations


def time_cell(cell: Cell, context: RunContext) -> RankSummary:
    """Measures `cell` and hands out its samples. Collective."""
    context.heartbeat.phase("set-up")
    prepared = PreparedStep(cell, context)
    with closing(_TimedStep(cell, prepared, context)) as timed:
        return _measure(cell, context, prepared, timed)


def _measure(cell: Cell, context: RunContext, prepared: PreparedStep, timed: _TimedStep) -> RankSummary:
    group, device, heartbeat = context.group, context.device, context.heartbeat
    step, measurement = prepared.step, timed.measurement
    heartbeat.phase("checked steps")
    prepared.check_first_steps()
    context.seconds["setup"] = group.largest(context.elapsed_s())
    heartbeat.phase("warm-up")
    measurement.warm_up()
    gpu = None
    if device.type == "cuda":  # a rank may hold memory on another's GPU
        own = [float(os.getpid()) if rank == group.rank else 0.0 for rank in range(group.world_size)]
        gpu = power.open_device(device, {int(pid) for pid in group.largest_of(own)})
    before, host_before = gpu.reading() if gpu else None, host.reading()
    heartbeat.phase("timed iterations", patience=1)
    measurement.measure()
    after, host_after = gpu.reading() if gpu else None, host.reading()
    memory_peak_bytes = context.memory_peak_bytes()  # what marking takes besides is not the step's
    bad_values = not_finite(timed.losses, step.replica)
    heartbeat.phase("profiled iterations")
    step.check()
    if step.prepare_profiled(timed.recorder):
        measurement.profile(settle_each=step.settle_profiled)
    heartbeat.phase("checks of what was measured")
    step.check()
    context.write(measurement.rows)
    prepared.check_later_steps()
    is_float32 = set(step.replica.layouts) == {"float32"}
    rate = context.loaded.matrix_rate(cell, group) if is_float32 else None
    num_timed = cell.sync_every * sum(not (row["warmup"] or row["profiled"]) for row in measurement.rows)
    messages = group.meter.messages_sent if cell.sync_every == 1 else None  # no whole number a step
    return replace(
        prepared.summary(group.meter.bytes_sent // cell.sync_every, messages),
        memory_peak_bytes=memory_peak_bytes,
        matrix_rate=asdict(rate) if rate else None,
        not_finite=bad_values,
        warmup_iterations=cell.sync_every
        * sum(row["warmup"] and not row["profiled"] for row in measurement.rows),
        warmup_end=measurement.warmup_end,
        stop_reason=measurement.stop_reason,
        block_iterations=measurement.block_iterations,
        clock_uncertainty_s=timed.clock_uncertainty_s,
        gpu=power.summary(before, after, cell.local_batch * num_timed) if before and after else None,
        host=host.summary(host_before, host_after),
    )


class _TimedStep:
    """The iterations of a cell: each takes a batch, makes a step and adds its loss up. Collective."""

    def __init__(self, cell: Cell, prepared: PreparedStep, context: RunContext) -> None:
        self._step, self._feeder = prepared.step, _feeder(cell, prepared, context)
        self._group, self._heartbeat = context.group, context.heartbeat
        self._steps_each = cell.sync_every
        self._loss: Tensor | None = None
        self.losses: Tensor | None = None
        self.recorder = PhaseRecorder(clock_for(context.device))
        offset_s, self._offset_uncertainty_s = context.group.host_clock_offset()
        self.measurement = Measurement(
            self._iterate,
            self.recorder,
            extent_of(cell),
            context.group,
            offset_s,
            self._after_each,
            cell.sync_every,
            seconds=context.seconds,
        )

    @property
    def clock_uncertainty_s(self) -> float:
        """Of this rank's spans on the host's clock."""
        return self.recorder.uncertainty_s + self._offset_uncertainty_s

    def close(self) -> None:
        """Ends a loader's workers; a collection of reference cycles would wait five seconds for each."""
        del self._feeder

    def _iterate(self, marks: Marks) -> None:
        self._group.meter.reset()
        for _ in range(self._steps_each):  # a whole block of local updates, with its one exchange
            self._loss = self._step(*self._feeder.next(marks), marks)
            self._heartbeat.step()

    def _after_each(self) -> None:
        assert self._loss is not None
        self.losses = add_up(self.losses, self._loss)


def _feeder(cell: Cell, prepared: PreparedStep, context: RunContext) -> Feeder:
    """Hands out this rank's batches, from where the cell has them."""
    split, batches = prepared.splits.train, prepared.own_batches()
    placement = cast(InputPlacement, cell.input_placement)
    feeder = feeder_for(placement, split, batches, context.device, cell.loader_workers or 0)
    if cell.augmentation == "standard":
        feeder = AugmentedFeeder(feeder, batches, epoch_variations(len(split), cell.seed, 1), context.device)
    return feeder


def extent_of(cell: Cell) -> Extent:
    """How long a timed cell is measured, in blocks where updates are local: three, or as many as steps."""
    assert cell.warmup is not None
    assert cell.iterations is not None

    def blocks(steps: int) -> int:
        return max(-(-steps // cell.sync_every), min(steps, MIN_ITERATIONS))

    seconds, profiled = (cell.min_seconds or 0.0, cell.max_seconds), blocks(cell.profiled_iterations or 0)
    return Extent(blocks(cell.warmup), blocks(cell.iterations), cell.precision_goal, *seconds, profiled)

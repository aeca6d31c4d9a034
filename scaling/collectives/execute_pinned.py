"""Runs `stripes` through pinned host memory that all ranks of a host share, in one kernel on each GPU.

For GPUs without access to each other. What is in flight stays in a few MB (`pinned_triton`), whatever the
buffer's size; sums are the GPUs', in the schedule's order: the bits are those of every other execution.
"""

from __future__ import annotations

import os
from itertools import pairwise

import torch
from torch import Tensor

from scaling.collectives.execute_fused import DTYPES, kernel_of
from scaling.collectives.execute_peer import sent_in_step
from scaling.collectives.schedule import Schedule
from scaling.errors import ScheduleError
from scaling.process_group import Group

MOST_PROGRAMS = 32
"""Of a launch: all of them have to run at a time, beside what else is on the GPU. An assumption: with blocks
of 16 kB, half a megabyte is on its way in each direction, which is 10 us of a bus of 50 GB/s."""

SMALLEST_BLOCK = 128
LARGEST_BLOCK = 4096
"""Elements of a stripe that a program sends at a time."""

WARPS = 8


class PinnedExecution:
    """One rank's part of `stripes`. Collective to make and to run.

    Args:
        schedule: that of `stripes`, recognised by its transfers.
        group: ranks of one host, each with a device of its own.
        buffer: flat; the schedule runs on it in place.

    Raises:
        ScheduleError: another schedule, another dtype, or ranks that share a GPU or have none.
        LaunchError: the ranks are on several hosts, or the memory cannot be had or pinned.
    """

    def __init__(self, schedule: Schedule, group: Group, buffer: Tensor) -> None:
        n, device = group.world_size, buffer.device
        is_interpreted = os.environ.get("TRITON_INTERPRET") == "1"
        if kernel_of(schedule) != "two_shot" or buffer.dtype not in DTYPES:
            dtype = str(buffer.dtype).removeprefix("torch.")
            raise ScheduleError(
                f"{schedule.name}: transport: host_memory runs stripes on float32; this is {dtype}; "
                "use transport: sends"
            )
        if group.through_host or (device.type != "cuda" and not is_interpreted):
            raise ScheduleError(
                f"{schedule.name}: transport: host_memory needs a GPU a worker, for kernels that wait for "
                "each other; use transport: sends"
            )
        from scaling.collectives import pinned_triton

        bounds = schedule.bounds(buffer.numel())
        longest = max(stop - start for start, stop in pairwise(bounds))
        per_program = max(1, -(-longest // MOST_PROGRAMS))
        self._block = min(LARGEST_BLOCK, max(SMALLEST_BLOCK, 1 << (per_program - 1).bit_length()))
        self._num_chunks = -(-longest // self._block)
        self._programs = min(MOST_PROGRAMS, self._num_chunks)
        self._group, self._buffer, self._is_native = group, buffer, not is_interpreted
        self._sent = [list(sent_in_step(step, bounds, group.rank)) for step in schedule.steps]
        self._kernel = pinned_triton.stripes_through_host
        slots, line = pinned_triton.SLOTS.value, pinned_triton.LINE.value
        pinned = device.type == "cuda"
        slot_bytes = n * self._programs * slots * n * self._block * buffer.itemsize
        self._slots = group.shared_host_buffer(slot_bytes, register=pinned).view(buffer.dtype)
        counter_bytes = n * self._programs * 2 * line * 8
        self._counters = group.shared_host_buffer(counter_bytes, register=pinned).view(torch.int64)
        self._done = torch.zeros(self._programs, dtype=torch.int64, device=device)
        self._bounds = torch.tensor(bounds, dtype=torch.int64, device=device)

    def run(self) -> None:
        """The whole schedule on the buffer, in place."""
        self._kernel[(self._programs,)](
            self._slots,  # Triton asks the driver for the device's address of host memory
            self._counters,
            self._done,
            self._buffer,
            self._bounds,
            self._num_chunks,
            RANK=self._group.rank,
            NUM_RANKS=self._group.world_size,
            BLOCK=self._block,
            NATIVE=self._is_native,
            num_warps=WARPS,
        )
        for sent in self._sent:
            for num_elements in sent:
                self._group.meter.count(num_elements * self._buffer.itemsize)

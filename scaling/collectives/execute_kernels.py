"""Runs whole exchanges in one kernel on each GPU, with the waiting inside
(`scaling.collectives.exchange_triton`).

Sums are in the schedule's order: the bits are those of every other execution. Schedules are recognised by
their transfers.

- `FusedExecution`: small buffers over peer memory; `recursive_doubling` of two ranks, in which each reads all
  of the other's values, and `stripes`.
- `PinnedExecution`: `stripes` through pinned host memory that all ranks of a host share, for GPUs without
  access to each other. What is in flight stays in a few MB, whatever the buffer's size.
"""

from __future__ import annotations

import os
from itertools import pairwise

import torch
from torch import Tensor

from scaling.collectives.execute_peer import count_sent, sent_sizes
from scaling.collectives.halving_doubling import recursive_doubling
from scaling.collectives.owners import stripes
from scaling.collectives.schedule import Schedule
from scaling.errors import ScheduleError
from scaling.process_group import Group, PeerMemory

MOST_PROGRAMS = 32
"""Of a launch: all of them have to run at a time, beside what else is on the GPU. An assumption: with blocks
of 16 kB, half a megabyte is on its way in each direction, which is 10 us of a bus of 50 GB/s."""

BLOCK = 1024
LARGEST_BLOCK = 8192
"""Elements of a program over peer memory; of `one_shot` they are in its registers while it waits."""

SMALLEST_HOST_BLOCK, LARGEST_HOST_BLOCK = 128, 4096
"""Elements of a stripe that a program sends to host memory at a time."""
HOST_WARPS = 8

DTYPES = (torch.float32, torch.float64)


def kernel_of(schedule: Schedule) -> str | None:
    """`one_shot` or `two_shot`; None if no kernel runs this schedule."""
    if schedule.world_size < 2 or schedule.num_hosts:
        return None
    known = {"two_shot": stripes(schedule.world_size)}
    if schedule.world_size == 2:
        known["one_shot"] = recursive_doubling(2)
    return next((name for name, other in known.items() if _transfers(other) == _transfers(schedule)), None)


def _transfers(schedule: Schedule) -> object:
    return schedule.num_chunks, [[*step] for step in schedule.steps if step]


def _power_of_two(number: int) -> int:
    return 1 << (number - 1).bit_length()


class FusedExecution:
    """One rank's part of a schedule, in one launch. Made and run by every rank of the group. `memory`: the
    ranks' buffers, of the length that the schedule is to run on. ScheduleError: there is no kernel for the
    schedule, for so many elements, or for that dtype."""

    def __init__(self, schedule: Schedule, group: Group, memory: PeerMemory) -> None:
        kind, local = kernel_of(schedule), memory.local
        if kind is None or local.dtype not in DTYPES:
            dtype = str(local.dtype).removeprefix("torch.")
            raise ScheduleError(
                f"{schedule.name}: transport: one_kernel runs stripes, and recursive_doubling of two ranks, "
                f"on float32; this has {schedule.world_size} ranks, and {dtype}; use peer_memory"
            )
        from scaling.collectives import exchange_triton

        size, bounds = local.numel(), schedule.bounds(local.numel())
        self._group, self._memory = group, memory
        self._kernel = getattr(exchange_triton, kind)
        if kind == "one_shot":
            self._block = max(128, _power_of_two(-(-size // MOST_PROGRAMS)))
            self._programs, self._span = -(-size // self._block), [size]
            if self._block > LARGEST_BLOCK:
                raise ScheduleError(
                    f"{schedule.name}: transport: one_kernel keeps all {size} elements in registers, and at "
                    f"most {MOST_PROGRAMS * LARGEST_BLOCK}; use stripes, or peer_memory"
                )
        else:
            largest = max(stop - start for start, stop in pairwise(bounds))
            self._block = BLOCK
            self._programs = min(MOST_PROGRAMS, -(-largest // BLOCK))
            self._span = bounds[group.rank : group.rank + 2]
        self._sent = sent_sizes(schedule, bounds, group.rank)
        self._pads = group.peer_memory(self._programs * group.world_size, torch.int32, local.device)
        self._pads.local.zero_()
        self._pads.barrier()
        self._buffer_addresses, self._pad_addresses = self._addresses(memory), self._addresses(self._pads)

    def _addresses(self, memory: PeerMemory) -> Tensor:
        """Of the buffers of all ranks, as this one has mapped them: [world_size] int64."""
        addresses = [
            (memory.local if rank == self._group.rank else memory.of(rank)).data_ptr()
            for rank in range(self._group.world_size)
        ]
        return torch.tensor(addresses, dtype=torch.int64, device=memory.local.device)

    def run(self) -> None:
        """The whole schedule on the group's buffers, in place."""
        self._kernel[(self._programs,)](
            self._buffer_addresses,
            self._pad_addresses,
            self._memory.local,
            *self._span,
            RANK=self._group.rank,
            NUM_RANKS=self._group.world_size,
            BLOCK=self._block,
        )
        count_sent(self._group, self._sent, self._memory.local.itemsize)


class PinnedExecution:
    """One rank's part of `stripes`. Collective to make and to run. `group`: ranks of one host, each with a
    device of its own. `buffer`: flat; the schedule runs on it in place. ScheduleError: another schedule,
    another dtype, or ranks that share a GPU or have none. LaunchError: the ranks are on several hosts, or the
    memory cannot be had or pinned."""

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
        from scaling.collectives import exchange_triton

        bounds = schedule.bounds(buffer.numel())
        longest = max(stop - start for start, stop in pairwise(bounds))
        per_program = max(1, -(-longest // MOST_PROGRAMS))
        self._block = min(LARGEST_HOST_BLOCK, max(SMALLEST_HOST_BLOCK, _power_of_two(per_program)))
        self._num_chunks = -(-longest // self._block)
        self._programs = min(MOST_PROGRAMS, self._num_chunks)
        self._group, self._buffer, self._is_native = group, buffer, not is_interpreted
        self._sent = sent_sizes(schedule, bounds, group.rank)
        self._kernel = exchange_triton.stripes_through_host
        slots, line = exchange_triton.SLOTS.value, exchange_triton.LINE.value
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
            num_warps=HOST_WARPS,
        )
        count_sent(self._group, self._sent, self._buffer.itemsize)

"""Runs small exchanges over peer memory in one kernel, with the barriers inside.

Two schedules have such a kernel (`scaling.collectives.fused_triton`), recognised by their transfers: that of
`recursive_doubling` with two ranks, in which each reads all of the other's values, and `stripes`. Sums are in
the schedule's order: the bits are those of every other execution.
"""

from __future__ import annotations

from itertools import pairwise

import torch

from scaling.collectives.execute_peer import sent_in_step
from scaling.collectives.recursive_doubling import recursive_doubling
from scaling.collectives.schedule import Schedule
from scaling.collectives.stripes import stripes
from scaling.errors import ScheduleError
from scaling.process_group import Group, PeerMemory

MOST_PROGRAMS = 32
"""Of a launch: all of them have to run at a time, beside what else is on the GPU."""

BLOCK = 1024
LARGEST_BLOCK = 8192
"""Elements of a program; of `one_shot` they are in its registers while it waits."""

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


class FusedExecution:
    """One rank's part of a schedule, in one launch. Made and run by every rank of the group.

    Args:
        schedule: one that has a kernel.
        group: the ranks.
        memory: their buffers, of the length that the schedule is to run on.

    Raises:
        ScheduleError: there is no kernel for the schedule, for so many elements, or for that dtype.
    """

    def __init__(self, schedule: Schedule, group: Group, memory: PeerMemory) -> None:
        kind, local = kernel_of(schedule), memory.local
        if kind is None or local.dtype not in DTYPES:
            dtype = str(local.dtype).removeprefix("torch.")
            raise ScheduleError(
                f"{schedule.name}: transport: one_kernel runs stripes, and recursive_doubling of two ranks, "
                f"on float32; this has {schedule.world_size} ranks, and {dtype}; use peer_memory"
            )
        from scaling.collectives import fused_triton

        size, bounds = local.numel(), schedule.bounds(local.numel())
        self._group, self._memory = group, memory
        self._kernel = getattr(fused_triton, kind)
        if kind == "one_shot":
            self._block = max(128, 1 << (-(-size // MOST_PROGRAMS) - 1).bit_length())
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
        self._sent = [list(sent_in_step(step, bounds, group.rank)) for step in schedule.steps if step]
        self._pads = group.peer_memory(self._programs * group.world_size, torch.int32, local.device)
        self._pads.local.zero_()
        self._pads.barrier()
        self._buffer_addresses, self._pad_addresses = self._addresses(memory), self._addresses(self._pads)

    def _addresses(self, memory: PeerMemory) -> torch.Tensor:
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
        for sent in self._sent:
            for num_elements in sent:
                self._group.meter.count(num_elements * self._memory.local.itemsize)

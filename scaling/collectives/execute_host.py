"""Runs a host-staging schedule: sums in one buffer of the node that all of its ranks share.

The buffer is pinned for the driver where there is a GPU. It is a ring of two slots, each with a row a rank
for what comes up and one row for the sums: with chunks to suit, it stays in the processor's cache, where
memory's bandwidth would be the limit. Nothing waits for more than it needs, so both directions of the bus and
the sums work at the same time. For every chunk, on each rank:

1. copy it up into its slot, on a stream of its own, as soon as the slot's last chunk has been summed by all;
2. wait for that copy, and tell the others;
3. sum what falls to this rank as soon as all ranks' copies are there and all have fetched the slot's last
   sums, and tell the others;
4. copy the sums back, on a third stream, as soon as all pieces are summed; tell the others once they are
   fetched.

Ranks tell each other through counters in shared memory that only grow. One host only.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from itertools import pairwise

import torch
from torch import Tensor

from scaling.bucket import Span
from scaling.collectives.execute import side_stream
from scaling.collectives.schedule import Schedule, ScheduleStep
from scaling.errors import ScheduleError
from scaling.process_group import Group, HostCounters

Phase = Callable[[str], AbstractContextManager[None]]

NUM_SLOTS = 2
BLOCK_BYTES = 4 << 20
"""Sums run over blocks of this size, so that the partial sum stays in the cores' own caches."""


def sum_rows(rows: Sequence[Tensor], out: Tensor, divisor: int = 1) -> None:
    """The sum of equally long flat tensors in their order, divided by `divisor`, into `out`; on the CPU."""
    block = max(1, BLOCK_BYTES // out.itemsize)
    for start in range(0, out.numel(), block):
        total = out[start : start + block]
        parts = [row[start : start + block] for row in rows]
        if len(parts) == 1:
            total.copy_(parts[0])
        else:
            torch.add(parts[0], parts[1], out=total)
        for part in parts[2:]:
            total.add_(part)
        if divisor != 1:
            total.div_(divisor)


@dataclass
class _HostRun:
    """How far one call has come; chunks are counted from 0."""

    gradient: Tensor
    result: Tensor | None
    first: int  # ticket of chunk 0
    copied: list[Callable[[], object]] = field(default_factory=list)  # ends a chunk's copy up
    num_back: int = 0  # chunks whose copy back has been started


class HostExecution:
    """One rank's part, of one host. Collective to make and to run. `schedule`: ranks add into one host's
    memory in equal order and copy from it; `num_summing`: ranks 0 to num_summing - 1 take turns in summing
    the pieces of a step; `divisor`: of the sums; `keep_sums`: leave all sums in shared memory, for an update
    there: [num_elements] `sums`. ScheduleError: the schedule is of another form. LaunchError: the ranks are
    on several hosts, or shared memory is too small."""

    def __init__(
        self,
        schedule: Schedule,
        group: Group,
        num_elements: int,
        dtype: torch.dtype,
        device: torch.device,
        *,
        num_summing: int,
        divisor: int = 1,
        keep_sums: bool = False,
    ) -> None:
        self._group, self._divisor = group, divisor
        self._summing = range(min(num_summing, group.world_size))
        self._order = _order_of_adds(schedule)
        self._chunks = list(_chunks(schedule, num_elements))
        # Every so many pieces, from the rank's own on.
        first = group.rank if group.rank in self._summing else None
        dealt = [pieces[first :: len(self._summing)] if first is not None else [] for pieces in self._chunks]
        self._mine = [[(start, stop) for start, stop in pieces if start < stop] for pieces in dealt]
        self._spans = [(pieces[0][0], pieces[-1][1]) for pieces in self._chunks]
        n, longest = group.world_size, max((b - a for a, b in self._spans), default=0)
        size = longest * dtype.itemsize
        is_cuda = device.type == "cuda"
        shared = group.shared_host_buffer(NUM_SLOTS * (n + 1) * size, register=is_cuda)
        self._slots = shared.view(dtype).view(NUM_SLOTS, n + 1, longest)
        self.sums: Tensor | None = None
        if keep_sums:
            self.sums = group.shared_host_buffer(num_elements * dtype.itemsize, register=False).view(dtype)
        self._arrived, self._summed, self._fetched = (HostCounters(group) for _ in range(3))
        self._fetching: deque[tuple[int, Callable[[], bool]]] = deque()
        self._tickets = 0
        self._up, self._back = side_stream(device), side_stream(device)

    def run(self, gradient: Tensor, result: Tensor | None, phase: Phase = lambda _: nullcontext()) -> None:
        """Sums the ranks' `gradient`, into `sums` if these are kept, and copies them to `result` if given.
        `result` is complete in the order of the current stream. Phases are what this rank waits for: `d2h`,
        `reduce`, `wait` for others, `h2d_result`."""
        run = _HostRun(gradient, result, self._tickets + 1)
        self._tickets += len(self._chunks)
        num_directions = 1 if result is None else 2
        self._group.meter.count(num_directions * gradient.nbytes, num_directions * len(self._chunks))
        for stream in (self._up, self._back):
            if stream is not None:
                stream.wait_stream(torch.cuda.current_stream())
        if result is None:
            self._until(run, lambda: not self._fetching)
        for chunk in range(len(self._chunks)):
            with phase("wait"):
                self._until(run, lambda chunk=chunk: len(run.copied) > chunk)  # type: ignore[misc]
            with phase("d2h"):
                run.copied[chunk]()
            ticket = run.first + chunk
            self._arrived.tell(ticket)
            if self._back is None and result is not None:  # the processor copies: in its own time and phase
                self._give_back(run, chunk + 1 - NUM_SLOTS, phase)
            if self._mine[chunk]:
                with phase("wait"):
                    self._until(run, lambda ticket=ticket: self._may_sum(run, ticket))  # type: ignore[misc]
                with phase("reduce"):
                    self._sum(chunk, ticket)
            self._summed.tell(ticket)
            if result is None:
                self._fetched.tell(ticket)
        self._finish(run, phase)

    def _until(self, run: _HostRun, condition: Callable[[], bool]) -> None:
        """Waits, and meanwhile starts every copy that may start."""

        def progressed() -> bool:
            self._progress(run)
            return condition()

        self._group.wait_until(progressed)

    def _progress(self, run: _HostRun) -> None:
        while len(run.copied) < len(self._chunks):
            ticket = run.first + len(run.copied)
            if ticket > NUM_SLOTS and not self._summed.reached(ticket - NUM_SLOTS, self._summing):
                break  # the slot is not free
            run.copied.append(self._copy_up(run, len(run.copied)))
        while self._back is not None and run.result is not None and self._may_return(run):
            self._copy_back(run)
        while self._fetching and self._fetching[0][1]():
            self._fetched.tell(self._fetching.popleft()[0])

    def _may_return(self, run: _HostRun) -> bool:
        next_one = run.first + run.num_back
        return run.num_back < len(run.copied) and self._summed.reached(next_one, self._summing)

    def _give_back(self, run: _HostRun, num_chunks: int, phase: Phase) -> None:
        """Copies back, on the processor, until that many chunks are."""
        while run.num_back < num_chunks:
            with phase("wait"):
                self._until(run, lambda: self._may_return(run))
            with phase("h2d_result"):
                self._copy_back(run)
            self._progress(run)

    def _may_sum(self, run: _HostRun, ticket: int) -> bool:
        fetched = ticket <= NUM_SLOTS or self._fetched.reached(ticket - NUM_SLOTS)
        return fetched and self._arrived.reached(ticket)

    def _copy_up(self, run: _HostRun, chunk: int) -> Callable[[], object]:
        start, stop = self._spans[chunk]
        row = self._slots[(run.first + chunk) % NUM_SLOTS, self._group.rank, : stop - start]
        if self._up is None:
            return lambda: row.copy_(run.gradient[start:stop])
        with torch.cuda.stream(self._up):
            row.copy_(run.gradient[start:stop], non_blocking=True)
            return _event().synchronize

    def _sum(self, chunk: int, ticket: int) -> None:
        first = self._spans[chunk][0]
        slot = self._slots[ticket % NUM_SLOTS]
        for start, stop in self._mine[chunk]:
            inside = slice(start - first, stop - first)
            out = slot[-1, inside] if self.sums is None else self.sums[start:stop]
            sum_rows([slot[rank, inside] for rank in self._order], out, self._divisor)

    def _copy_back(self, run: _HostRun) -> None:
        """The next chunk."""
        assert run.result is not None
        start, stop = self._spans[run.num_back]
        ticket = run.first + run.num_back
        run.num_back += 1
        in_sums = self.sums is not None
        source = self.sums[start:stop] if in_sums else self._slots[ticket % NUM_SLOTS, -1, : stop - start]  # type: ignore[index]
        with torch.cuda.stream(self._back):
            run.result[start:stop].copy_(source, non_blocking=True)
            self._fetching.append((ticket, _event().query if self._back is not None else lambda: True))

    def _finish(self, run: _HostRun, phase: Phase) -> None:
        if run.result is None:
            return
        if self._back is None:
            self._give_back(run, len(self._chunks), phase)
            return
        with phase("wait"):
            self._until(run, lambda: run.num_back == len(self._chunks))
        with phase("h2d_result"):
            torch.cuda.current_stream().wait_stream(self._back)


def _event() -> torch.cuda.Event:
    """An event on the current stream, for waiting only."""
    event = torch.cuda.Event()  # type: ignore[no-untyped-call]
    event.record()
    return event


def _chunks(schedule: Schedule, num_elements: int) -> list[list[Span]]:
    """The pieces of each step in which ranks add; steps whose pieces are all empty are left out.
    ScheduleError: a step's pieces are not contiguous, or do not go back as they came."""
    bounds, host = schedule.bounds(num_elements), schedule.world_size
    up = [_pieces(step, 0, host, bounds) for step in schedule.steps]
    back = [_pieces(step, host, 0, bounds) for step in schedule.steps]
    chunks = [pieces for pieces in up if any(start < stop for start, stop in pieces)]
    if any(a[1] != b[0] for pieces in chunks for a, b in pairwise(pieces)):
        raise ScheduleError(f"{schedule.name}: the chunks that a rank adds in a step are not contiguous")
    returned = [(p[0][0], p[-1][1]) for p in back if any(start < stop for start, stop in p)]
    if returned != [(pieces[0][0], pieces[-1][1]) for pieces in chunks]:
        raise ScheduleError(f"{schedule.name}: the chunks do not go back in the steps in which they came")
    return chunks


def _pieces(step: ScheduleStep, source: int, target: int, bounds: list[int]) -> list[Span]:
    return [(bounds[t.start], bounds[t.stop]) for t in step if (t.source, t.target) == (source, target)]


def _order_of_adds(schedule: Schedule) -> list[int]:
    """The ranks in the order in which every chunk gets their contributions. ScheduleError: there is more than
    one host, a step is between ranks, or orders differ."""
    host = schedule.world_size
    orders: dict[int, list[int]] = {}
    for step in schedule.steps:
        for source, target, start, stop, operation in step:
            up, back = target == host and operation == "add", source == host and operation == "copy"
            if schedule.num_hosts != 1 or not (up or back):
                raise ScheduleError(
                    f"{schedule.name}: only adds into one host's memory and copies from it run here"
                )
            for chunk in range(start, stop) if up else ():
                orders.setdefault(chunk, []).append(source)
    if len({tuple(order) for order in orders.values()}) > 1:
        raise ScheduleError(f"{schedule.name}: the chunks get the ranks' contributions in different orders")
    return next(iter(orders.values()), [0])

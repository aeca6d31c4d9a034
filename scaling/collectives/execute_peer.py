"""Runs a schedule over memory that the ranks of one node can reach of each other: no messages.

An add is pulled: the receiving rank reads the sender's values and adds them to its own in one kernel. A copy
is pushed: the sending rank writes it into the receiver's buffer, which links do faster than reads. A step:

1. barrier: the values of the step before are there, and nobody reads them any more;
2. each rank does its pulls and pushes; where somebody reads the very place in the same step, what it
   brings is pulled into a staging buffer;
3. if any rank has staged: barrier, then the staged values are applied.

A last barrier keeps a rank from using its buffer while another still writes or reads it. Barriers are in the
order of the device's stream, so nothing waits on the host and the whole run can be captured in a CUDA graph.

Large buffers run in lanes: each chunk is cut in two, and each half runs through all steps on a stream of its
own, so that one half's bytes fill the links while the other half is at a barrier.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from itertools import pairwise

import torch

from scaling.bucket import Span, joined
from scaling.collectives.execute import overlap, side_stream
from scaling.collectives.schedule import Operation, Schedule, ScheduleStep
from scaling.errors import ScheduleError
from scaling.process_group import Group, PeerMemory

LANES_FROM_BYTES = 16 << 20


@dataclass
class _LaneStep:
    """What one rank does in a step of one lane; spans are of the buffer."""

    pulls: list[tuple[int, Span]] = field(default_factory=list)
    pushes: list[tuple[int, Span]] = field(default_factory=list)
    staged: list[tuple[Operation, int, Span, Span]] = field(default_factory=list)  # the last: of the staging
    any_staged: bool = False  # by whichever rank: the second barrier is for all


class PeerExecution:
    """One rank's part of a schedule over peer memory. Made and run by every rank of the group. `memory`:
    their buffers, of the length that the schedule is to run on; `num_lanes`: None: two for large buffers,
    else one. ScheduleError: the schedule uses host memory."""

    def __init__(
        self, schedule: Schedule, group: Group, memory: PeerMemory, num_lanes: int | None = None
    ) -> None:
        if schedule.num_hosts:
            raise ScheduleError(f"{schedule.name}: peer memory is between ranks only, not host memory")
        self._group, self._memory = group, memory
        bounds = schedule.bounds(memory.local.numel())
        steps = [step for step in schedule.steps if step]
        num_lanes = num_lanes or (2 if memory.local.nbytes >= LANES_FROM_BYTES else 1)
        self._used = 0  # elements of the staging buffer
        self._lanes = [
            [self._compile(step, _lane_spans(bounds, lane, num_lanes)) for step in steps]
            for lane in range(num_lanes)
        ]
        self._sent = sent_sizes(schedule, bounds, group.rank)
        local = memory.local
        self._staging = torch.empty(self._used, dtype=local.dtype, device=local.device)
        pairs = [(t.source, t.target) for step in steps for t in step]
        peers = {peer for pair in pairs if group.rank in pair for peer in pair} - {group.rank}
        self._peers = {peer: memory.of(peer) for peer in peers}
        self._streams = [side_stream(local.device) for _ in range(num_lanes - 1)]

    def _compile(self, step: ScheduleStep, lane: list[Span]) -> _LaneStep:
        rank, compiled = self._group.rank, _LaneStep()
        moves = [(t, span) for t in step for span in joined(lane[t.start : t.stop])]
        read_at: dict[int, list[Span]] = {}
        for transfer, span in moves:
            read_at.setdefault(transfer.source, []).append(span)
        staged_targets = set()
        for transfer, span in moves:
            source, target, operation = transfer.source, transfer.target, transfer.operation
            # Once a rank stages, its later transfers are staged too: they apply in the order listed.
            if target in staged_targets or any(overlap(span, other) for other in read_at.get(target, [])):
                staged_targets.add(target)
                compiled.any_staged = True
                if target == rank:
                    # Lanes are at different steps at the same time: their staging must not overlap.
                    begin, self._used = self._used, self._used + span[1] - span[0]
                    compiled.staged.append((operation, source, span, (begin, self._used)))
            elif operation == "add" and target == rank:
                compiled.pulls.append((source, span))
            elif operation == "copy" and source == rank:
                compiled.pushes.append((target, span))
        # Ranks begin with the one behind them, so that not all write to the same one at a time.
        n = self._group.world_size
        compiled.pushes.sort(key=lambda push: (push[0] - rank) % n)
        return compiled

    def run(self) -> None:
        """All steps on the group's buffers, in place."""
        if not self._lanes[0]:
            return
        for lane, stream in enumerate(self._streams, 1):
            if stream is not None:
                stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(stream):
                self._run_lane(lane)
        self._run_lane(0)
        for stream in self._streams:
            if stream is not None:
                torch.cuda.current_stream().wait_stream(stream)
        count_sent(self._group, self._sent, self._memory.local.itemsize)

    def _run_lane(self, lane: int) -> None:
        local, staging = self._memory.local, self._staging
        for step in self._lanes[lane]:
            self._memory.barrier(lane)
            for peer, span in step.pulls:
                local[slice(*span)].add_(self._peers[peer][slice(*span)])
            for peer, span in step.pushes:
                self._peers[peer][slice(*span)].copy_(local[slice(*span)])
            for _, peer, span, place in step.staged:
                staging[slice(*place)].copy_(self._peers[peer][slice(*span)])
            if step.any_staged:
                self._memory.barrier(lane)
            for operation, _, span, place in step.staged:
                if operation == "add":
                    local[slice(*span)].add_(staging[slice(*place)])
                else:
                    local[slice(*span)].copy_(staging[slice(*place)])
        self._memory.barrier(lane)


def _lane_spans(bounds: list[int], lane: int, num_lanes: int) -> list[Span]:
    """This lane's part of every chunk; the parts begin at multiples of 64 elements of large chunks."""
    spans = []
    for start, stop in pairwise(bounds):
        inner = [start + (stop - start) * i // num_lanes // 64 * 64 for i in range(1, num_lanes)]
        edges = [start, *inner, stop]
        spans.append((edges[lane], edges[lane + 1]))
    return spans


def sent_sizes(schedule: Schedule, bounds: list[int], rank: int) -> list[int]:
    """Elements of each message that the rank would send, step by step."""
    sizes: list[int] = []
    for step in schedule.steps:
        sent = Counter[int]()
        for t in step:
            if t.source == rank:
                sent[t.target] += bounds[t.stop] - bounds[t.start]
        sizes += filter(None, sent.values())
    return sizes


def count_sent(group: Group, sizes: list[int], itemsize: int) -> None:
    """Meters these as if they had been sent."""
    for num_elements in sizes:
        group.meter.count(num_elements * itemsize)

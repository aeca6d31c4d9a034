"""Runs a schedule on real tensors, through any `Group`.

The schedule is compiled once into the messages and local sums of one rank; `Execution.run` then repeats them
step by step. A received chunk goes straight to its place where nothing in the step still reads that place,
and through a staging buffer where it is added or where the place is being sent in the same step.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from scaling.bucket import Span
from scaling.collectives.schedule import Operation, Schedule, ScheduleStep, Transfer, messages
from scaling.errors import ScheduleError
from scaling.process_group import Group, Message


def side_stream(device: torch.device) -> torch.cuda.Stream | None:
    """A new stream of a GPU; None on a CPU, where everything runs in order."""
    return torch.cuda.Stream(device) if device.type == "cuda" else None  # type: ignore[no-untyped-call]


@dataclass
class _RankStep:
    """What one rank does in one step; spans are element ranges of the buffer, or of the staging buffer."""

    sends: list[tuple[int, list[Span]]] = field(default_factory=list)
    direct_receives: list[tuple[int, Span]] = field(default_factory=list)
    staged_receives: list[tuple[int, Span]] = field(default_factory=list)
    applies: list[tuple[Operation, Span, Span]] = field(
        default_factory=list
    )  # to the first span, from staging


def overlap(a: Span, b: Span) -> bool:
    """Whether two element ranges have an element in common."""
    return a[0] < b[1] and b[0] < a[1]


class Execution:
    """One rank's part of a schedule, bound to the size and type of the buffer it runs on. The staging buffer
    is allocated on the device, once. ScheduleError: the schedule uses host memory, which this executor has
    none of."""

    def __init__(
        self, schedule: Schedule, rank: int, num_elements: int, dtype: torch.dtype, device: torch.device
    ) -> None:
        if schedule.num_hosts:
            raise ScheduleError(
                f"{schedule.name}: sends and receives run between ranks only, not on host memory"
            )
        self._bounds = schedule.bounds(num_elements)
        self._steps = [compiled for step in schedule.steps if (compiled := self._compile(step, rank))]
        ends = [span[1] for step in self._steps for _, span in step.staged_receives]
        self._staging = torch.empty(max(ends, default=0), dtype=dtype, device=device)

    def _span(self, transfer: Transfer) -> Span:
        return self._bounds[transfer.start], self._bounds[transfer.stop]

    def _compile(self, step: ScheduleStep, rank: int) -> _RankStep | None:
        compiled = _RankStep()
        step = tuple(step)  # each transfer one object
        for source, target, transfers in messages(step):
            if source == rank:
                compiled.sends.append((target, [self._span(t) for t in transfers]))
        sent = [span for _, spans in compiled.sends for span in spans]
        used = 0
        staged: dict[int, Span] = {}  # of a transfer by its identity, where its values are staged
        for source, target, transfers in messages(step):
            if target != rank:
                continue
            span = self._span(transfers[0])
            only_copy = len(transfers) == 1 and transfers[0].operation == "copy"
            if only_copy and not any(overlap(span, other) for other in sent):
                compiled.direct_receives.append((source, span))
                continue
            first = used
            for transfer in transfers:
                start, stop = self._span(transfer)
                staged[id(transfer)] = (used, used + stop - start)
                used += stop - start
            compiled.staged_receives.append((source, (first, used)))
        compiled.applies += [(t.operation, self._span(t), staged[id(t)]) for t in step if id(t) in staged]
        return compiled if compiled.sends or compiled.direct_receives or compiled.staged_receives else None

    def run(self, buffer: Tensor, group: Group) -> None:
        """Runs all steps on the flat `buffer`, in place; one batch of messages a step."""
        for step in self._steps:
            parts = [(target, [buffer[a:b] for a, b in spans]) for target, spans in step.sends]
            sends = [
                Message(target, values[0] if len(values) == 1 else torch.cat(values))
                for target, values in parts
            ]
            receives = [Message(source, buffer[a:b]) for source, (a, b) in step.direct_receives]
            receives += [Message(source, self._staging[a:b]) for source, (a, b) in step.staged_receives]
            group.exchange(sends, receives)
            for operation, (start, stop), (first, last) in step.applies:
                place, values = buffer[start:stop], self._staging[first:last]
                if operation == "add":
                    place.add_(values)
                else:
                    place.copy_(values)

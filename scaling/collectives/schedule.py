"""A collective algorithm as data.

A `Schedule` says, step by step, which node hands which chunks of the buffer to which other node, and whether
they replace or add to what is there. It is a pure function of the world size and the algorithm's
parameters: nothing here moves a byte. `verify` proves that it delivers the sum, `execute` runs it on tensors.

The rules that every reader of a schedule relies on:

1. All transfers of a step read the values from before the step.
2. Several adds into one place apply in the order listed.
3. Two copies, or a copy and an add, into one chunk at one place in one step are refused.
4. Transfers between the same two nodes in a step travel as one message.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Literal, NamedTuple, TypeVar, overload

import numpy as np
from numpy.typing import ArrayLike, NDArray

from scaling.errors import ScheduleError

Operation = Literal["copy", "add"]


class Transfer(NamedTuple):
    """Chunks `start` to `stop` - 1 of `source` replace (`copy`) or join (`add`) those at `target`."""

    source: int
    target: int
    start: int
    stop: int
    operation: Operation


ScheduleStep = Sequence[Transfer]


T = TypeVar("T")


class _Equal(Sequence[T]):
    """A sequence that equals every other one with the same items, as a tuple does its like."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and len(self) == len(other) and tuple(self) == tuple(other)

    def __hash__(self) -> int:
        return hash(tuple(self))  # that of the tuple that it equals


class Columns(_Equal[Transfer]):
    """The transfers of a step as columns: a step of the stripes of 1,024 ranks has a million. `source`,
    `target`, `start`, `stop`: [num_transfers] whole numbers, or one number for all; `is_add`: [num_transfers]
    bools, or one for all: `add`, else `copy`."""

    def __init__(
        self, source: ArrayLike, target: ArrayLike, start: ArrayLike, stop: ArrayLike, is_add: ArrayLike
    ) -> None:
        wide = [np.asarray(column, dtype=np.int64) for column in (source, target, start, stop)]
        adds = np.asarray(is_add, dtype=bool)
        if adds.ndim != 1 or any(column.shape != adds.shape for column in wide):
            *wide, adds = np.broadcast_arrays(*np.atleast_1d(*wide), adds)
        self.source, self.target, self.start, self.stop = wide
        self.is_add: NDArray[np.bool_] = adds

    @classmethod
    def of(cls, step: ScheduleStep) -> Columns:
        """The columns of any step. Its operations must be `add` or `copy`."""
        if isinstance(step, Columns):
            return step
        source, target, start, stop, operation = zip(*step, strict=True) if step else ((),) * 5
        return cls(source, target, start, stop, [each == "add" for each in operation])

    def __len__(self) -> int:
        return len(self.source)

    def __iter__(self) -> Iterator[Transfer]:
        columns = (self.source, self.target, self.start, self.stop, self.is_add)
        for source, target, start, stop, is_add in zip(*(column.tolist() for column in columns), strict=True):
            yield Transfer(source, target, start, stop, "add" if is_add else "copy")

    @overload
    def __getitem__(self, index: int) -> Transfer: ...
    @overload
    def __getitem__(self, index: slice) -> Columns: ...
    def __getitem__(self, index: int | slice) -> Transfer | Columns:
        columns = (self.source, self.target, self.start, self.stop, self.is_add)
        if isinstance(index, slice):
            return Columns(*(column[index] for column in columns))
        source, target, start, stop, is_add = (column[index].item() for column in columns)
        return Transfer(source, target, start, stop, "add" if is_add else "copy")


class LazySteps(_Equal[ScheduleStep]):
    """Steps that are made when they are read: a ring of 1,024 ranks has two million transfers. `num_steps`:
    how many there are. `step`: makes the step of an index; a pure function. `kind_of`: which steps are the
    same, if that is known. Steps of one kind have the same transfers in the same order but for the chunks: as
    many of them, not the same ones. Where chunks are equal, such steps take equally long. `hosts_are_alike`:
    steps of one kind also find the same chunks of host memory empty, up to their number."""

    def __init__(
        self,
        num_steps: int,
        step: Callable[[int], ScheduleStep],
        kind_of: Callable[[int], Hashable] | None = None,
        *,
        hosts_are_alike: bool = False,
    ) -> None:
        self.hosts_are_alike = hosts_are_alike
        self._indices = range(num_steps)
        self._step = step
        self._kind_of = kind_of

    def kind(self, index: int) -> Hashable:
        """The kind of the step of that index; a kind of its own where nothing is declared."""
        index = self._indices[index]
        return ("step", index) if self._kind_of is None else self._kind_of(index)

    def __len__(self) -> int:
        return len(self._indices)

    @overload
    def __getitem__(self, index: int) -> ScheduleStep: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[ScheduleStep]: ...
    def __getitem__(self, index: int | slice) -> ScheduleStep | Sequence[ScheduleStep]:
        if isinstance(index, slice):
            return tuple(self._step(i) for i in self._indices[index])
        return self._step(self._indices[index])


@dataclass(frozen=True)
class Schedule:
    """A collective: steps of transfers between nodes."""

    name: str  # the algorithm, for messages
    world_size: int  # ranks: the nodes 0 to world_size - 1, which start with their own contribution
    num_chunks: int  # parts that the buffer is cut into, equal as `chunk_bounds` says
    steps: Sequence[ScheduleStep]
    num_hosts: int = 0  # further nodes, from `world_size` on, that are host memory and start empty
    chunk_elements: tuple[int, ...] | None = None  # of each chunk, where these are tensors, not equal parts

    @property
    def num_nodes(self) -> int:
        return self.world_size + self.num_hosts

    def node_name(self, node: int) -> str:
        """`rank 3` or `host 0`, for messages."""
        return f"rank {node}" if node < self.world_size else f"host {node - self.world_size}"

    def kind(self, index: int) -> Hashable:
        """Equal for steps that are declared the same: they differ in their chunks only (`LazySteps`)."""
        return self.steps.kind(index) if isinstance(self.steps, LazySteps) else ("step", index)

    def bounds(self, num_elements: int) -> list[int]:
        """`num_chunks` + 1 element indices: chunk c of a buffer is [bounds[c], bounds[c + 1]). ScheduleError:
        the schedule was made for tensors that are not `num_elements` together."""
        if self.chunk_elements is None:
            return chunk_bounds(num_elements, self.num_chunks)
        bounds = [0, *accumulate(self.chunk_elements)]
        if bounds[-1] != num_elements:
            raise ScheduleError(
                f"{self.name}: made for tensors of {bounds[-1]} elements together, run on {num_elements}"
            )
        return bounds


ALIGNMENT_ELEMENTS = 64
"""Chunks of large buffers begin at multiples of this: 128 bytes and more for every type. Transports and
kernels move unaligned data at a fraction of their speed."""


def chunk_bounds(num_elements: int, num_chunks: int) -> list[int]:
    """`num_chunks` + 1 element indices: chunk c is [bounds[c], bounds[c + 1]). Chunks are equal to one
    element, or to ALIGNMENT_ELEMENTS where that is below a hundredth of a chunk."""
    fine = num_elements < 100 * ALIGNMENT_ELEMENTS * num_chunks
    unit = 1 if fine else ALIGNMENT_ELEMENTS
    inner = [num_elements * chunk // num_chunks // unit * unit for chunk in range(num_chunks)]
    return [*inner, num_elements]


def messages(step: ScheduleStep) -> Iterator[tuple[int, int, list[Transfer]]]:
    """The step's messages as (source, target, transfers), in the order of their first transfer (rule 4)."""
    grouped: dict[tuple[int, int], list[Transfer]] = {}
    for transfer in step:
        grouped.setdefault((transfer.source, transfer.target), []).append(transfer)
    for (source, target), transfers in grouped.items():
        yield source, target, transfers

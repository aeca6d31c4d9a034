"""What every group offers, and the meter that counts what a rank sends."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import NamedTuple, TypeVar

import torch
from torch import Tensor

from scaling.errors import LaunchError

T = TypeVar("T")

HOW_TO_BRING = {
    "mpi": "it needs mpi4py (pip install 'scaling-study[mpi]'), and workers started by MPI: "
    "`mpirun -np N python -m scaling.worker STUDY`",
    "horovod": "it needs Horovod with this torch: `make horovod` builds it",
}
"""Library -> what to do where a launch does not have it."""


class Message(NamedTuple):
    """One tensor on its way to, or expected from, the rank `peer`."""

    peer: int
    tensor: Tensor


@dataclass
class Meter:
    """Bytes and messages that this rank has sent since the last reset, copies to and from host memory too;
    what a library or a group does underneath does not count. For several threads."""

    bytes_sent: int = 0
    messages_sent: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False, compare=False)

    def count(self, num_bytes: int, num_messages: int = 1) -> None:
        with self._lock:
            self.bytes_sent += num_bytes
            self.messages_sent += num_messages

    @contextmanager
    def standing_still(self) -> Iterator[None]:
        """What is sent inside is not counted: it is no step's."""
        before = (self.bytes_sent, self.messages_sent)
        yield
        self.bytes_sent, self.messages_sent = before

    def reset(self) -> None:
        self.bytes_sent = self.messages_sent = 0


class PeerMemory(ABC):
    """A buffer on each rank's device that every rank can read and write; `local`: this rank's own, flat."""

    local: Tensor

    @abstractmethod
    def of(self, rank: int) -> Tensor: ...

    @abstractmethod
    def barrier(self, channel: int = 0) -> None:
        """Orders memory: what any rank did to any buffer before its call is seen by all after theirs. On CUDA
        in the order of the current stream, without waiting on the host; each stream has its own channel."""


class Group(ABC):
    """Ranks 0 to world_size - 1 that take part in an aggregation; this process is `rank`. `through_host`:
    messages of device tensors wait on the host, so that no CUDA graph holds them."""

    through_host: bool = False

    def __init__(self, rank: int, world_size: int) -> None:
        self.rank = rank
        self.world_size = world_size
        self.meter = Meter()

    @abstractmethod
    def _exchange(self, sends: Sequence[Message], receives: Sequence[Message]) -> None: ...

    @abstractmethod
    def _all_reduce(self, tensor: Tensor) -> None: ...

    @abstractmethod
    def _broadcast(self, tensor: Tensor, source: int) -> None: ...

    @abstractmethod
    def _reduce_scatter(self, shard: Tensor, tensor: Tensor) -> None: ...

    @abstractmethod
    def _all_gather(self, tensor: Tensor, shard: Tensor) -> None: ...

    @abstractmethod
    def barrier(self) -> None:
        """Returns on the host after every rank has called it. Not metered: it carries no payload."""

    @abstractmethod
    def shared_host_buffer(self, num_bytes: int, *, register: bool) -> Tensor:
        """Zeroed uint8, seen by all ranks of the group. Collective. `register`: pin it for the CUDA driver.
        LaunchError: the ranks are on more than one host, or the shared memory is too small."""

    @abstractmethod
    def wait_until(self, condition: Callable[[], bool]) -> None:
        """`condition`: on host memory. TimeoutError: it does not hold in time, or a rank has failed."""

    def largest(self, value: float) -> float:
        """The largest `value` that any rank gave. Collective."""
        return self.largest_of([value])[0]

    @abstractmethod
    def largest_of(self, values: Sequence[float]) -> list[float]:
        """The largest that any rank gave, one by one, over the host's network: waits for no device."""

    @abstractmethod
    def share(self, value: T, source: int = 0) -> T:
        """The source's `value` (see `scaling.files.messages`) on every rank. Collective."""

    @abstractmethod
    def can_access_peers(self, device: torch.device) -> bool:
        """Whether the ranks may and can read each other's memory on such devices; the same on every rank."""

    @abstractmethod
    def peer_memory(self, num_elements: int, dtype: torch.dtype, device: torch.device) -> PeerMemory:
        """That all ranks can read. Collective. LaunchError: the ranks cannot, or the study forbids it."""

    def carries(self, library: str) -> bool:
        """Whether the launch offers that library for `over`; it may still turn out to be unusable."""
        return False

    def over(self, library: str) -> Group:
        """By "mpi" or "horovod"; metered here. Collective at first use. LaunchError: this launch lacks it."""
        hint = HOW_TO_BRING.get(library, f"known are {', '.join(HOW_TO_BRING)}")
        raise LaunchError(f"{library} cannot be used by these ranks: {hint}")

    @abstractmethod
    def all_reduce_host(self, tensor: Tensor) -> None:
        """As `all_reduce`, for a tensor in host memory, whatever device the ranks compute on."""

    def exchange(self, sends: Sequence[Message], receives: Sequence[Message]) -> None:
        """Sends and receives one batch of messages; at most one a direction between two ranks. What came may
        be used afterwards: on CUDA in the order of the current stream."""
        sends = [message for message in sends if message.tensor.numel()]
        receives = [message for message in receives if message.tensor.numel()]
        for message in sends:
            self.meter.count(message.tensor.nbytes)
        if sends or receives:
            self._exchange(sends, receives)

    def all_reduce(self, tensor: Tensor) -> None:
        """Sums `tensor` over the ranks, in place. Metered as a ring, 2(n-1) messages of 1/n of the bytes, as
        nccl-tests' bus bandwidth assumes: the library does not tell what it does."""
        if self.world_size > 1 and tensor.numel():
            self._meter_all_reduce(tensor)
            self._all_reduce(tensor)

    def reduce_scatter(self, tensor: Tensor) -> Tensor:
        """Sums `tensor`, [world_size * shard elements], over the ranks; gives this rank's shard of the sum, a
        view. The rest is lost. Metered as a ring: n - 1 messages of a shard."""
        shard = tensor.view(self.world_size, -1)[self.rank]
        if self.world_size > 1 and tensor.numel():
            self.meter.count(shard.nbytes * (self.world_size - 1), self.world_size - 1)
            self._reduce_scatter(shard, tensor)
        return shard

    def all_gather(self, tensor: Tensor) -> None:
        """Of [world_size * shard elements], in place; metered as `reduce_scatter` is."""
        if self.world_size > 1 and tensor.numel():
            shard = tensor.view(self.world_size, -1)[self.rank]
            self.meter.count(shard.nbytes * (self.world_size - 1), self.world_size - 1)
            self._all_gather(tensor, shard)

    def _meter_all_reduce(self, tensor: Tensor) -> None:
        rounds = 2 * (self.world_size - 1)
        self.meter.count(tensor.nbytes * rounds // self.world_size, rounds)

    def broadcast(self, tensor: Tensor, source: int = 0) -> None:
        """Copies the source's `tensor` into every rank's; metered as one message to each other rank."""
        if self.world_size > 1 and tensor.numel():
            if self.rank == source:
                self.meter.count(tensor.nbytes * (self.world_size - 1), self.world_size - 1)
            self._broadcast(tensor, source)


class HostCounters:
    """Of one host, one a rank: microseconds where sockets take hundreds. Collective to make."""

    def __init__(self, group: Group) -> None:
        self._group, self._everyone = group, range(group.world_size)
        buffer = group.shared_host_buffer(group.world_size * 8, register=False)
        self._values = memoryview(buffer.view(torch.int64).numpy())  # type: ignore[arg-type]
        self._fence = threading.Lock()
        self._met = 0

    def tell(self, value: int) -> None:
        """Raises this rank's counter; what it wrote to shared memory before is seen before the counter is."""
        self._order_memory()
        self._values[self._group.rank] = value

    def reached(self, value: int, ranks: Iterable[int] | None = None) -> bool:
        """Whether those ranks (None: all) have reported `value` or more."""
        reached = all(self._values[rank] >= value for rank in (self._everyone if ranks is None else ranks))
        if reached:
            self._order_memory()
        return reached

    def _order_memory(self) -> None:
        """Keeps accesses before from being seen after those behind: on every processor leaving a lock waits
        for what came before it, and taking it again holds up what comes after."""
        for _ in range(2):
            with self._fence:
                pass

    def wait(self, value: int, ranks: Iterable[int] | None = None) -> None:
        """Returns once they have; raises what `Group.wait_until` does."""
        ranks = self._everyone if ranks is None else list(ranks)
        self._group.wait_until(lambda: self.reached(value, ranks))

    def meet(self) -> None:
        """A barrier: returns once every rank has called it as often."""
        self._met += 1
        self.tell(self._met)
        self.wait(self._met)

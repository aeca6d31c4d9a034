"""The protocol of gradient aggregation.

An aggregator is a frozen dataclass: its fields are the parameters that a study may set. `start` makes the
state of one rank (buffers, residuals), which the caller keeps and may checkpoint; `aggregate` brings the
ranks' gradients together. It holds no clock and counts nothing: the caller hands in a `phase` marker, and the
group meters what is sent.
"""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, Literal, TypeVar

import torch
from torch import Tensor

from scaling.aggregators.state import AggregatorState
from scaling.bucket import BucketLayout, Span
from scaling.collectives.plan import Stage, Update
from scaling.errors import StudyError
from scaling.process_group import Group

DdpPath = Literal["hook", "library_hook", "own", "bare", "optimizer", "layered", "by_tensor", "fully_sharded"]

UpdateSite = Literal["replica", "root", "owner", "host_serial", "host_parallel"]
HOST_SITES: tuple[UpdateSite, ...] = ("host_serial", "host_parallel")


DTYPES = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
"""Of parameters that can be trained, and so of their gradients."""

PhaseMarker = Callable[[str], AbstractContextManager[None]]
"""`with phase("encode"):` attributes what runs inside to that phase of the iteration."""


def unmarked(_: str) -> AbstractContextManager[None]:
    return nullcontext()


S = TypeVar("S", bound=AggregatorState)


@dataclass(frozen=True)
class Aggregator(ABC, Generic[S]):
    """One way to bring the ranks' gradients together.

    Class attributes (capabilities, which callers check instead of guessing):
        name: what a study calls it.
        lossy: the result is not the exact mean.
        exchanges: False for a control arm, whose replicas drift apart.
        update_site: where the optimizer step is taken, and so where `aggregate` leaves the mean. "replica":
            every rank, on its device; "root": rank 0, on its device; "owner": each element on one rank's
            device; "host_serial": host memory, all of it stepped by rank 0 with one thread;
            "host_parallel": host memory, each element stepped by one rank.
        modifies_input: `aggregate` may overwrite the gradient it is given, and may return that very buffer.
        overlaps: can run while backward still runs, bucket by bucket.
        overlapped_only: makes sense in the overlapped step alone.
        order_varies: the library decides while it runs in which order it adds, so that with more than two
            ranks the last bits of two equal calls may differ.
        releases_gradients: gradients that a rank does not own are released under the backward pass, so that
            there is no step in which all are together.
        shards_optimizer: DDP's optimizer is torch's ZeroRedundancyOptimizer.
        needs_peer_access: needs direct access to other devices' memory.
        graph_capturable: can be captured in a CUDA graph.
        min_world_size: smallest world it runs in.
        one_host: goes through memory that the ranks of one host share: runs on no several hosts.
        library: "mpi" or "horovod", which it takes from its group's `over`: it runs only in launches that
            have that library, and between threads not at all; None for all others.
        dtypes: of the gradients that it takes, some of `DTYPES`. An exact one is exact in each of them;
            residuals and codes are computed in float32 where the gradient is float64, too.
    """

    name: ClassVar[str]
    lossy: ClassVar[bool] = False
    exchanges: ClassVar[bool] = True
    update_site: ClassVar[UpdateSite] = "replica"
    modifies_input: ClassVar[bool] = False
    overlaps: ClassVar[bool] = False
    overlapped_only: ClassVar[bool] = False
    order_varies: ClassVar[bool] = False
    releases_gradients: ClassVar[bool] = False
    shards_optimizer: ClassVar[bool] = False
    needs_peer_access: ClassVar[bool] = False
    graph_capturable: ClassVar[bool] = False
    min_world_size: ClassVar[int] = 1
    one_host: ClassVar[bool] = False
    library: ClassVar[str | None] = None
    dtypes: ClassVar[tuple[torch.dtype, ...]] = DTYPES

    def require_size(self, world_size: int) -> None:
        """Raises StudyError unless it runs on so many ranks, `min_world_size` or more."""

    def is_late(self) -> bool:
        """Whether a call returns the mean of the gradients of the call before, zeros at first."""
        return False

    def needs_one_host(self) -> bool:
        """Whether it runs on no several hosts, by its nature or by its `transport`."""
        return self.one_host or getattr(self, "transport", "") in ("peer_memory", "one_kernel", "host_memory")

    @abstractmethod
    def start(self, layout: BucketLayout, group: Group, dtype: torch.dtype, device: torch.device) -> S:
        """This rank's state for a bucket of that layout. Collective: every rank of the group calls it."""

    @abstractmethod
    def aggregate(self, state: S, gradient: Tensor, phase: PhaseMarker = unmarked) -> Tensor | None:
        """Brings the gradients together. Collective.

        Args:
            gradient: this rank's flat bucket (1-D, as `layout` says), on the device given to `start`. Left as
                it is unless `modifies_input`.

        Returns:
            A flat tensor of the bucket's length, where `update_site` says, that holds the mean over the ranks
            in the elements that `owned` names; None where it names none. Valid until the next call, and the
            caller's to overwrite in those elements, as torch's Nesterov step does on CUDA.
        """

    def ddp_path(self) -> DdpPath:
        """How the overlapped step runs it.

        "hook": as DDP's communication hook; "library_hook": as torch's, which `library_hook` gives; "own":
        by DDP's own path (in a group of one rank where nothing is exchanged); "bare": without DDP;
        "optimizer": likewise, by what `wrap_optimizer` gives; "layered": without DDP, by
        `scaling.training.layered`; "by_tensor": likewise, each tensor alone, by `scaling.training.by_tensor`;
        "fully_sharded": by torch's fully_shard.
        """
        return "hook"

    def by_tensor(self, layout: BucketLayout, world_size: int) -> list[Aggregator[Any]]:
        """What exchanges each tensor of that layout as a bucket of its own; for the path "by_tensor" only."""
        raise NotImplementedError(f"{self.name} does not exchange tensor by tensor")

    def wrap_optimizer(
        self,
        optimizer: torch.optim.Optimizer,
        layout: BucketLayout,
        parameters: Sequence[Tensor],
        group: Group,
    ) -> Any:
        """An optimizer that brings gradients together while backward makes them. Collective.

        Its `synchronize()` returns when all are there, and `step()` inside its `skip_synchronize()` is then
        the optimizer's own. For the path "optimizer" only.
        """
        raise NotImplementedError(f"{self.name} does not wrap an optimizer")

    def library_hook(
        self, process_group: Any, layouts: Mapping[int, BucketLayout], device: torch.device
    ) -> Any:
        """A communication hook of torch's with its state. Collective; for the path "library_hook" only.

        Called with a bucket it gives the future mean. It has `next_bytes(index)`, which a rank sends for that
        bucket, `residual(index, like)`, `state_dict()` and `load_state_dict(saved)`.
        """
        raise NotImplementedError(f"{self.name} is no hook of torch's")

    def site(self, layout: BucketLayout) -> UpdateSite:
        """The update site for those tensors: `update_site`, unless the aggregator goes by their sizes."""
        return self.update_site

    def owned(self, state: S) -> list[Span]:
        """The elements whose mean this rank's result holds, as [start, stop) ranges without gaps between
        neighbours; together the ranks of an update site cover the bucket. To be overridden where each element
        has one owner ("owner", "host_parallel")."""
        site = self.site(state.layout)
        whole = site == "replica" or (site in ("root", "host_serial") and state.group.rank == 0)
        return [(0, state.layout.num_elements)] if whole and state.layout.num_elements else []

    def distribute(self, state: S, parameters: Tensor, phase: PhaseMarker = unmarked) -> None:
        """Brings updated parameters from the ranks that own them to all. Collective; "root" and "owner" only.
        `parameters`: this rank's flat parameters, in place; new only in the elements that it owns."""
        raise NotImplementedError(f"{self.name} takes the step on every replica: nothing to distribute")

    def wire_bytes(self, layout: BucketLayout, world_size: int, rank: int, itemsize: int) -> int | None:
        """Bytes that a rank moves in one step, as its group meters them; None: it cannot say. Counted is what
        it sends to other ranks, and both directions of every copy between it and host memory: what goes
        there, and what comes back. `distribute` belongs to it where there is one, and so do the parameters
        that come back from an update in host memory."""
        return None

    def stages(self, layout: BucketLayout, world_size: int) -> list[Stage]:
        """What aggregation and update of a step consist of, in order: for predictions. `world_size`: ranks,
        of one node where host memory is used. StudyError: this aggregator does not say."""
        exchange = self.exchange_stages(layout, world_size)
        return [*(exchange if world_size > 1 else []), Update("replica", layout.num_elements)]

    def exchange_stages(self, layout: BucketLayout, world_size: int) -> list[Stage]:
        """What comes before every replica's update in `stages`, where it does and a rank alone skips it."""
        raise StudyError(f"aggregator {self.name!r} cannot be predicted: its class does not define `stages`")

    def own_momentum(self) -> float:
        """The momentum that it applies itself, before the exchange; the optimizer's must then be 0."""
        return 0.0

    def settling_steps(self) -> int:
        """Steps at the start that exchange in another way than those behind them; none of these is timed."""
        return 0

    def contribution(self, state: S, gradient: Tensor) -> Tensor:
        """What this rank brings to the exchange, before any residual: the gradient, unless the aggregator
        applies a momentum of its own. Changes nothing."""
        return gradient

    def error_bound(self, gradient: Tensor, world_size: int) -> Tensor | None:
        """[num_elements], float32 or wider: how far this rank's gradient may put each element of the mean off
        at most. Runs of lossy aggregators without residuals check the mean against the sum of the ranks'
        bounds; None: not known."""
        return None

    def start_up(self) -> dict[str, str]:
        """Environment variables that its library reads when it starts, so that cells which differ in them are
        run by launches of their own. `{launches}`, `{world_size}` and `{repeat}` stand for the folder of the
        results that a launch may write to, its size and its number."""
        return {}

    def parameters(self) -> dict[str, Any]:
        return dataclasses.asdict(self)

    def label(self) -> str:
        """The name, with the parameters that differ from their defaults: `one_bit(threshold=mean)`."""
        changed = [
            f"{field.name}={getattr(self, field.name)}"
            for field in dataclasses.fields(self)
            if getattr(self, field.name) != field.default
        ]
        return f"{self.name}({', '.join(changed)})" if changed else self.name


@dataclass(frozen=True)
class Stated(Aggregator[S], Generic[S]):
    """Base of those whose states make themselves: `state_class(aggregator, layout, group, dtype, device)`."""

    state_class: ClassVar[Any]

    def start(self, layout: BucketLayout, group: Group, dtype: torch.dtype, device: torch.device) -> S:
        state: S = self.state_class(self, layout, group, dtype, device)
        return state

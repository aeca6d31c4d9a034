"""The protocol of gradient aggregation.

An aggregator is a frozen dataclass: its fields are the parameters that a study may set. `start` makes the
state of one rank (buffers, residuals), which the caller keeps and may checkpoint; `aggregate` brings the
ranks' gradients together. It holds no clock and counts nothing: the caller hands in a `phase` marker, and the
group meters what is sent.
"""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, Literal, TypeVar

import torch
from torch import Tensor

from scaling.bucket import BucketLayout
from scaling.process_group import Group

UpdateSite = Literal["replica", "host"]

PhaseMarker = Callable[[str], AbstractContextManager[None]]
"""`with phase("encode"):` attributes what runs inside to that phase of the iteration."""


def unmarked(_: str) -> AbstractContextManager[None]:
    """The phase marker of a caller who measures nothing."""
    return nullcontext()


@dataclass
class AggregatorState:
    """What one rank keeps between calls: the group, the layout and, in subclasses, buffers and residuals.

    Subclasses list in `persistent` the tensors that decide later results; scratch buffers are not among them.
    """

    group: Group
    layout: BucketLayout
    persistent: ClassVar[tuple[str, ...]] = ()

    def state_dict(self) -> dict[str, Tensor]:
        """Copies of the tensors that a checkpoint needs, by name."""
        return {name: getattr(self, name).clone() for name in self.persistent}

    def load_state_dict(self, tensors: dict[str, Tensor]) -> None:
        """Takes over what `state_dict` gave; shapes must be this state's own."""
        for name in self.persistent:
            getattr(self, name).copy_(tensors[name])


S = TypeVar("S", bound=AggregatorState)


@dataclass(frozen=True)
class Aggregator(ABC, Generic[S]):
    """One way to bring the ranks' gradients together.

    Class attributes (capabilities, which callers check instead of guessing):
        name: what a study calls it.
        lossy: the result is not the exact mean.
        exchanges: False for a control arm, whose replicas drift apart.
        update_site: where the optimizer step is taken. "replica": `aggregate` returns the mean on every rank;
            "host": it returns the mean on rank 0, in host memory, and None elsewhere.
        modifies_input: `aggregate` may overwrite the gradient it is given, and may return that very buffer.
        overlaps: can run while backward still runs.
        needs_peer_access: needs direct access to other devices' memory.
        graph_capturable: can be captured in a CUDA graph.
        min_world_size: smallest world it runs in.
    """

    name: ClassVar[str]
    lossy: ClassVar[bool] = False
    exchanges: ClassVar[bool] = True
    update_site: ClassVar[UpdateSite] = "replica"
    modifies_input: ClassVar[bool] = False
    overlaps: ClassVar[bool] = False
    needs_peer_access: ClassVar[bool] = False
    graph_capturable: ClassVar[bool] = False
    min_world_size: ClassVar[int] = 1

    @abstractmethod
    def start(self, layout: BucketLayout, group: Group, dtype: torch.dtype, device: torch.device) -> S:
        """This rank's state for a bucket of that layout. Collective: every rank of the group calls it."""

    @abstractmethod
    def aggregate(self, state: S, gradient: Tensor, phase: PhaseMarker = unmarked) -> Tensor | None:
        """Brings the gradients together. Collective.

        Args:
            state: what `start` gave; its buffers are reused.
            gradient: this rank's flat bucket (1-D, as `layout` says), on the device given to `start`. Left as
                it is unless `modifies_input`.
            phase: marks the phases that this aggregator can tell apart.

        Returns:
            The mean over the ranks, flat, where `update_site` says; valid until the next call.
        """

    def parameters(self) -> dict[str, Any]:
        """All parameters by name."""
        return dataclasses.asdict(self)

    def label(self) -> str:
        """The name, with the parameters that differ from their defaults: `one_bit(threshold=mean)`."""
        changed = [
            f"{field.name}={getattr(self, field.name)}"
            for field in dataclasses.fields(self)
            if getattr(self, field.name) != field.default
        ]
        return f"{self.name}({', '.join(changed)})" if changed else self.name

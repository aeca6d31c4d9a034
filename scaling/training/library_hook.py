"""The buckets of DDP with a communication hook of torch's own, run by torch's code and metered here."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from scaling.errors import LaunchError
from scaling.measure.phases import Marks
from scaling.training.exchanges import BucketExchange
from scaling.training.hooked_buckets import HookedBuckets

if TYPE_CHECKING:  # torch.distributed has it too, hidden from type checkers
    from torch._C._distributed_c10d import GradBucket


class LibraryHookBuckets(HookedBuckets):
    """See the base; on a GPU the hook is called as DDP would call it.

    On a CPU buckets take their turn in a thread: torch's hook answers Gloo's threads by further exchanges, so
    that several buckets under way would meet those of other ranks in another order.
    """

    _hook: Any

    def start(self) -> None:
        """Makes the hook's state. Collective.

        Raises:
            LaunchError: workers share a GPU.
        """
        name = self._aggregator.name
        if self._group.through_host:
            raise LaunchError(f"{name} needs a GPU for each worker; use power_sgd, or fewer workers")
        self._hook = self._aggregator.library_hook(self._group.data, self._layouts, self._device)
        self._unseen = set(self._layouts)
        self.started = True

    def launch(self, bucket: GradBucket, marks: Marks) -> torch.futures.Future[Tensor]:
        self._require_same(bucket)
        phase, index = marks.on_lane("comm"), bucket.index()
        if self._group.world_size > 1:
            self._group.meter.count(self._hook.next_bytes(index), 0)
        if self._device.type == "cuda" and self.record is None:
            with phase("communicate"):
                future: torch.futures.Future[Tensor] = self._hook(bucket)
            return future

        def waited() -> Tensor:
            with phase("communicate"):
                return self._recorded(bucket)

        return self._side.run(waited, bucket.buffer())

    @torch.no_grad()
    def _recorded(self, bucket: GradBucket) -> Tensor:
        """The mean; with a record, what went in and came out is added to it."""
        if self.record is None:
            return self._hook(bucket).wait()
        index, layout = bucket.index(), self._layouts[bucket.index()]
        contribution = bucket.buffer().clone()
        old = self._hook.residual(index, contribution)
        mean: Tensor = self._hook(bucket).wait()
        owned = [(0, layout.num_elements)] if layout.num_elements else []
        new = self._hook.residual(index, contribution)
        self.record.append(BucketExchange(layout, contribution, mean.clone(), owned, old, new))
        return mean

    def state_dict(self) -> dict[str, dict[str, Tensor]]:
        saved: dict[str, dict[str, Tensor]] = self._hook.state_dict()
        return saved

    def load_state_dict(self, states: dict[str, dict[str, Tensor]]) -> None:
        self._hook.load_state_dict(states)

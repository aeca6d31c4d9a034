"""Where the optimizer step is taken, and its state lives: on every replica, by one rank, by owners, or in
host memory.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from typing import TypeVar

import torch
from torch import Tensor

from scaling.aggregators.base import HOST_SITES, Aggregator, PhaseMarker, UpdateSite, unmarked
from scaling.aggregators.host import threads
from scaling.aggregators.state import AggregatorState
from scaling.bucket import Span
from scaling.training.optimizers import OptimizerSettings, OptimizerState, set_learning_rate, skip_where
from scaling.training.replica import FlatBucket

S = TypeVar("S", bound=AggregatorState)


class OwnedUpdate(OptimizerState):
    """The parameters in some spans, and their optimizer. `how`: as of `OptimizerSettings.optimizer`."""

    def __init__(self, flat: Tensor, spans: list[Span], settings: OptimizerSettings, **how: bool) -> None:
        self._spans = spans
        self._stepped = [torch.nn.Parameter(flat[start:stop]) for start, stop in spans]
        places = dict(zip((f"{start}:{stop}" for start, stop in spans), self._stepped, strict=True))
        # A rank that owns nothing has an optimizer of nothing, which takes no step.
        optimizer = settings.optimizer(self._stepped or [torch.nn.Parameter(flat[:0])], **how)
        super().__init__(optimizer, places, settings.state_names)

    def set_learning_rate(self, rate: float) -> None:
        set_learning_rate(self._optimizer, rate)

    def skip_where(self, found_inf: Tensor) -> None:
        skip_where(self._optimizer, found_inf)

    def parts(self, mean: Tensor | None) -> list[Tensor]:
        if not self._stepped:
            return []
        assert mean is not None, "a rank that owns parameters gets their mean gradient"
        return [mean[start:stop] for start, stop in self._spans]

    def step(self, mean: Tensor | None) -> None:
        if self._stepped:
            self.step_parts(self.parts(mean))

    def step_parts(self, parts: Sequence[Tensor]) -> None:
        for parameter, part in zip(self._stepped, parts, strict=True):
            parameter.grad = part
        self._optimizer.step()
        for parameter in self._stepped:
            parameter.grad = None  # it would keep the memory of the whole bucket's gradients


class SiteUpdate(OwnedUpdate, ABC):
    def __init__(
        self,
        flat: Tensor,
        bucket: FlatBucket,
        settings: OptimizerSettings,
        aggregator: Aggregator[S],
        state: S,
        **how: bool,
    ) -> None:
        self._bucket, self._aggregator, self._aggregated = bucket, aggregator, state
        self.site: UpdateSite = aggregator.site(state.layout)
        super().__init__(flat, aggregator.owned(state), settings, **how)

    @abstractmethod
    def apply(self, mean: Tensor | None, phase: PhaseMarker = unmarked) -> None:
        """Takes the step with the mean, what the aggregator returned; afterwards every replica has the new
        parameters."""


class DeviceUpdate(SiteUpdate):
    """Every rank steps the parameters that it owns, on its device, and sends them where not all own them."""

    def apply(self, mean: Tensor | None, phase: PhaseMarker = unmarked) -> None:
        with phase("update"):
            self.step(mean)
        if self.site != "replica":
            self._aggregator.distribute(self._aggregated, self._bucket.parameters, phase)


class HostUpdate(SiteUpdate):
    """One copy of the parameters in host memory, stepped there by its owners; all ranks copy it back."""

    def __init__(
        self, bucket: FlatBucket, settings: OptimizerSettings, aggregator: Aggregator[S], state: S
    ) -> None:
        self._group = group = state.group
        shared = group.shared_host_buffer(
            bucket.parameters.nbytes, register=bucket.parameters.device.type == "cuda"
        )
        self._parameters = shared.view(bucket.parameters.dtype)
        if group.rank == 0:
            self._parameters.copy_(bucket.parameters)
        super().__init__(self._parameters, bucket, settings, aggregator, state)
        group.barrier()

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Rank 0's parameters become those in host memory; returns after that on every rank. Collective."""
        super().load_state_dict(state)
        if self._bucket.parameters.is_cuda:
            torch.cuda.current_stream().synchronize()  # its last copy of these
        self._group.barrier()
        if self._group.rank == 0:
            self._parameters.copy_(self._bucket.parameters)
        self._group.barrier()

    def apply(self, mean: Tensor | None, phase: PhaseMarker = unmarked) -> None:
        """The owners step in host memory; all ranks wait for them, then copy the result to their devices."""
        with phase("update"), threads(1) if self.site == "host_serial" else nullcontext():
            self.step(mean)
        with phase("wait"):  # for the ranks that step
            self._group.barrier()
        with phase("h2d_result"), torch.no_grad():
            # The owners write these again only with the next mean, for which each rank's next gradient is
            # waited for: that is behind this copy in the rank's stream.
            self._bucket.parameters.copy_(self._parameters, non_blocking=True)
        self._group.meter.count(self._parameters.nbytes)


class SpansUpdate(OwnedUpdate):
    """The step of some spans of the parameters, which are [num_elements], flat, on every replica."""

    def step(self, mean: Tensor | None) -> None:
        """With the mean of these elements alone, one behind the other."""
        assert mean is not None, "there is one on every rank that steps"
        self.step_parts(torch.split(mean, [stop - start for start, stop in self._spans]))


def update_at(
    bucket: FlatBucket, settings: OptimizerSettings, aggregator: Aggregator[S], state: S, **how: bool
) -> SiteUpdate:
    if aggregator.site(state.layout) in HOST_SITES:
        return HostUpdate(bucket, settings, aggregator, state)
    return DeviceUpdate(bucket.parameters, bucket, settings, aggregator, state, **how)

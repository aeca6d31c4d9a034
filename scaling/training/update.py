"""Where the optimizer step is taken: on every replica, by one rank, by owners, or in host memory.

Always it is torch's SGD on spans of the flat parameters. The momentum lives where the step is taken, and only
there.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor

from scaling.aggregators.base import (
    HOST_SITES,
    Aggregator,
    AggregatorState,
    PhaseMarker,
    Span,
    unmarked,
)
from scaling.aggregators.host import threads
from scaling.training.replica import FlatBucket

S = TypeVar("S", bound=AggregatorState)


@dataclass(frozen=True)
class SgdSettings:
    """Stochastic gradient descent as torch.optim.SGD defines it."""

    learning_rate: float
    momentum: float = 0.0
    weight_decay: float = 0.0
    nesterov: bool = False

    def optimizer(self, parameters: Sequence[Tensor], *, capturable: bool = False) -> torch.optim.SGD:
        """An optimizer of those tensors; `capturable`: fused, with its learning rate on the device."""
        rate: Any = self.learning_rate
        if capturable:
            rate = torch.tensor(self.learning_rate, dtype=torch.float32, device=parameters[0].device)
        return torch.optim.SGD(
            parameters,
            lr=rate,
            fused=True if capturable else None,
            momentum=self.momentum,
            weight_decay=self.weight_decay,
            nesterov=self.nesterov,
        )


def set_learning_rate(optimizer: torch.optim.Optimizer, rate: float) -> None:
    """That of the optimizer's next steps; one on the device is filled in the order of the current stream."""
    for group in optimizer.param_groups:
        if isinstance(group["lr"], Tensor):
            group["lr"].fill_(rate)
        else:
            group["lr"] = rate


class Update(ABC):
    """An update site, bound to one bucket of one rank's replica."""

    _owned: _Owned

    def state_dict(self) -> dict[str, Tensor]:
        """Copies of the momenta that live on this rank, by span."""
        return self._owned.momenta()

    def load_state_dict(self, momenta: dict[str, Tensor]) -> None:
        """Takes them over, in place; the replica has its parameters already. Collective."""
        self._owned.load_momenta(momenta)

    def set_learning_rate(self, rate: float) -> None:
        """That of the next steps."""
        self._owned.set_learning_rate(rate)

    @abstractmethod
    def apply(self, mean: Tensor | None, phase: PhaseMarker = unmarked) -> None:
        """Takes the optimizer step with the mean gradient; afterwards every replica has the new parameters.

        Args:
            mean: what the aggregator returned on this rank: flat, or None where the site is not.
            phase: marks `update` and what the site needs besides.
        """


class DeviceUpdate(Update):
    """Every rank steps the parameters that it owns, on its device, and sends them where all do not own them.

    Args:
        bucket: of this rank's model.
        settings: of the optimizer.
        aggregator: of the site "replica", "root" or "owner".
        state: its state.
        capturable: the step is to be captured in a CUDA graph.
    """

    def __init__(
        self,
        bucket: FlatBucket,
        settings: SgdSettings,
        aggregator: Aggregator[S],
        state: S,
        *,
        capturable: bool = False,
    ) -> None:
        self._aggregator, self._state = aggregator, state
        self._site = aggregator.site(state.layout)
        self._parameters = bucket.parameters
        self._owned = _Owned(bucket.parameters, aggregator.owned(state), settings, capturable=capturable)

    def apply(self, mean: Tensor | None, phase: PhaseMarker = unmarked) -> None:
        with phase("update"):
            self._owned.step(mean)
        if self._site != "replica":
            self._aggregator.distribute(self._state, self._parameters, phase)


class HostUpdate(Update):
    """One copy of the parameters in host memory, stepped there by its owners; all ranks copy it back.

    Args:
        bucket: of this rank's model.
        settings: of the optimizer.
        aggregator: of the site "host_serial" or "host_parallel".
        state: its state.
    """

    def __init__(
        self, bucket: FlatBucket, settings: SgdSettings, aggregator: Aggregator[S], state: S
    ) -> None:
        self._group = group = state.group
        self._bucket = bucket
        self._num_threads = 1 if aggregator.site(state.layout) == "host_serial" else None
        shared = group.shared_host_buffer(
            bucket.parameters.nbytes, register=bucket.parameters.device.type == "cuda"
        )
        self._parameters = shared.view(bucket.parameters.dtype)
        if group.rank == 0:
            self._parameters.copy_(bucket.parameters)
        self._owned = _Owned(self._parameters, aggregator.owned(state), settings)
        group.barrier()

    def load_state_dict(self, momenta: dict[str, Tensor]) -> None:
        super().load_state_dict(momenta)
        if self._bucket.parameters.is_cuda:
            torch.cuda.current_stream().synchronize()  # its last copy of these
        self._group.barrier()
        if self._group.rank == 0:
            self._parameters.copy_(self._bucket.parameters)
        self._group.barrier()

    def apply(self, mean: Tensor | None, phase: PhaseMarker = unmarked) -> None:
        with phase("update"), threads(1) if self._num_threads else nullcontext():
            self._owned.step(mean)
        with phase("wait"):  # for the ranks that step
            self._group.barrier()
        with phase("h2d_result"), torch.no_grad():
            # The owners write these again only with the next mean, for which each rank's next gradient is
            # waited for: that is behind this copy in the rank's stream.
            self._bucket.parameters.copy_(self._parameters, non_blocking=True)
        self._group.meter.count(self._parameters.nbytes)


class _Owned:
    """The parameters in some spans of a flat tensor, and the optimizer whose momentum they have."""

    def __init__(
        self, flat: Tensor, spans: list[Span], settings: SgdSettings, *, capturable: bool = False
    ) -> None:
        self._spans = spans
        self._parameters = [torch.nn.Parameter(flat[start:stop]) for start, stop in spans]
        self._optimizer = settings.optimizer(self._parameters, capturable=capturable) if spans else None

    def set_learning_rate(self, rate: float) -> None:
        if self._optimizer is not None:
            set_learning_rate(self._optimizer, rate)

    def momenta(self) -> dict[str, Tensor]:
        """Copies, by span; none before the first step, and without momentum."""
        return {name: buffer.clone() for name, buffer in self._buffers().items()}

    def load_momenta(self, momenta: dict[str, Tensor]) -> None:
        """Takes them over, in place where there are some; a span that is not there begins anew."""
        buffers = self._buffers()
        for (start, stop), parameter in zip(self._spans, self._parameters, strict=True):
            name = f"{start}:{stop}"
            if name in buffers and name in momenta:
                buffers[name].copy_(momenta[name])
            elif name in buffers:
                buffers[name].zero_()  # torch's first step takes the gradient itself, as it does from zero
            elif name in momenta and self._optimizer is not None:
                self._optimizer.state[parameter]["momentum_buffer"] = momenta[name].to(
                    parameter.device, copy=True
                )

    def _buffers(self) -> dict[str, Tensor]:
        if self._optimizer is None:
            return {}
        states = [self._optimizer.state.get(parameter, {}) for parameter in self._parameters]
        named = zip(self._spans, states, strict=True)
        return {
            f"{start}:{stop}": state["momentum_buffer"]
            for (start, stop), state in named
            if state.get("momentum_buffer") is not None
        }

    def step(self, mean: Tensor | None) -> None:
        """One step with the mean gradient, flat and of the whole bucket's length."""
        if self._optimizer is None:
            return
        assert mean is not None, "a rank that owns parameters gets their mean gradient"
        self.step_parts([mean[start:stop] for start, stop in self._spans])

    def step_parts(self, parts: Sequence[Tensor]) -> None:
        """One step with the mean gradient of each span."""
        for parameter, part in zip(self._parameters, parts, strict=True):
            parameter.grad = part
        if self._optimizer is not None:
            self._optimizer.step()


class SpansUpdate:
    """The step of some spans of the flat parameters, on every replica.

    Args:
        parameters: [num_elements] flat.
        spans: of these.
        settings: of the optimizer.
        capturable: the step is to be captured in a CUDA graph.
    """

    def __init__(
        self, parameters: Tensor, spans: list[Span], settings: SgdSettings, *, capturable: bool = False
    ) -> None:
        self._owned = _Owned(parameters, spans, settings, capturable=capturable)
        self._sizes = [stop - start for start, stop in spans]

    def state_dict(self) -> dict[str, Tensor]:
        """Copies of the momentum, by span."""
        return self._owned.momenta()

    def load_state_dict(self, momenta: dict[str, Tensor]) -> None:
        """Takes it over, in place, from the momenta of many spans."""
        self._owned.load_momenta(momenta)

    def set_learning_rate(self, rate: float) -> None:
        """That of the next steps."""
        self._owned.set_learning_rate(rate)

    def step(self, mean: Tensor) -> None:
        """One step with the mean gradient of the spans, one behind the other."""
        self._owned.step_parts(torch.split(mean, self._sizes))


def update_at(
    bucket: FlatBucket,
    settings: SgdSettings,
    aggregator: Aggregator[S],
    state: S,
    *,
    capturable: bool = False,
) -> Update:
    """The update of the aggregator's site. Collective for sites in shared memory."""
    if aggregator.site(state.layout) in HOST_SITES:
        return HostUpdate(bucket, settings, aggregator, state)
    return DeviceUpdate(bucket, settings, aggregator, state, capturable=capturable)

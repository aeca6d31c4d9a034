"""The eager training step: forward, backward, then aggregation, then the update.

Nothing overlaps, as in the systems that the strategies come from, so every phase can be timed on its own.
"""

from __future__ import annotations

from typing import Any, Protocol

import torch
from torch import Tensor

from scaling.aggregators.base import Aggregator, PhaseMarker, unmarked
from scaling.process_group import Group
from scaling.training.replica import Replica
from scaling.training.update import SgdSettings, update_at


class Step(Protocol):
    """One way to take a training step on one rank."""

    @property
    def replica(self) -> Replica:
        """This rank's model."""

    @property
    def notes(self) -> list[str]:
        """What was decided at the start, for the record of the run."""

    def __call__(self, inputs: Tensor, targets: Tensor, phase: PhaseMarker = unmarked) -> Tensor:
        """One optimizer update on this rank's share of a global batch. Collective.

        Args:
            inputs: [local_batch, ...] on the replica's device.
            targets: [local_batch] int64, there too.
            phase: marks the phases.

        Returns:
            The local loss before the update, detached, on the device: not waited for.
        """


class EagerStep:
    """A step on one rank. Collective to make and to call.

    Args:
        replica: this rank's model.
        aggregator: how gradients are brought together.
        settings: of the optimizer.
        group: the ranks that train together.
        capturable: the step is to be captured in a CUDA graph.
    """

    def __init__(
        self,
        replica: Replica,
        aggregator: Aggregator[Any],
        settings: SgdSettings,
        group: Group,
        *,
        capturable: bool = False,
    ) -> None:
        self.replica = replica
        self._aggregator = aggregator
        flat = replica.parameters
        self._state = aggregator.start(replica.layout, group, flat.dtype, flat.device)
        if self._state.gradient_buffer is not None:
            replica.place_gradient(self._state.gradient_buffer)
        if self._state.parameter_buffer is not None:
            replica.place_parameters(self._state.parameter_buffer)
        self._update = update_at(replica, settings, aggregator, self._state, capturable=capturable)

    @property
    def notes(self) -> list[str]:
        """What the aggregator decided at the start."""
        notes: list[str] = self._state.notes
        return notes

    def state_dict(self) -> dict[str, Any]:
        """Copies of all that decides later steps on this rank."""
        module = {name: value.detach().clone() for name, value in self.replica.module.state_dict().items()}
        return {"module": module, "aggregator": self._state.state_dict(), "update": self._update.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Takes over, in place, what `state_dict` gave."""
        self.replica.module.load_state_dict(state["module"])
        self._state.load_state_dict(state["aggregator"])
        self._update.load_state_dict(state["update"])

    def __call__(self, inputs: Tensor, targets: Tensor, phase: PhaseMarker = unmarked) -> Tensor:
        """Forward, backward, aggregation, update; see `Step`."""
        with phase("forward"):
            loss = self.replica.forward(inputs, targets)
        with phase("backward"):
            self.replica.backward(loss)
        with torch.no_grad():
            mean = self._aggregator.aggregate(self._state, self.replica.gradient, phase)
            self._update.apply(mean, phase)
        return loss.detach()

"""What a training step is, and the eager one: forward, backward, then aggregation, then the update.

In the eager step nothing overlaps, as in the systems that the strategies come from, so every phase can be
timed on its own.
"""

from __future__ import annotations

from typing import Any, Protocol

import torch
from torch import Tensor

from scaling.aggregators.base import Aggregator
from scaling.measure.phases import UNMARKED, Marks, PhaseRecorder
from scaling.process_group import Group
from scaling.training.replica import FlatReplica, Replica
from scaling.training.update import SgdSettings, update_at


class Step(Protocol):
    """One way to take a training step on one rank."""

    @property
    def replica(self) -> Replica:
        """This rank's model."""

    @property
    def notes(self) -> list[str]:
        """What was decided at the start, for the record of the run."""

    def __call__(self, inputs: Tensor, targets: Tensor, marks: Marks = UNMARKED) -> Tensor:
        """One optimizer update on this rank's share of a global batch. Collective.

        Args:
            inputs: [local_batch, ...] on the replica's device.
            targets: [local_batch] int64 (or [local_batch, ...], one class a logit), there too.
            marks: takes the phases, after `prepare_split`.

        Returns:
            The local loss before the update, detached, on the device: not waited for.
        """

    def set_learning_rate(self, rate: float) -> None:
        """That of the next steps."""

    def state_dict(self) -> dict[str, Any]:
        """Copies of all that decides later steps on this rank, but for torch's random state. Collective."""

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Takes over, in place, what `state_dict` gave on this rank, maybe in another process. Collective."""

    def prepare_split(self, recorder: PhaseRecorder) -> bool:
        """Gets ready for steps whose phases are marked; there is no way back. Collective.

        Args:
            recorder: the one that gives such steps their marks.

        Returns:
            False where phases cannot be told apart here.
        """

    def check(self) -> None:
        """Raises what went wrong on the device, such as a gradient that is not a number; waits for it.

        To be called outside of measured windows; see `AggregatorState.check`.
        """

    @property
    def settle_split(self) -> bool:
        """Whether the marks of a split step are lost unless they are taken before the next."""


class EagerStep:
    """A step on one rank. Collective to make and to call.

    Args:
        replica: this rank's model.
        aggregator: how gradients are brought together.
        settings: of the optimizer.
        group: the ranks that train together.
        capturable: the step is to be captured in a CUDA graph.
    """

    settle_split = False

    def __init__(
        self,
        replica: FlatReplica,
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

    def set_learning_rate(self, rate: float) -> None:
        """See `Step`."""
        self._update.set_learning_rate(rate)

    def prepare_split(self, recorder: PhaseRecorder) -> bool:
        """Every phase can be marked as it is."""
        return True

    def check(self) -> None:
        """See `Step`."""
        self._state.check()

    def __call__(self, inputs: Tensor, targets: Tensor, marks: Marks = UNMARKED) -> Tensor:
        """Forward, backward, aggregation, update; see `Step`."""
        with marks.phase("forward"):
            loss = self.replica.forward(inputs, targets)
        with marks.phase("backward"):
            self.replica.backward(loss)
        with torch.no_grad():
            mean = self._aggregator.aggregate(self._state, self.replica.gradient, marks.phase)
            self._update.apply(mean, marks.phase)
        return loss.detach()

"""What a training step is, and the eager one: forward, backward, then aggregation, then the update.

In the eager step nothing overlaps, as in the systems that the strategies come from, so every phase can be
timed on its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from scaling.aggregators.base import Aggregator, AggregatorState, PhaseMarker
from scaling.errors import CheckpointError
from scaling.measure.phases import UNMARKED, Marks, PhaseRecorder
from scaling.process_group import Group
from scaling.training.dtypes import require_dtypes
from scaling.training.exchanges import Record, aggregate
from scaling.training.replica import FlatBucket, FlatReplica, Replica
from scaling.training.update import SgdSettings, Update, update_at


class Step(Protocol):
    """One way to take a training step on one rank.

    Attributes:
        record: takes what goes into every exchange and comes out; None, as in every measured step: nothing is
            recorded.
    """

    record: Record | None

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
            False where phases cannot be distinguished here.
        """

    def check(self) -> None:
        """Raises what went wrong on the device, such as a gradient that is not a number; waits for it.

        To be called outside of measured windows; see `AggregatorState.check`.
        """

    @property
    def settle_split(self) -> bool:
        """Whether the marks of a profiled iteration are lost unless they are taken before the next."""


class _Part(NamedTuple):
    """The parameters of one dtype, with the aggregator's state and the update of them."""

    bucket: FlatBucket
    state: AggregatorState
    update: Update


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
        require_dtypes(replica.module, aggregator)
        self.replica, self._aggregator = replica, aggregator
        self.record: Record | None = None
        self._parts = [
            _started(bucket, aggregator, settings, group, capturable=capturable) for bucket in replica.buckets
        ]

    @property
    def notes(self) -> list[str]:
        """The dtypes where there are several, and what the aggregator decided at the start."""
        return [
            *self.replica.notes,
            *dict.fromkeys(note for part in self._parts for note in part.state.notes),
        ]

    def state_dict(self) -> dict[str, Any]:
        """Copies of all that decides later steps on this rank."""
        module = {name: value.detach().clone() for name, value in self.replica.module.state_dict().items()}
        states = by_bucket([part.state.state_dict() for part in self._parts])
        return {
            "module": module,
            "aggregator": states,
            "update": by_bucket([part.update.state_dict() for part in self._parts]),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Takes over, in place, what `state_dict` gave."""
        num_buckets = len(self._parts)
        states, updates = (of_buckets(state[key], num_buckets) for key in ("aggregator", "update"))
        self.replica.module.load_state_dict(state["module"])
        for part, aggregated, updated in zip(self._parts, states, updates, strict=True):
            part.state.load_state_dict(aggregated)
            part.update.load_state_dict(updated)

    def set_learning_rate(self, rate: float) -> None:
        """See `Step`."""
        for part in self._parts:
            part.update.set_learning_rate(rate)

    def prepare_split(self, recorder: PhaseRecorder) -> bool:
        """Every phase can be marked as it is."""
        return True

    def check(self) -> None:
        """See `Step`."""
        for part in self._parts:
            part.state.check()

    def __call__(self, inputs: Tensor, targets: Tensor, marks: Marks = UNMARKED) -> Tensor:
        """Forward, backward, aggregation, update; see `Step`."""
        with marks.phase("forward"):
            loss = self.replica.forward(inputs, targets)
        with marks.phase("backward"):
            self.replica.backward(loss)
        for part in self._parts:
            self._bring_together(part, marks.phase)
        return loss.detach()

    @torch.no_grad()
    def _bring_together(self, part: _Part, phase: PhaseMarker) -> None:
        """The mean of a bucket's gradients, and its update."""
        mean = aggregate(self._aggregator, part.state, part.bucket.gradient, phase, self.record)
        part.update.apply(mean, phase)


def _started(
    bucket: FlatBucket, aggregator: Aggregator[Any], settings: SgdSettings, group: Group, *, capturable: bool
) -> _Part:
    """A bucket with its aggregator's state and its update; in the state's own buffers, if it has any."""
    flat = bucket.parameters
    state = aggregator.start(bucket.layout, group, flat.dtype, flat.device)
    if state.gradient_buffer is not None:
        bucket.place_gradient(state.gradient_buffer)
    if state.parameter_buffer is not None:
        bucket.place_parameters(state.parameter_buffer)
    return _Part(bucket, state, update_at(bucket, settings, aggregator, state, capturable=capturable))


def by_bucket(saved: Sequence[dict[str, Tensor]]) -> dict[str, Any]:
    """What the buckets save, by their number; of one bucket as it is."""
    if len(saved) == 1:
        return saved[0]
    return {str(number): state for number, state in enumerate(saved)}


def of_buckets(saved: dict[str, Any], num_buckets: int) -> list[dict[str, Tensor]]:
    """What `by_bucket` was given.

    Raises:
        CheckpointError: it was given another number of buckets.
    """
    numbers = [str(number) for number in range(num_buckets)]
    is_nested = any(isinstance(value, dict) for value in saved.values())
    if is_nested != (num_buckets > 1) or (is_nested and set(saved) != set(numbers)):
        raise CheckpointError(
            f"the saved state is of a model whose parameters have another number of dtypes than "
            f"{num_buckets}; continue with the model that it was saved with, or begin anew"
        )
    return [saved[number] for number in numbers] if is_nested else [saved]

"""Local updates: every rank takes steps of its own, and the ranks' models are brought together every H steps.

The aggregator makes the mean of what the ranks have moved by, the outer gradient; the outer update
(`scaling.training.outer_updates`) is taken at its update site, on a copy of the model at the block's start.
Copy and outer gradient take as much memory as the model twice. Statistics of batch normalisation stay each
rank's own.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from scaling.aggregators.base import Aggregator, PhaseMarker, unmarked
from scaling.aggregators.native import NoExchange
from scaling.errors import CheckpointError
from scaling.measure.phases import UNMARKED, Marks, PhaseRecorder
from scaling.process_group import Group
from scaling.training.compute import FLOAT32
from scaling.training.exchanges import aggregate
from scaling.training.gradients import AS_THEY_ARE, GradientSettings, GradientTreatment
from scaling.training.optimizers import OptimizerSettings
from scaling.training.outer_updates import OuterUpdate
from scaling.training.replica import FlatBucket, FlatReplica
from scaling.training.step import EagerStep, StepPart, TrainingStep, by_bucket, of_buckets, started

CHECKED_STEPS = 4  # of a block that is checked, at most: what is checked is its end


class LocalStep(TrainingStep):
    """A step every `sync_every`-th of which ends a block. `settings`: of the ranks' own optimizers;
    `gradients`: clipped is each rank's own, and `wire` is that of the outer gradient."""

    replica: FlatReplica

    def __init__(
        self,
        replica: FlatReplica,
        aggregator: Aggregator[Any],
        settings: OptimizerSettings,
        group: Group,
        gradients: GradientSettings = AS_THEY_ARE,
        *,
        sync_every: int,
        outer: OuterUpdate,
    ) -> None:
        own = GradientSettings(None, gradients.clip_norm, gradients.clip_gradient)
        self._own = EagerStep(replica, NoExchange(), settings, group, own)
        self.replica, self.sync_every, self.outer = replica, sync_every, outer
        self.treatment = self._own.treatment
        self._wire, self._count = gradients.wire, 0
        chosen = (aggregator, outer.settings, group, gradients.wire)
        self._parts: list[StepPart] = [
            started(FlatBucket(bucket.layout, copies), *chosen, capturable=False, skippable=False)
            for bucket in replica.buckets
            for copies in [[nn.Parameter(p.detach().clone()) for p in bucket.trainable]]
        ]

    @property
    def notes(self) -> list[str]:
        return [*self._own.notes, *super().notes[len(self.replica.notes) :]]

    @property
    def optimizer_state_bytes(self) -> int:
        return self._own.optimizer_state_bytes + super().optimizer_state_bytes

    def factors(self) -> dict[str, Tensor] | None:
        return self._own.factors()

    def set_learning_rate(self, rate: float) -> None:
        self._own.set_learning_rate(rate)

    def __call__(self, inputs: Tensor, targets: Tensor, marks: Marks = UNMARKED) -> Tensor:
        loss = self._own(inputs, targets, marks)
        self._count += 1
        if self._count == self.sync_every:
            self.end_block(marks.phase)
        return loss

    @torch.no_grad()
    def end_block(self, phase: PhaseMarker = unmarked) -> None:
        """Brings the models together, unless no step was taken since they were. Collective."""
        if not self._count:
            return
        self._count = 0
        for bucket, part in zip(self.replica.buckets, self._parts, strict=True):
            with phase("encode"):
                torch.sub(part.bucket.parameters, bucket.parameters, out=part.bucket.gradient)
            mean = aggregate(
                part.aggregator, part.state, part.bucket.gradient, phase, self.record, self._wire
            )
            part.update.apply(mean, phase)
            with phase("decode"):
                bucket.parameters.copy_(part.bucket.parameters)
        if self.outer.resets_optimizer:
            self._own.reset_optimizer()

    def state_dict(self) -> dict[str, Any]:
        """`update` is the outer one's, `own` this rank's. CheckpointError: inside a block, where replicas
        differ."""
        if self._count:
            raise CheckpointError("a block of local updates is not ended; save after `end_block`")
        own = self._own.state_dict()
        return {
            "module": own["module"],
            "aggregator": by_bucket([part.state.state_dict() for part in self._parts]),
            "update": by_bucket([part.update.state_dict() for part in self._parts]),
            "own": {"update": own["update"], "scale": own["scale"]},
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        num_buckets = len(self._parts)
        own = {"module": state["module"], "aggregator": self._own.state_dict()["aggregator"], **state["own"]}
        self._own.load_state_dict(own)
        self._count = 0
        states, updates = (of_buckets(state[key], num_buckets) for key in ("aggregator", "update"))
        parts = zip(self.replica.buckets, self._parts, states, updates, strict=True)
        for bucket, part, aggregated, updated in parts:
            part.bucket.parameters.copy_(bucket.parameters)
            part.state.load_state_dict(aggregated)
            part.update.load_state_dict(updated)


def end_block(step: TrainingStep) -> None:
    if isinstance(step, LocalStep):
        step.end_block()


class OneBlock(LocalStep):
    """A few local steps, then the block's end, for checks. Between blocks it shares all that `step` holds."""

    def __init__(self, step: LocalStep) -> None:
        self.__dict__ = step.__dict__

    @property
    def treatment(self) -> GradientTreatment:  # type: ignore[override]
        return GradientTreatment(AS_THEY_ARE, FLOAT32, self.replica.trainable[0].device)

    def set_learning_rate(self, rate: float) -> None:
        """That of the outer update is fixed."""

    def prepare_profiled(self, recorder: PhaseRecorder) -> bool:
        return False

    def __call__(self, inputs: Tensor, targets: Tensor, marks: Marks = UNMARKED) -> Tensor:
        for _ in range(min(self.sync_every, CHECKED_STEPS)):
            loss = super().__call__(inputs, targets, marks)
        self.end_block(marks.phase)
        return loss

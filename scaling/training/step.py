"""What a training step is, and the eager one, in which nothing overlaps and every phase can be timed."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from scaling.aggregators.base import HOST_SITES, Aggregator, PhaseMarker, UpdateSite
from scaling.aggregators.state import AggregatorState
from scaling.bucket import BucketLayout
from scaling.errors import CheckpointError, StudyError
from scaling.measure.phases import UNMARKED, Marks, PhaseRecorder
from scaling.process_group import Group
from scaling.training.exchanges import Record, aggregate, start_exchanges
from scaling.training.gradients import AS_THEY_ARE, GradientSettings, GradientTreatment
from scaling.training.optimizers import OptimizerSettings
from scaling.training.replica import FlatBucket, FlatReplica, Replica, local, require_dtypes, take_passes
from scaling.training.update import OwnedUpdate, SiteUpdate, update_at


class TrainingStep(ABC):
    """Collective to make. `record`: takes what goes into every exchange and comes out; None in measured
    steps; `settle_profiled`: the marks of a profiled iteration are lost unless they are taken before the
    next; `_parts`: what is exchanged and updated on its own, each with its `state` and `update`."""

    replica: Replica
    treatment: GradientTreatment
    record: Record | None = None
    settle_profiled = False
    _parts: Sequence[Any] = ()

    @property
    def optimizer_state_bytes(self) -> int:
        """What the optimizer keeps on this rank, on its device or in host memory."""
        return sum(part.update.state_bytes for part in self._parts)

    @property
    def notes(self) -> list[str]:
        noted = dict.fromkeys(note for part in self._parts for note in part.state.notes)
        return [*self.replica.notes, *noted]

    @abstractmethod
    def __call__(self, inputs: Tensor, targets: Tensor, marks: Marks = UNMARKED) -> Tensor:
        """Updates once; gives the local loss before it, detached, on the device: not waited for. Collective.
        `inputs`: [local_batch, ...] on the replica's device; `targets`: [local_batch] int64 (or [local_batch,
        ...])."""

    def set_learning_rate(self, rate: float) -> None:
        """That of the next steps."""
        for part in self._parts:
            part.update.set_learning_rate(rate)

    def factors(self) -> dict[str, Tensor] | None:
        """Parameter -> by what Adam multiplies its mean gradient, zeros where this rank does not step it;
        None of other optimizers."""
        return None

    @abstractmethod
    def state_dict(self) -> dict[str, Any]:
        """Copies of all that decides later steps on this rank, but for torch's random state. Collective."""

    def _saved(self, aggregator: dict[str, Any], update: dict[str, Any]) -> dict[str, Any]:
        """A state with these parts; of shards of the model this rank's."""
        tensors = self.replica.module.state_dict()
        module = {name: local(values.detach()).clone() for name, values in tensors.items()}
        scale = self.treatment.state_dict()
        return {"module": module, "aggregator": aggregator, "update": update, "scale": scale}

    @abstractmethod
    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Takes over, in place, what `state_dict` gave on this rank, maybe in another process. Collective."""

    def prepare_profiled(self, recorder: PhaseRecorder) -> bool:
        """For steps with marked phases, for good. Collective. False where there can be none."""
        return True

    def check(self) -> None:
        """Raises what went wrong on the device; waits for it, so outside of measured windows."""
        for part in self._parts:
            part.state.check()


class StepPart(NamedTuple):
    bucket: FlatBucket
    aggregator: Aggregator[Any]
    state: AggregatorState
    update: SiteUpdate


class EagerStep(TrainingStep):
    replica: FlatReplica
    _parts: list[StepPart]

    def __init__(
        self,
        replica: FlatReplica,
        aggregator: Aggregator[Any],
        settings: OptimizerSettings,
        group: Group,
        gradients: GradientSettings = AS_THEY_ARE,
        *,
        capturable: bool = False,
    ) -> None:
        require_dtypes(replica.module, aggregator)
        self.replica, self._aggregator, self._wire = replica, aggregator, gradients.wire
        skippable = replica.compute.scales_loss
        chosen = (settings, group, gradients.wire)
        self._parts = [
            started(bucket, of_bucket, *chosen, capturable=capturable, skippable=skippable)
            for bucket, of_bucket in zip(replica.buckets, self._aggregators(group.world_size), strict=True)
        ]
        site = _common_site(aggregator, {part.update.site for part in self._parts}, gradients)
        device = torch.device("cpu") if site in HOST_SITES else replica.trainable[0].device
        self.treatment = GradientTreatment(gradients, replica.compute, device)
        self._add_up = sum_over_owners(group, site)
        if self.treatment.found_inf is not None:
            for part in self._parts:
                part.update.skip_where(self.treatment.found_inf)

    def _aggregators(self, world_size: int) -> list[Aggregator[Any]]:
        return [self._aggregator] * len(self.replica.buckets)

    def state_dict(self) -> dict[str, Any]:
        states = by_bucket([part.state.state_dict() for part in self._parts])
        return self._saved(states, by_bucket([part.update.state_dict() for part in self._parts]))

    def load_state_dict(self, state: dict[str, Any]) -> None:
        num_buckets = len(self._parts)
        states, updates = (of_buckets(state[key], num_buckets) for key in ("aggregator", "update"))
        self.replica.module.load_state_dict(state["module"])
        for part, aggregated, updated in zip(self._parts, states, updates, strict=True):
            part.state.load_state_dict(aggregated)
            part.update.load_state_dict(updated)
        self.treatment.load_state_dict(state.get("scale", {}))

    def factors(self) -> dict[str, Tensor] | None:
        return factors_of((part.bucket, part.update) for part in self._parts)

    def reset_optimizer(self) -> None:
        for part in self._parts:
            part.update.load_state_dict({})

    def __call__(self, inputs: Tensor, targets: Tensor, marks: Marks = UNMARKED) -> Tensor:
        loss = take_passes(self.replica, inputs, targets, marks, self.treatment.scaled)
        self._bring_together(marks.phase)
        return loss

    @torch.no_grad()
    def _bring_together(self, phase: PhaseMarker) -> None:
        self.treatment.before_exchange([part.bucket.gradient for part in self._parts], phase)
        means = [
            aggregate(part.aggregator, part.state, part.bucket.gradient, phase, self.record, self._wire)
            for part in self._parts
        ]
        self._update_all(means, phase)

    def _update_all(self, means: Sequence[Tensor | None], phase: PhaseMarker) -> None:
        if self.treatment.waits_for_all:
            owned = [
                values
                for part, mean in zip(self._parts, means, strict=True)
                for values in part.update.parts(mean)
            ]
            self.treatment.before_update(owned, phase, self._add_up)
        for part, mean in zip(self._parts, means, strict=True):
            part.update.apply(mean, phase)


def _common_site(
    aggregator: Aggregator[Any], sites: set[UpdateSite], gradients: GradientSettings
) -> UpdateSite:
    """Where the parameters are stepped; the norm of a mean gradient needs one place for all of them."""
    if len(sites) > 1 and gradients.clip_norm is not None:
        raise StudyError(
            f"clip_norm: aggregator {aggregator.label()!r} takes the optimizer step of this model at several "
            f"places ({', '.join(sorted(sites))}), so that none has the whole mean gradient; use another "
            "aggregator, such as all_reduce"
        )
    return sites.pop()


def sum_over_owners(group: Group, site: UpdateSite) -> Callable[[Tensor], None] | None:
    """Adds up what each rank has of the elements that it owns; None where a rank that steps owns them all."""
    if group.world_size == 1 or site not in ("owner", "host_parallel"):
        return None
    return group.all_reduce_host if site == "host_parallel" else group.all_reduce


def started(
    bucket: FlatBucket,
    aggregator: Aggregator[Any],
    settings: OptimizerSettings,
    group: Group,
    wire: torch.dtype | None,
    **how: bool,
) -> StepPart:
    """In the state's own buffers, if it has any. `how`: as of `OptimizerSettings.optimizer`."""
    state = start_exchanges(aggregator, bucket.layout, group, bucket.parameters, wire)
    buffer = state.gradient_buffer
    if buffer is not None and buffer.dtype == bucket.parameters.dtype:
        bucket.place_gradient(buffer)
    if state.parameter_buffer is not None:
        bucket.place_parameters(state.parameter_buffer)
    return StepPart(bucket, aggregator, state, update_at(bucket, settings, aggregator, state, **how))


def factors_of(updates: Iterable[tuple[FlatBucket, OwnedUpdate]]) -> dict[str, Tensor] | None:
    """As `TrainingStep.factors`, of the updates of some elements of these buckets."""
    flats: dict[BucketLayout, Tensor] = {}
    for bucket, update in updates:
        if (factors := update.factors()) is None:
            return None
        flat = flats.setdefault(bucket.layout, torch.zeros_like(bucket.parameters, dtype=torch.float32))
        for place, values in factors.items():
            flat[slice(*map(int, place.split(":")))] = values
    return {
        name: values
        for layout, flat in flats.items()
        for name, values in zip(layout.names, layout.views(flat), strict=True)
    }


def by_bucket(saved: Sequence[dict[str, Tensor]]) -> dict[str, Any]:
    if len(saved) == 1:
        return saved[0]
    return {str(number): state for number, state in enumerate(saved)}


def of_buckets(saved: dict[str, Any], num_buckets: int) -> list[dict[str, Tensor]]:
    """What `by_bucket` was given. CheckpointError: it was given another number of buckets."""
    numbers = [str(number) for number in range(num_buckets)]
    is_nested = any(isinstance(value, dict) for value in saved.values())
    if is_nested != (num_buckets > 1) or (is_nested and set(saved) != set(numbers)):
        raise CheckpointError(
            f"the saved state is of a model whose parameters have another number of dtypes than "
            f"{num_buckets}; continue with the model that it was saved with, or begin anew"
        )
    return [saved[number] for number in numbers] if is_nested else [saved]

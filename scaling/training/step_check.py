"""Checks a run's own steps: what its aggregator delivers, what the update makes of it, and the replicas.

Some steps from a saved state, the optimizer's at zero, are compared as `scaling.training.exchange_check` and
`scaling.training.update_check` say; a captured step without its graph, then with a replay of the graph. All
states are put back, outside what is measured. Control arms, which exchange nothing, are exempt.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from scaling.aggregators.base import Aggregator
from scaling.errors import ExchangeError
from scaling.process_group import Group
from scaling.training.captured import CapturedStep
from scaling.training.exchange_check import (
    COARSE,
    ROUNDING,
    Law,
    deviation,
    exact_mean,
    law_of,
    place,
    require_equal,
    shared_tensors,
)
from scaling.training.exchanges import BucketExchange, Record
from scaling.training.optimizers import AdamSettings, OptimizerSettings
from scaling.training.replica import FlatReplica
from scaling.training.step import TrainingStep, of_buckets
from scaling.training.update_check import TITLES, Delivered, Moments, adam_problem, sgd_problem, worst_update

FIRST_STEPS = 10
LATER_STEPS = 2
MAX_SECONDS = 2.0  # no further step is checked once so many are over; one always is
NAMED = 3  # gradients, where many are to be named
COPIES = 9  # of the parameters, that a check keeps at most

Batch = tuple[Tensor, Tensor]

HINTS: dict[Law, str] = {
    "exact mean": "if it is meant to be lossy, set `lossy = True` in its class",
    "residuals": "mend the codec or the aggregator's `total_residual`, which is None without error feedback",
    "error bound": "mend the codec or the aggregator's `error_bound`",
}
ASKED: dict[Law, str] = {
    "exact mean": "the exact mean is",
    "residuals": "with its residuals the gradients ask for",
    "error bound": "the exact mean, which its error bound does not reach, is",
}


@dataclass
class StepCheckResult:
    """`coarse`: parameters whose gradients vary too much; `largest_error_ratio`: to what is allowed."""

    laws: set[Law] = field(default_factory=set)
    unchecked: set[str] = field(default_factory=set)
    coarse: set[str] = field(default_factory=set)
    num_steps: int = 0
    num_exchanges: int = 0
    largest_error_ratio: float = 0.0

    def as_dict(self) -> dict[str, Any]:
        notes = [f"not checked: {why}" for why in sorted(self.unchecked)]
        if self.coarse:
            names = f"{', '.join(sorted(self.coarse)[:NAMED])}{', ...' if len(self.coarse) > NAMED else ''}"
            notes.append(f"not checked to {COARSE:.0%}: {len(self.coarse)} gradients that vary ({names})")
        return {
            "exchange": "; ".join([*sorted(self.laws), *notes]),
            "steps": self.num_steps,
            "exchanges": self.num_exchanges,
            "largest_error_ratio": self.largest_error_ratio,
        }


class StepCheck:
    def __init__(
        self, step: TrainingStep, aggregator: Aggregator[Any], settings: OptimizerSettings, ranks: Group
    ) -> None:
        self._step, self._aggregator, self._settings, self._ranks = step, aggregator, settings, ranks
        self._inner: TrainingStep = step.uncaptured if isinstance(step, CapturedStep) else step
        module = step.replica.module
        self._initial = {name: buffer.detach().clone() for name, buffer in module.named_buffers()}
        # Parameters of which a mean is not known: nor are their moments since.
        self._unknown: set[str] = set()
        self.findings = StepCheckResult()
        if not aggregator.exchanges:
            self.findings.unchecked.add("a control arm exchanges nothing")

    def replicas(self) -> None:
        """Compares the ranks' parameters, and buffers that must be the same (ExchangeError). Collective."""
        if self._aggregator.exchanges:
            with self._ranks.meter.standing_still():
                module = self._step.replica.module
                require_equal(shared_tensors(module, self._initial, self._ranks), self._ranks)

    def steps(self, batches: Sequence[Batch], max_steps: int) -> None:
        """Puts all back. Collective. ExchangeError: a wrong exchange or update, or replicas differ."""
        if not self._aggregator.exchanges:
            return
        finite = all(bool(parameter.isfinite().all()) for parameter in self._step.replica.trainable)
        if self._ranks.largest_of([float(not finite)])[0]:
            self.findings.unchecked.add("the parameters are not finite")
            return
        with self._ranks.meter.standing_still(), self._restored() as begin:
            if not self._fits():
                self.findings.unchecked.add("not enough memory on the device for its copies")
                return
            began = time.monotonic()
            moments: dict[str, Moments] = {}
            self._unknown.clear()
            for number in range(max_steps):
                self._check_one(batches[number % len(batches)], moments)
                if self._ranks.largest_of([time.monotonic() - began])[0] > MAX_SECONDS:
                    break
            self.replicas()
            moments.clear()
            if self._inner is not self._step:
                self._check_graph(batches[0], begin)

    @contextmanager
    def _restored(self) -> Iterator[dict[str, Any]]:
        """Gives the begin, an optimizer at zero. Not after a failure: other ranks may wait elsewhere."""
        module, saved = self._step.replica.module, self._step.state_dict()
        buffers = {name: buffer.detach().clone() for name, buffer in module.named_buffers()}
        begin = {**saved, "update": _zeros(saved["update"])}
        devices = {parameter.device for parameter in self._step.replica.trainable if parameter.is_cuda}
        python, numpy = random.getstate(), np.random.get_state()  # what a user's model may draw from
        self._step.set_learning_rate(self._settings.learning_rate)
        self._step.load_state_dict(begin)
        with torch.random.fork_rng(list(devices)):
            yield begin
        random.setstate(python)
        np.random.set_state(numpy)
        self._step.load_state_dict(saved)
        for name, buffer in module.named_buffers():
            if name in buffers:
                buffer.copy_(buffers[name])

    def _fits(self) -> bool:
        """Whether half of the device's free memory holds the copies; the other half is left to the step."""
        parameters = self._step.replica.trainable
        device = parameters[0].device
        missing = 0.0
        if device.type == "cuda":
            free, _ = torch.cuda.mem_get_info(device)
            free += torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
            missing = COPIES * sum(parameter.nbytes for parameter in parameters) - free / 2
        return self._ranks.largest_of([missing])[0] <= 0

    def _check_one(self, batch: Batch, moments: dict[str, Moments]) -> None:
        before = {name: tensor.detach().clone() for name, tensor in self._named().items()}
        record: Record = []
        factor = self._inner.treatment.expected_factor()
        self._inner.record = record
        try:
            self._inner(*batch)
        finally:
            self._inner.record = None
        self._inner.check()
        if not record:
            self.findings.unchecked.add("the library hides its exchange, and gradients vary")
        delivered: dict[str, Delivered] = {}
        for exchange in record:
            delivered |= self._check_exchange(exchange)
        found_inf = self._inner.treatment.found_inf
        if found_inf is None or not bool(found_inf):  # else the step has changed nothing
            unknown = set(self._named()) - set(delivered)
            if unknown and self._inner.treatment.waits_for_all:
                unknown = set(self._named())  # the norm of all is not known
            self._unknown |= unknown
        delivered = self._treated(delivered, factor)
        self._raise_of_any(self._update_problem(before, delivered, moments))
        self.findings.num_steps += 1

    def _treated(self, delivered: dict[str, Delivered], factor: float) -> dict[str, Delivered]:
        """The means as the update has them; none where they are not finite, or cannot be clipped."""
        if not all(bool(delivery.mean.isfinite().all()) for delivery in delivered.values()):
            return {}
        if not self._inner.treatment.waits_for_all:
            return delivered
        if set(delivered) != set(self._named()):
            return {}
        square = sum(float((one.mean.double() * factor).square().sum()) for one in delivered.values())
        factor *= self._inner.treatment.clip_factor(square)
        return {
            name: Delivered(delivery.mean.double() * factor, delivery.rounding * factor)
            for name, delivery in delivered.items()
        }

    def _named(self) -> dict[str, Tensor]:
        replica = self._step.replica
        return dict(zip(replica.layout.names, replica.full_parameters(), strict=True))

    def _check_exchange(self, exchange: BucketExchange) -> dict[str, Delivered]:
        """Compares one exchange; gives what it delivered by parameter, where that is known."""
        law = law_of(self._aggregator, exchange, self._ranks.world_size)
        if law is None:
            self.findings.unchecked.add("lossy, without residuals or an error bound")
        else:
            worst = deviation(self._aggregator, exchange, law, self._ranks)
            if worst is None:
                self.findings.unchecked.add("a gradient is not finite")
                return {}
            problem = None
            if worst.ratio > 1:
                times = f", {worst.given / worst.expected:.4g} times it" if worst.expected else ""
                problem = (
                    f"{place(exchange.layout, worst.element)} is {worst.given:.6g}{times}, where "
                    f"{ASKED[law]} {worst.expected:.6g}"
                )
            self._raise_of_any(problem and f"what it delivers breaks its law: {problem}; {HINTS[law]}")
            self.findings.laws.add(law)
            self.findings.coarse.update(worst.coarse)
            self.findings.num_exchanges += 1
            worst_ratio = self._ranks.largest_of([worst.ratio])[0]
            self.findings.largest_error_ratio = max(self.findings.largest_error_ratio, worst_ratio)
        return self._delivered(exchange)

    def _delivered(self, exchange: BucketExchange) -> dict[str, Delivered]:
        """The mean by parameter: this rank's own, and elsewhere the exact one, which owners have rounded."""
        mean, rounding = exchange.mean, 0.0
        if self._aggregator.site(exchange.layout) != "replica":
            if self._aggregator.lossy:
                return {}
            contribution, mean = mean, exact_mean(exchange.contribution, self._ranks)
            for start, stop in exchange.owned:
                assert contribution is not None, "a rank that owns elements has their mean"
                mean[start:stop] = contribution[start:stop]
            values = exchange.contribution
            largest = self._ranks.largest_of([float(values.abs().max()) if values.numel() else 0.0])[0]
            rounding = (
                ROUNDING[values.dtype] * torch.finfo(values.dtype).eps * largest * self._ranks.world_size
            )
        assert mean is not None, "every replica takes the step"
        named = self._named()
        views = zip(exchange.layout.names, exchange.layout.views(mean), strict=True)
        return {
            # A part of DDP's buckets is in the parameter's order in memory.
            name: Delivered(
                view
                if exchange.repeats or named[name].is_contiguous()
                else view.as_strided(named[name].shape, named[name].stride()),
                rounding,
            )
            for name, view in views
        }

    def _update_problem(
        self, before: dict[str, Tensor], delivered: dict[str, Delivered], moments: dict[str, Moments]
    ) -> str | None:
        """The first parameter that is not what the optimizer makes of the mean; `moments` go on."""
        problem = None
        for name, parameter in self._named().items():
            if name not in delivered or name in self._unknown:
                continue
            mean, old = delivered[name], before[name]
            if name not in moments:
                moments[name] = Moments.zero(self._settings, old)
            # A captured step reads its learning rate from a tensor of 32 bits.
            rate_eps = torch.finfo(torch.float32).eps if isinstance(self._step, CapturedStep) else 0.0
            worst = worst_update(self._settings, parameter.detach(), old, mean, moments[name], rate_eps)
            if worst is not None and problem is None:
                title = TITLES[self._settings.name]
                problem = (
                    f"the update is not {title}'s: element {worst[0]} of {name} is {worst[1]:.9g} after the "
                    f"step, {title} with the delivered mean gives {worst[2]:.9g}"
                )
        return problem

    def _check_graph(self, batch: Batch, begin: dict[str, Any]) -> None:
        replica, settings = self._step.replica, self._settings
        assert isinstance(replica, FlatReplica), "what is captured works on flat parameters"
        self._step.load_state_dict(begin)
        start = [bucket.parameters.clone() for bucket in replica.buckets]
        parameters: list[list[Tensor]] = []
        states: list[list[dict[str, Tensor]]] = []
        random_state = torch.cuda.get_rng_state()
        for step in (self._inner, self._inner, self._step):
            self._step.load_state_dict(begin)
            torch.cuda.set_rng_state(random_state)
            step(*batch)
            if isinstance(settings, AdamSettings):
                states.append(of_buckets(self._step.state_dict()["update"], len(start)))
            else:
                parameters.append([parameter.detach().clone() for parameter in replica.trainable])
        if isinstance(settings, AdamSettings):
            lossy = self._aggregator.lossy
            problems = [
                adam_problem(settings, bucket.layout, flat, bucket.parameters, of_bucket, lossy=lossy)
                for bucket, flat, *of_bucket in zip(replica.buckets, start, *states, strict=True)
            ]
            self._raise_of_any(next(filter(None, problems), None))
            self.replicas()  # also where another rank has the state
            self._step.load_state_dict(begin)
        else:
            self._step.load_state_dict(begin)
            self._raise_of_any(sgd_problem(replica.layout.names, replica.trainable, parameters))

    def _raise_of_any(self, problem: str | None) -> None:
        """Raises on every rank what one of them has found; that of the last one that has. Collective."""
        rank = int(self._ranks.largest_of([-1.0 if problem is None else float(self._ranks.rank)])[0])
        if rank < 0:
            return
        cls = type(self._aggregator)
        raise ExchangeError(
            f"aggregator {self._aggregator.label()} ({cls.__module__}:{cls.__qualname__}), checked step "
            f"{self.findings.num_steps + 1}, rank {rank}: {self._ranks.share(problem, rank)}"
        )


def _zeros(saved: Any) -> Any:
    if isinstance(saved, Tensor):
        return torch.zeros_like(saved)
    return {name: _zeros(value) for name, value in saved.items()}

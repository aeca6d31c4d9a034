"""Exchanges of buckets, cast for the wire if so chosen; records of what went in and what came out."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from scaling.aggregators.base import Aggregator, PhaseMarker
from scaling.aggregators.state import AggregatorState
from scaling.bucket import BucketLayout, Span
from scaling.process_group import Group


@dataclass(frozen=True)
class RepeatDifferences:
    """Of the same gradient computed again: `eps` of its precision; `apart`: of each tensor, the largest
    difference."""

    eps: float
    apart: tuple[float, ...]


@dataclass(frozen=True)
class BucketExchange:
    """On this rank; tensors are copies, [num_elements]. `contribution`: what goes into it; `mean`: of use in
    the owned elements; None where there are none; `repeats`: of a gradient computed a second time."""

    layout: BucketLayout
    contribution: Tensor
    mean: Tensor | None
    owned: list[Span]
    old_residual: Tensor | None = None
    new_residual: Tensor | None = None
    repeats: RepeatDifferences | None = None


Record = list[BucketExchange]

COMPUTATIONS = 3
REPEATED_ROUNDING = 1e-4
"""As a ratio to the gradient's largest element: what rounding may do; in 16 bits the precision's epsilon."""


def aggregate(
    aggregator: Aggregator[Any],
    state: AggregatorState,
    gradient: Tensor,
    phase: PhaseMarker,
    record: Record | None,
    wire: torch.dtype | None = None,
) -> Tensor | None:
    """With a record, what went in and came out is added to it. `wire`: the dtype of the messages."""
    if wire is None or wire == gradient.dtype or state.group.world_size == 1:
        return recorded(
            aggregator, state, gradient, record, lambda: aggregator.aggregate(state, gradient, phase)
        )
    with phase("encode"):
        narrow = gradient.to(wire)
    mean = recorded(aggregator, state, narrow, record, lambda: aggregator.aggregate(state, narrow, phase))
    if mean is None:
        return None
    with phase("decode"):
        return mean.to(gradient.dtype)


def start_exchanges(
    aggregator: Aggregator[Any],
    layout: BucketLayout,
    group: Group,
    parameters: Tensor,
    wire: torch.dtype | None = None,
) -> AggregatorState:
    alone = group.world_size == 1  # nothing is cast then
    dtype = parameters.dtype if wire is None or alone else wire
    return aggregator.start(layout, group, dtype, parameters.device)


def recorded(
    aggregator: Aggregator[Any],
    state: AggregatorState,
    gradient: Tensor,
    record: Record | None,
    exchange: Callable[[], Tensor | None],
) -> Tensor | None:
    if record is None:
        return exchange()
    contribution = aggregator.contribution(state, gradient).clone()
    old = _copied(state.withheld())
    mean = exchange()
    owned = aggregator.owned(state)
    new = _copied(state.withheld())
    # Strategies in host memory leave it there.
    here = None if mean is None else mean.detach().to(gradient.device, copy=True)
    record.append(BucketExchange(state.layout, contribution, here, owned, old, new))
    return mean


@dataclass(frozen=True)
class RepeatedGradients:
    """Local gradients [tensor] that were computed several times; for each by how much they differ at most."""

    gradients: list[Tensor]
    apart: list[float]


def recomputed_exchanges(
    names: Sequence[str],
    repeated: RepeatedGradients,
    means: Sequence[Tensor],
    autocast: torch.dtype | None = None,
) -> list[BucketExchange]:
    """Exchanges that a library made out of sight, one a dtype."""
    exchanges, gradients = [], repeated.gradients
    for dtype in dict.fromkeys(gradient.dtype for gradient in gradients):
        chosen = [number for number, gradient in enumerate(gradients) if gradient.dtype == dtype]
        layout = BucketLayout.of([(names[number], tuple(gradients[number].shape)) for number in chosen])
        flat = torch.cat([gradients[number].reshape(-1) for number in chosen])
        mean = torch.cat([means[number].reshape(-1) for number in chosen])
        owned = [(0, flat.numel())] if flat.numel() else []
        repeats = RepeatDifferences(
            _epsilon(dtype, autocast), tuple(repeated.apart[number] for number in chosen)
        )
        exchanges.append(BucketExchange(layout, flat, mean, owned, repeats=repeats))
    return exchanges


def repeatable_gradients(
    compute: Callable[[], Sequence[Tensor | None]],
    like: Sequence[Tensor],
    largest: Callable[[float], float],
    autocast: torch.dtype | None = None,
) -> RepeatedGradients | None:
    """This rank's gradients, if its computations differ by rounding on every rank; else None. Collective."""
    first: list[Tensor] = []
    apart, device = [0.0] * len(like), like[0].device
    for _ in range(COMPUTATIONS):
        with torch.random.fork_rng([device] if device.type == "cuda" else []):
            gradients = compute()
        computed = [filled(*pair) for pair in zip(gradients, like, strict=True)]
        first = first or computed
        apart = [max(far, _apart(*pair)) for far, *pair in zip(apart, computed, first, strict=True)]
    scale = max(float(gradient.abs().max()) for gradient in first if gradient.numel())
    same = all(
        far <= max(REPEATED_ROUNDING, _epsilon(parameter.dtype, autocast)) * scale
        for far, parameter in zip(apart, like, strict=True)
    )
    return RepeatedGradients(first, apart) if largest(float(not same)) == 0 else None


def _apart(gradient: Tensor, other: Tensor) -> float:
    """The largest difference; values that are not finite do not differ from themselves."""
    differences = (gradient - other).abs().masked_fill_(gradient == other, 0.0)
    far = float(differences.max()) if differences.numel() else 0.0
    return math.inf if math.isnan(far) else far


def _epsilon(dtype: torch.dtype, autocast: torch.dtype | None) -> float:
    return max(torch.finfo(of).eps for of in (dtype, autocast) if of is not None)


def filled(gradient: Tensor | None, parameter: Tensor) -> Tensor:
    return torch.zeros_like(parameter) if gradient is None else gradient.detach().clone()


def _copied(tensor: Tensor | None) -> Tensor | None:
    return None if tensor is None else tensor.detach().clone()

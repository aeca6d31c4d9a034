"""Compares what an aggregator delivered with what the ranks' own gradients say that it must deliver.

Three laws, of which the first that applies is checked, element by element, in float64:

- "exact mean" within the rounding of its additions; of aggregators that are not lossy.
- "residuals": n times the mean + the new residuals = the contributions + the old residuals, summed over the
  ranks; of error feedback (S. P. Karimireddy et al., ICML 2019).
- "error bound": the mean is off by no more than `Aggregator.error_bound`.

Contributions travel by broadcasts, which no aggregator uses for gradients. `require_equal` compares hashes of
each tensor: bits as integers times random odd keys, modulo 2^64, of which the highest 52 bits count; two
tensors that differ in one element collide with a probability of 2^-32 at most (J. L. Carter and M. N. Wegman,
"Universal classes of hash functions", 1979). Only where they differ the tensors travel.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, Literal

import torch
from torch import Tensor, nn

from scaling.aggregators.base import Aggregator
from scaling.bucket import BucketLayout
from scaling.errors import ExchangeError
from scaling.process_group import Group
from scaling.training.batch_norm import synchronized_statistics
from scaling.training.exchanges import BucketExchange, RepeatDifferences
from scaling.training.replica import whole

Law = Literal["exact mean", "residuals", "error bound"]

CHUNK_ELEMENTS = 2**22
ROUNDING = {torch.float64: 4.0, torch.float32: 2.0, torch.float16: 8.0, torch.bfloat16: 8.0}
"""Of a sum of gradients, in epsilons of the sum of their magnitudes: enough for any order of adding."""
RESIDUAL_ROUNDING = 16.0  # of the law of residuals, in epsilons of its largest terms
BOUND_ROUNDING = 1e-5  # of bounds, which travel as float32, as a ratio to them
RECOMPUTED_ROUNDING = 1e-3
"""As a ratio to their tensor's largest, since kernels may add in another order; in 16 bits epsilon."""
REPEATED_TIMES, OF_FEW = 2.0, 16.0
"""They may be off by so many times what computations of their tensor differ by, over the square root of the
ranks, and by the second over its number of elements: the largest difference of few says little. An epsilon of
the precision that they were computed in is allowed too."""
COARSE = 0.03
"""A tensor that may be off by more of its largest element is named: what is wrong there may stay unseen."""


@dataclass(frozen=True)
class Deviation:
    """The element that is furthest off on this rank. `ratio`: of its error to what the law allows; `coarse`:
    tensors whose gradient varies too much to be compared to `COARSE`."""

    ratio: float
    element: int = 0
    given: float = 0.0
    expected: float = 0.0
    coarse: tuple[str, ...] = ()


def law_of(aggregator: Aggregator[Any], exchange: BucketExchange, world_size: int) -> Law | None:
    if not aggregator.lossy:
        return "exact mean"
    if exchange.old_residual is not None and exchange.new_residual is not None:
        return "residuals"
    bounded = aggregator.error_bound(exchange.contribution[:0], world_size) is not None
    return "error bound" if bounded else None


def deviation(
    aggregator: Aggregator[Any], exchange: BucketExchange, law: Law, ranks: Group
) -> Deviation | None:
    """The worst element of this rank's mean; None where a contribution is not finite. Collective."""
    terms = _terms(aggregator, exchange, law, ranks.world_size)
    finite = all(bool(tensor.isfinite().all()) for tensor in terms)
    unfinite, *scales = ranks.largest_of([float(not finite), *_scales(exchange, finite)])
    if unfinite:
        return None
    slacks = _slacks(exchange, scales, ranks.world_size)
    slacks = ranks.largest_of(slacks) if slacks else []
    named = zip(exchange.layout.names, scales, slacks, strict=False)  # of both there may be none
    coarse = tuple(name for name, scale, slack in named if slack > COARSE * scale)
    worst = Deviation(0.0)
    for start in range(0, exchange.layout.num_elements, CHUNK_ELEMENTS):
        stop = min(start + CHUNK_ELEMENTS, exchange.layout.num_elements)
        expected, allowed = _expected([term[start:stop] for term in terms], law, exchange.repeats, ranks)
        if slacks:
            _widen(allowed, slacks, exchange.layout, start)
        worst_here = _worst(exchange, start, stop, expected, allowed)
        worst = worst_here if worst_here.ratio > worst.ratio else worst
    return replace(worst, coarse=coarse)


def _scales(exchange: BucketExchange, finite: bool) -> list[float]:
    """The largest element of each tensor that was computed again; of an exchange that was seen, none."""
    if exchange.repeats is None:
        return []
    views = exchange.layout.views(exchange.contribution)
    return [float(view.abs().max()) if finite and view.numel() else 0.0 for view in views]


def _slacks(exchange: BucketExchange, scales: Sequence[float], world_size: int) -> list[float]:
    """How far off each tensor's mean may be in any case: one far below the rounding of the model's largest
    gradient, such as the bias of attention's keys, may be nothing but rounding."""
    if exchange.repeats is None:
        return []
    times = REPEATED_TIMES / math.sqrt(world_size)
    tensors = zip(scales, exchange.repeats.apart, exchange.layout.shapes, strict=True)
    noise = exchange.repeats.eps / 16 * max(scales, default=0.0)
    rounding = max(RECOMPUTED_ROUNDING, exchange.repeats.eps)
    return [
        (scale if scale < noise else rounding * scale) + (times + OF_FEW / max(math.prod(shape), 1)) * apart
        for scale, apart, shape in tensors
    ]


def _widen(allowed: Tensor, slacks: Sequence[float], layout: BucketLayout, start: int) -> None:
    """Allows the elements from `start`, in place, at least their tensor's."""
    stop = start + allowed.numel()
    for slack, shape, offset in zip(slacks, layout.shapes, layout.offsets, strict=True):
        low, high = max(offset, start), min(offset + math.prod(shape), stop)
        if low < high:
            allowed[low - start : high - start].clamp_(min=slack)


def exact_mean(contribution: Tensor, ranks: Group) -> Tensor:
    """[num_elements] the float64 mean of all ranks' contributions, rounded to their type. Collective."""
    mean = torch.empty_like(contribution)
    for start in range(0, contribution.numel(), CHUNK_ELEMENTS):
        chunk = contribution[start : start + CHUNK_ELEMENTS]
        mean[start : start + CHUNK_ELEMENTS] = _totals(chunk, ranks)[0] / ranks.world_size
    return mean


def place(layout: BucketLayout, element: int) -> str:
    """Where an element of a bucket is: `element 3 of fc1.weight`."""
    for name, shape, offset in zip(layout.names, layout.shapes, layout.offsets, strict=True):
        if offset <= element < offset + math.prod(shape):
            return f"element {element - offset} of {name}"
    raise ValueError(f"no tensor has element {element}")


def _terms(aggregator: Aggregator[Any], exchange: BucketExchange, law: Law, world_size: int) -> list[Tensor]:
    """What each rank adds to both sides of the law."""
    tensors = [exchange.contribution]
    if law == "residuals":
        assert exchange.old_residual is not None
        assert exchange.new_residual is not None
        tensors += [exchange.old_residual, exchange.new_residual]
    if law == "error bound":
        bound = aggregator.error_bound(exchange.contribution, world_size)
        assert bound is not None, "the law was chosen for it"
        tensors.append(bound.float() * (1 + BOUND_ROUNDING))
    return tensors


def _expected(
    terms: list[Tensor], law: Law, repeats: RepeatDifferences | None, ranks: Group
) -> tuple[Tensor, Tensor]:
    """The mean that a chunk of these terms asks for, and how far off it may be. Collective."""
    n, dtype = ranks.world_size, terms[0].dtype
    info, repeated_eps = torch.finfo(dtype), repeats.eps if repeats else 0.0
    sums, magnitudes = zip(*(_totals(term, ranks) for term in terms), strict=True)
    if law == "residuals":
        size = magnitudes[0] + magnitudes[1] + magnitudes[2]
        allowed = RESIDUAL_ROUNDING * _epsilon(terms[0]) * size.max() / n
        return (sums[0] + sums[1] - sums[2]) / n, allowed.expand_as(size)
    # Below the smallest normal number of 32 bits devices may round to zero; those of 16 bits do not.
    smallest = info.smallest_normal * (info.eps if info.bits == 16 else 1.0)
    rounding = (ROUNDING[dtype] * info.eps + repeated_eps / n) * magnitudes[0] + n * smallest
    return sums[0] / n, rounding + sums[1] if law == "error bound" else rounding


def _epsilon(values: Tensor) -> float:
    """Of products of such values, and of float32 residuals; TF32 keeps 10 bits."""
    tf32 = values.is_cuda and torch.backends.cuda.matmul.allow_tf32
    return max(torch.finfo(values.dtype).eps, 2.0**-10 if tf32 else torch.finfo(torch.float32).eps)


def _totals(chunk: Tensor, ranks: Group) -> tuple[Tensor, Tensor]:
    total = torch.zeros(chunk.numel(), dtype=torch.float64, device=chunk.device)
    magnitude = torch.zeros_like(total)
    for rank in range(ranks.world_size):
        values = chunk.clone() if rank == ranks.rank else torch.empty_like(chunk)
        ranks.broadcast(values, rank)
        total += values
        magnitude += values.double().abs_()
    return total, magnitude


def _worst(exchange: BucketExchange, start: int, stop: int, expected: Tensor, allowed: Tensor) -> Deviation:
    worst = Deviation(0.0)
    for first, last in exchange.owned:
        low, high = max(first, start), min(last, stop)
        if low >= high or exchange.mean is None:
            continue
        chunk = slice(low - start, high - start)
        delivered = exchange.mean[low:high].double()
        ratios = (delivered - expected[chunk]).abs() / allowed[chunk]
        ratios.masked_fill_(delivered == expected[chunk], 0.0)  # where nothing is allowed, and nothing is off
        ratios.nan_to_num_(math.inf, math.inf)
        at = int(ratios.argmax())
        if float(ratios[at]) > worst.ratio:
            worst = Deviation(float(ratios[at]), low + at, float(delivered[at]), float(expected[chunk][at]))
    return worst


DROPPED_BITS = 12  # the lowest ones, which know least; a float64, in which digests travel, holds 53 bits
BLOCK = 1 << 20  # elements that are hashed at once: their copy takes eight bytes each
BETWEEN_BLOCKS = 6364136223846793005  # odd; Knuth's multiplier of MMIX

BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
"""Bytes of an element -> an integer that holds them."""

NUM_NAMED = 3


def shared_tensors(module: nn.Module, initial: Mapping[str, Tensor], ranks: Group) -> dict[str, Tensor]:
    """The tensors that must be the same on every rank: parameters, statistics of synchronized batch
    normalisation, and buffers that training changes on no rank. Collective."""
    tensors: dict[str, Tensor] = {name: whole(tensor.detach()) for name, tensor in module.named_parameters()}
    buffers = {name: buffer.detach() for name, buffer in module.named_buffers() if name in initial}
    synchronized = synchronized_statistics(module)
    has_changed = [float(not torch.equal(initial[name], buffer)) for name, buffer in buffers.items()]
    has_changed = ranks.largest_of(has_changed) if buffers else []
    changed = {name for name, is_changed in zip(buffers, has_changed, strict=True) if is_changed}
    return tensors | {name: buffers[name] for name in buffers if name in synchronized or name not in changed}


def require_equal(tensors: Mapping[str, Tensor], ranks: Group) -> None:
    """Collective. ExchangeError: on every rank, where one differs: which, between which ranks, how far."""
    if ranks.world_size == 1 or not tensors:
        return
    devices = {tensor.device for tensor in tensors.values()}
    on_one = [_digest(tensor).to(max(devices, key=str)) for tensor in tensors.values()]
    digests = [float(digest) for digest in torch.stack(on_one).tolist()]  # one wait for the device
    extremes = ranks.largest_of([*digests, *(-digest for digest in digests)])
    largest, smallest = extremes[: len(digests)], [-negated for negated in extremes[len(digests) :]]
    names = [name for name, high, low in zip(tensors, largest, smallest, strict=True) if high != low]
    differences = [text for name in names if (text := _difference(name, tensors[name], ranks))]
    if differences:
        more = f"; {len(differences) - NUM_NAMED} more tensors differ" if len(differences) > NUM_NAMED else ""
        raise ExchangeError(
            f"the replicas have drifted apart: {'; '.join(differences[:NUM_NAMED])}{more}: the aggregator or "
            "the update gives ranks different results; `scaling verify` checks an aggregator on its own"
        )


def _digest(tensor: Tensor) -> Tensor:
    """A number of 52 bits, int64, on the tensor's device."""
    values = torch.view_as_real(tensor) if tensor.is_complex() else tensor
    bits = values.detach().contiguous().reshape(-1).view(BITS[values.element_size()])
    keys, total = _keys(tensor.device), torch.zeros((), dtype=torch.int64, device=tensor.device)
    for start in range(0, len(bits), BLOCK):
        block = bits[start : start + BLOCK]
        total = total * BETWEEN_BLOCKS + (block.to(torch.int64) * keys[: len(block)]).sum()
    return total >> DROPPED_BITS


@cache
def _keys(device: torch.device) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    drawn = torch.randint(-(2**63), 2**63 - 1, (BLOCK,), generator=generator, dtype=torch.int64)
    return (drawn | 1).to(device)


def _difference(name: str, tensor: Tensor, ranks: Group) -> str | None:
    """How a tensor differs between ranks; None where only zeros' signs or the bits of NaN do. Collective."""
    distances = []
    first = tensor
    for rank in range(ranks.world_size):
        values = tensor.contiguous().clone() if tensor.dtype != torch.bool else tensor.to(torch.uint8)
        ranks.broadcast(values, rank)
        first = values if rank == 0 else first
        apart = (values.double() - first.double()).abs()
        same = (values == first) | (values.isnan() & first.isnan())
        distances.append(float(apart.masked_fill(same, 0.0).nan_to_num(float("inf")).max()))
    off = [str(rank) for rank, distance in enumerate(distances) if distance]
    if not off:
        return None
    which = f"rank {off[0]} differs" if len(off) == 1 else f"ranks {', '.join(off)} differ"
    return f"in {name} {which} from rank 0 by up to {max(distances):.3g}"

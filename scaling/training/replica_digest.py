"""Whether all ranks have the same parameters, bit for bit.

1. Each rank hashes each tensor on its device: bits as integers times random odd keys, summed modulo 2^64
   (multilinear hashing); of the sum the highest 52 bits. Two tensors that differ in one element have the same
   one with a probability of 2^-32 at most.
2. The ranks compare the largest and the smallest hash of each tensor: one message of 16 bytes a tensor.
3. Only where they differ the tensors travel, to say which ranks differ, and how far.

Source of the hash: J. L. Carter and M. N. Wegman, "Universal classes of hash functions", Journal of Computer
and System Sciences 18 (1979).
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

import torch
from torch import Tensor, nn

from scaling.errors import ExchangeError
from scaling.training.batch_norm import synchronized_statistics
from scaling.training.exchange_check import ComparedRanks
from scaling.training.replica import whole

DROPPED_BITS = 12
"""The lowest ones, which know least; a float64, in which digests travel, holds 53 bits."""

BLOCK = 1 << 20
"""Elements that are hashed at once: their copy takes eight bytes each."""

BETWEEN_BLOCKS = 6364136223846793005
"""Odd; Knuth's multiplier of MMIX."""

BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
"""Bytes of an element -> an integer that holds them."""

NUM_NAMED = 3


def shared_tensors(
    module: nn.Module, initial: Mapping[str, Tensor], ranks: ComparedRanks
) -> dict[str, Tensor]:
    """The tensors that must be the same on every rank. Collective.

    Returns:
        Name -> tensor: parameters, statistics of synchronized batch normalisation, and buffers that training
        changes on no rank. Other statistics are each rank's own.
    """
    tensors: dict[str, Tensor] = {name: whole(tensor.detach()) for name, tensor in module.named_parameters()}
    buffers = {name: buffer.detach() for name, buffer in module.named_buffers() if name in initial}
    synchronized = synchronized_statistics(module)
    has_changed = [float(not torch.equal(initial[name], buffer)) for name, buffer in buffers.items()]
    if has_changed:
        has_changed = ranks.largest_of(has_changed)
    for (name, buffer), changed in zip(buffers.items(), has_changed, strict=True):
        if name in synchronized or not changed:
            tensors[name] = buffer
    return tensors


def require_equal(tensors: Mapping[str, Tensor], ranks: ComparedRanks) -> None:
    """Compares the ranks' tensors. Collective.

    Args:
        tensors: name -> tensor; the same names and shapes on every rank.

    Raises:
        ExchangeError: on every rank, where one differs: which, between which ranks, and how far.
    """
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


def _difference(name: str, tensor: Tensor, ranks: ComparedRanks) -> str | None:
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

"""Whether all ranks have the same parameters, bit for bit.

1. Each rank hashes each tensor (BLAKE2b, 48 bits of it) in host memory.
2. The ranks compare the largest and the smallest hash of each tensor: one message of 16 bytes a tensor.
3. Only where they differ the tensors travel, to say which ranks differ, and how far.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

import torch
from torch import Tensor, nn

from scaling.errors import ExchangeError
from scaling.training.batch_norm import synchronized_statistics
from scaling.training.exchange_check import Ranks

DIGEST_BYTES = 6
"""A float64, in which digests travel, holds 53 bits."""
NUM_NAMED = 3


def shared_tensors(module: nn.Module, initial: Mapping[str, Tensor], ranks: Ranks) -> dict[str, Tensor]:
    """The tensors that must be the same on every rank. Collective.

    Args:
        module: the model.
        initial: its buffers as they were at the start.
        ranks: that train together.

    Returns:
        Name -> tensor: parameters, statistics of synchronized batch normalisation, and buffers that training
        changes on no rank. Other statistics are each rank's own.
    """
    tensors: dict[str, Tensor] = {name: tensor.detach() for name, tensor in module.named_parameters()}
    buffers = {name: buffer.detach() for name, buffer in module.named_buffers() if name in initial}
    synchronized = synchronized_statistics(module)
    has_changed = [float(not torch.equal(initial[name], buffer)) for name, buffer in buffers.items()]
    if has_changed:
        has_changed = ranks.largest_of(has_changed)
    for (name, buffer), changed in zip(buffers.items(), has_changed, strict=True):
        if name in synchronized or not changed:
            tensors[name] = buffer
    return tensors


def require_equal(tensors: Mapping[str, Tensor], ranks: Ranks) -> None:
    """Compares the ranks' tensors. Collective.

    Args:
        tensors: name -> tensor; the same names and shapes on every rank.
        ranks: that train together.

    Raises:
        ExchangeError: on every rank, where one differs: which, between which ranks, and how far.
    """
    if ranks.world_size == 1 or not tensors:
        return
    digests = [float(_digest(tensor)) for tensor in tensors.values()]
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


def _digest(tensor: Tensor) -> int:
    values = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
    return int.from_bytes(hashlib.blake2b(values.numpy().data, digest_size=DIGEST_BYTES).digest(), "big")


def _difference(name: str, tensor: Tensor, ranks: Ranks) -> str | None:
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

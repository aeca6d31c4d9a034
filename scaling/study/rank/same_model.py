"""Whether all ranks have built the same model: found before their first exchange, which would never end."""

from __future__ import annotations

import hashlib
from typing import Protocol, TypeVar

import torch
from torch import nn

from scaling.errors import ExchangeError

T = TypeVar("T")

DIGEST_BYTES = 6
"""A float64 holds whole numbers of so many bytes exactly."""

VALUES = 2**14
"""Elements of a tensor that are compared: another seed or another model shows in the first ones."""

Described = dict[str, tuple[str, bytes]]
"""Name of a tensor -> its shape and type, and a digest of its first values."""


class Ranks(Protocol):
    """The part of a group that is needed here."""

    rank: int
    world_size: int

    def largest_of(self, values: list[float]) -> list[float]:
        """The largest that any rank gave, one by one. Collective."""

    def share(self, value: T, source: int = 0) -> T:
        """The source's `value` on every rank. Collective."""


def require_same_model(module: nn.Module, ranks: Ranks) -> None:
    """Compares names, shapes, types and first values of the model's tensors. Collective.

    Raises:
        ExchangeError: on every rank: which rank has another model than rank 0, and the first tensor of it.
    """
    description = _described(module)
    digest = hashlib.blake2b(repr(description).encode(), digest_size=DIGEST_BYTES).digest()
    by_rank = [0.0] * ranks.world_size
    by_rank[ranks.rank] = float(int.from_bytes(digest, "big"))
    digests = ranks.largest_of(by_rank)
    other = next((rank for rank, value in enumerate(digests) if value != digests[0]), 0)
    if other:
        first, second = ranks.share(description, 0), ranks.share(description, other)
        difference = _difference(first, second, other)
        raise ExchangeError(
            f"rank {other} has built another model than rank 0: {difference}; build it "
            "of its parameters and of torch's random numbers alone, which are the same on every rank"
        )


def _described(module: nn.Module) -> Described:
    described = {}
    for name, tensor in module.state_dict().items():
        values = tensor.detach().reshape(-1)[:VALUES].cpu().contiguous().view(torch.uint8)
        digest = hashlib.blake2b(values.numpy().data, digest_size=DIGEST_BYTES).digest()
        described[name] = (f"{list(tensor.shape)} {str(tensor.dtype).removeprefix('torch.')}", digest)
    return described


def _difference(first: Described, second: Described, rank: int) -> str:
    for name in dict.fromkeys([*first, *second]):
        there, here = first.get(name, ("missing", b"")), second.get(name, ("missing", b""))
        if there[0] != here[0]:
            return f"{name} is {here[0]} on rank {rank}, {there[0]} on rank 0"
        if there[1] != here[1]:
            return f"{name} has other initial values"
    return "its tensors are in another order"

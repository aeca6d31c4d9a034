"""Compares the ranks' bucket layouts at the start: bits for one tensor must never be read as another's."""

from __future__ import annotations

import struct

import torch

from scaling.bucket import BucketLayout
from scaling.errors import LaunchError
from scaling.process_group import Group

_WORDS = ">16H"  # SHA-256 in 16-bit words, whose squares' sums are exact in float64


def require_same_layout(layout: BucketLayout, group: Group) -> None:
    """Compares digests over the host's network. Collective; not metered.

    Raises:
        LaunchError: the ranks' layouts differ; on every rank.
    """
    if group.world_size == 1:
        return
    words = torch.tensor(struct.unpack(_WORDS, layout.digest()), dtype=torch.float64)
    sums = torch.stack([words, words.square()])
    with group.meter.standing_still():
        group.all_reduce_host(sums)
    # Of n numbers, n times the sum of squares is the square of the sum only where all are equal.
    if not torch.equal(group.world_size * sums[1], sums[0].square()):
        tensors = zip(layout.names, layout.shapes, strict=True)
        listed = ", ".join(f"{name} {list(shape)}" for name, shape in tensors)
        raise LaunchError(
            f"the ranks have different tensors to bring together; rank {group.rank} has {listed:.200}; start "
            "all workers with the same study, versions and model"
        )

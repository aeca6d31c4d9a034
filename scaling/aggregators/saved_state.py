"""What aggregators save: tensors by parameter, which any bucket with that parameter takes over.

A state's `checkpoint_tensors` names its tensors. `kind/parameter`, such as `residual/conv.weight`, belongs to
a parameter: it is found again whatever bucket the parameter is in then, and in whatever order. A name without
"/" belongs to a bucket as a whole, and is found by the bucket's number, in a bucket of the same layout.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping, Sequence

import torch
from torch import Tensor

from scaling.bucket import BucketLayout
from scaling.errors import CheckpointError, LaunchError
from scaling.process_group import Group

SEPARATOR = "/"
"""Between a kind and a parameter, whose name may hold more of them."""
BUCKET = "bucket"
"""[32] uint8: the digest of a bucket's layout."""


def named(kind: str, parameters: Iterable[str], tensors: Iterable[Tensor]) -> dict[str, Tensor]:
    """Each parameter's tensor of that kind; parameters without one, the last, are left out."""
    return {f"{kind}{SEPARATOR}{name}": tensor for name, tensor in zip(parameters, tensors, strict=False)}


def saved_tensor(saved: Mapping[str, Tensor], name: str, shape: Sequence[int]) -> Tensor:
    """The saved tensor of that name.

    Raises:
        CheckpointError: it is missing, or has another shape.
    """
    if name not in saved:
        why = "aggregator parameters" if SEPARATOR in name else "buckets, which it cannot be moved to"
        raise CheckpointError(
            f"the saved state of the aggregator has no {name!r}: it is of another model, an older version or "
            f"other {why}; continue with what it was saved with, or begin anew"
        )
    tensor = saved[name]
    if tuple(tensor.shape) != tuple(shape):
        raise CheckpointError(
            f"the saved state of the aggregator has {name!r} with shape {list(tensor.shape)}, here it is "
            f"{list(shape)}: it is of another model, world size or aggregator parameters; continue with what "
            "it was saved with, or begin anew"
        )
    return tensor


def layout_digest(layout: BucketLayout) -> dict[str, Tensor]:
    """The digest of a layout by its name; saved with tensors that belong to a bucket as a whole."""
    return {BUCKET: torch.tensor(list(layout.digest()), dtype=torch.uint8)}


def require_same_layout(layout: BucketLayout, saved: Mapping[str, Tensor]) -> None:
    """Raises CheckpointError where what was saved of a bucket as a whole is not of this one."""
    digest = layout_digest(layout)[BUCKET]
    if not torch.equal(saved_tensor(saved, BUCKET, digest.shape).cpu(), digest):
        raise CheckpointError(
            "the saved state of the aggregator belongs to a bucket of other parameters, or in another order, "
            f"than {', '.join(layout.names):.200}; continue with what it was saved with, or begin anew"
        )


def load_into(tensors: Mapping[str, Tensor], saved: Mapping[str, Tensor]) -> None:
    """Copies what was saved into tensors of the same names, in place: all of it or nothing.

    Raises:
        CheckpointError: one is missing, or has another shape.
    """
    sources = [saved_tensor(saved, name, tensor.shape) for name, tensor in tensors.items()]
    for tensor, source in zip(tensors.values(), sources, strict=True):
        tensor.copy_(source)


_WORDS = ">16H"  # SHA-256 in 16-bit words, whose squares' sums are exact in float64


def require_same_on_ranks(layout: BucketLayout, group: Group) -> None:
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

"""The buckets and gradients that aggregators are checked on."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from scaling.bucket import BucketLayout

WORLD_SIZES = (1, 2, 3, 4, 7)
SIZES = (0, 1, 10, 1000, 1027)
DTYPES = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
"""An aggregator is checked on those that it takes."""


def layout_of(num_elements: int) -> BucketLayout:
    """A bucket of that size in up to three tensors: a matrix of three rows, a vector, a single element."""
    single = 1 if num_elements > 1 else 0
    rows = 3 if num_elements >= 12 else 1
    columns = (num_elements - single) // (2 * rows)
    rest = num_elements - single - rows * columns
    shapes: list[tuple[str, Sequence[int]]] = [("matrix", (rows, columns)), ("vector", (rest,))]
    return BucketLayout.of(shapes + ([("single", (1,))] if single else []))


def gradients_of(
    world_size: int, num_elements: int, dtype: torch.dtype, *, integers: bool, seed: int = 0
) -> list[Tensor]:
    """One gradient a rank: small integers (exact in every type) or normal values."""
    generator = torch.Generator().manual_seed(1000 * world_size + num_elements + 1_000_000 * seed)
    if integers:
        return [
            torch.randint(-8, 9, (num_elements,), generator=generator).to(dtype) for _ in range(world_size)
        ]
    return [torch.randn(num_elements, generator=generator).to(dtype) for _ in range(world_size)]

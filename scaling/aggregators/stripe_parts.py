"""The residual of stripes' sums, saved by parameter, and handed to its new owners in other buckets.

Who owns an element follows from the chunks of its bucket. A rank saves of each parameter the elements that it
owns, maybe none, and where the parts of all ranks begin. To load them:

1. Where all parts of a bucket's parameters begin where they did, each rank takes its own as they are.
2. Else each rank writes what it has to its place in a buffer of zeros; one all-reduce of the bucket; each
   takes what it owns now. One of an element's n terms is its value, the others are 0: values move exactly.

All ranks know where all parts begin, so that they take the same way. Bytes: those of one all-reduce of 32-bit
values, when a state is loaded into other buckets; they are no step's, and not metered.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from scaling.aggregators.saved_state import named, saved_tensor
from scaling.bucket import BucketLayout
from scaling.errors import CheckpointError
from scaling.process_group import Group

PART, BORDERS = "stripe_residual", "stripe_borders"
"""Kinds: the own part of a parameter, flat; [ranks + 1] int64, where each rank's part begins, and the end."""


@dataclass(frozen=True)
class StripeParts:
    """Which elements of each parameter each rank owns.

    Attributes:
        edges: [rank] the first element of the bucket that it owns; behind the last rank's, the end.
    """

    layout: BucketLayout
    edges: tuple[int, ...]

    @property
    def borders(self) -> list[list[int]]:
        """[parameter][rank] the first of the parameter's elements that it owns; then the parameter's end."""
        sizes = [math.prod(shape) for shape in self.layout.shapes]
        return [
            [min(max(edge - offset, 0), size) for edge in self.edges]
            for offset, size in zip(self.layout.offsets, sizes, strict=True)
        ]

    def own(self, stripe: Tensor, rank: int) -> dict[str, Tensor]:
        begin, parts = self.edges[rank], []
        for offset, borders in zip(self.layout.offsets, self.borders, strict=True):
            start, stop = borders[rank], borders[rank + 1]
            at = offset + start - begin if start < stop else 0
            parts.append(stripe[at : at + stop - start])
        return named(PART, self.layout.names, parts)

    def borders_by_name(self) -> dict[str, Tensor]:
        return named(BORDERS, self.layout.names, [torch.tensor(border) for border in self.borders])

    def handed_over(
        self, saved: Mapping[str, Tensor], group: Group, device: torch.device
    ) -> dict[str, Tensor]:
        """Each parameter's part that this rank owns now. Collective.

        Args:
            saved: of this rank: parts and borders of these parameters, maybe with others.
            device: where the ranks exchange tensors.

        Raises:
            CheckpointError: a parameter is missing, has another size, or was saved by more or fewer ranks.
        """
        before = [self._found_borders(saved, number) for number in range(len(self.layout.names))]
        parts = [
            saved_tensor(saved, f"{PART}/{name}", [borders[group.rank + 1] - borders[group.rank]])
            for name, borders in zip(self.layout.names, before, strict=True)
        ]
        if before == self.borders:
            return named(PART, self.layout.names, parts)
        whole = torch.zeros(self.layout.num_elements, device=device)
        flat = [view.view(-1) for view in self.layout.views(whole)]
        for view, borders, part in zip(flat, before, parts, strict=True):
            view[borders[group.rank] : borders[group.rank + 1]].copy_(part)
        with group.meter.standing_still():
            group.all_reduce(whole)
        now = [
            view[borders[group.rank] : borders[group.rank + 1]]
            for view, borders in zip(flat, self.borders, strict=True)
        ]
        return named(PART, self.layout.names, now)

    def _found_borders(self, saved: Mapping[str, Tensor], number: int) -> list[int]:
        name, current = f"{BORDERS}/{self.layout.names[number]}", self.borders[number]
        borders: list[int] = saved_tensor(saved, name, [len(current)]).tolist()
        if borders[0] != 0 or borders[-1] != current[-1] or any(a > b for a, b in pairwise(borders)):
            raise CheckpointError(
                f"the saved state of the aggregator has {name!r} {borders}, for a parameter of {current[-1]} "
                "elements: it is of another model; continue with that, or begin anew"
            )
        return borders

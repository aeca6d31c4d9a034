"""The binomial tree (`scaling.collectives.tree`)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from scaling.aggregators.schedule import Scheduled
from scaling.bucket import BucketLayout
from scaling.collectives.schedule import Schedule
from scaling.collectives.tree import tree


@final
@dataclass(frozen=True)
class Tree(Scheduled):
    """Binomial-tree reduce to rank 0 and broadcast of the whole buffer: 2 ceil(log2 n) levels."""

    name = "tree"

    def schedule(self, world_size: int, layout: BucketLayout) -> Schedule:
        return tree(world_size)

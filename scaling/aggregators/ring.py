"""The ring all-reduce (`scaling.collectives.ring`)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, final

from scaling.aggregators.schedule import Scheduled
from scaling.bucket import BucketLayout
from scaling.collectives.ring import ring
from scaling.collectives.schedule import Schedule


@final
@dataclass(frozen=True)
class Ring(Scheduled):
    """Ring all-reduce: each of n ranks sends 2(n-1) messages of 1/n of the gradient.

    `directions`: 2 sends half of the buffer round the other way at the same time, in twice the messages:
    faster where a transport gives each pair of ranks only so much, as sends through host memory do."""

    name = "ring"

    directions: Literal[1, 2] = 1

    def schedule(self, world_size: int, layout: BucketLayout) -> Schedule:
        return ring(world_size, directions=self.directions)

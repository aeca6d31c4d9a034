"""How an attached script's batches are made, and what cached ones save."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from scaling.attach.measured import Measured, Saved

SAME_SIZE = 0.05
"""Batches whose mean sizes differ by more are other work."""

BLOCKED = 0.5
"""Making a batch that computes for less of its time waits: for storage, a network, a sleep."""


@dataclass(frozen=True)
class BatchMaking:
    """What making a batch takes, in loaders' workers too.

    Attributes:
        seconds: the median.
        computes_ratio: of them on a processor.
        queues_ratio: of them waiting for a processor.
    """

    seconds: float
    computes_ratio: float
    queues_ratio: float

    @property
    def is_blocked(self) -> bool:
        """Whether it mostly waits for something else than a processor."""
        return self.computes_ratio + self.queues_ratio < BLOCKED

    @property
    def is_queued(self) -> bool:
        """Whether it mostly waits for a processor."""
        return self.queues_ratio >= BLOCKED


def batch_making(measured: Measured) -> BatchMaking | None:
    """Over all ranks and batches; None if not seen."""
    fetches = [fetch for rank in measured.facts.get("no_exchange", []) for fetch in rank.get("fetches", [])]
    if not fetches:
        return None
    wall_s, cpu_s, queued_s = (sum(column) for column in zip(*fetches, strict=True))
    median_s, wall_s = float(np.median([fetch[0] for fetch in fetches])), max(wall_s, 1e-9)
    return BatchMaking(median_s, min(cpu_s / wall_s, 1.0), queued_s / wall_s)


def saved_by_cached_input(measured: Measured) -> Saved | None:
    """By the arm with cached input, where its batches are as large as the script's."""
    if measured.changed("cached_input"):
        return None
    usual, cached = (measured.mean_elements(arm) for arm in ("baseline", "cached_input"))
    if usual and any(abs(b / a - 1) > SAME_SIZE for a, b in zip(usual, cached, strict=True) if a):
        return None
    return measured.saved("baseline", "cached_input")


def loader_starts(measured: Measured) -> int:
    """How often a loader of the training began anew in a run, of the rank with the fewest."""
    return min((rank.get("iterators", 0) for rank in measured.facts.get("no_exchange", [])), default=0)


def num_steps(measured: Measured) -> int:
    """Of that run, the warm-up included."""
    return max(min(map(len, rank["step_s"])) for rank in measured.facts["no_exchange"])

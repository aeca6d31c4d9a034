"""How an attached script's batches are made, and what cached ones save."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from scaling.attach.measured import Measured, Saved

SAME_SIZE = 0.05
"""If the mean sizes of batches differ by more, they are other work."""

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
        return self.queues_ratio >= BLOCKED


def batch_making(measured: Measured) -> BatchMaking | None:
    """Over all ranks and batches; None if not seen."""
    fetches = [fetch for rank in measured.alone for fetch in rank.get("fetches", [])]
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
    return measured.saved("cached_input")


@dataclass(frozen=True)
class LoaderStarts:
    """How often a loader of the training began anew in a run.

    Attributes:
        count: on the rank with the fewest.
        abandoned: of them before their last batch.
        num_steps: of the run, the warm-up included.
        starts_workers: each time.
    """

    count: int
    abandoned: int
    num_steps: int
    starts_workers: bool


def loader_starts(measured: Measured) -> LoaderStarts:
    """In the run without exchange; none where it was not measured."""
    ranks = measured.alone
    if not ranks:
        return LoaderStarts(0, 0, 0, False)
    rank = min(ranks, key=lambda rank: int(rank.get("iterators", 0)))
    count = rank.get("iterators", 0)
    has_workers = rank.get("loader_workers", 0) > 0 and not rank.get("persistent_workers", False)
    steps = min(map(len, rank["step_s"]))
    return LoaderStarts(count, count - rank.get("exhausted", 0), steps, has_workers)

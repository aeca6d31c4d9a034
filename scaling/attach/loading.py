"""How an attached script's batches are made, and what cached ones save."""

from __future__ import annotations

from typing import Any

import numpy as np

from scaling.attach.measured import Measured, Saved

SAME_SIZE = 0.05
"""If the mean sizes of batches differ by more, they are other work."""

BLOCKED = 0.5
"""Making a batch that computes for less of its time waits: for storage, a network, a sleep."""


def batch_making(measured: Measured) -> dict[str, Any]:
    """What making a batch takes, in loaders' workers too; empty if not seen.

    The median seconds, the parts on a processor and waiting for one, and what it mostly waits for.
    """
    fetches = np.array([fetch for rank in measured.alone for fetch in rank.get("fetches", [])])
    if not fetches.size:
        return {}
    wall_s, cpu_s, queued_s = fetches.sum(axis=0)
    computes, queues = min(cpu_s / max(wall_s, 1e-9), 1.0), queued_s / max(wall_s, 1e-9)
    return {
        "seconds": float(np.median(fetches[:, 0])),
        "computes_ratio": float(computes),
        "queues_ratio": float(queues),
        "waits": bool(computes + queues < BLOCKED),
        "is_queued": bool(queues >= BLOCKED),
    }


def saved_by_cached_input(measured: Measured) -> Saved | None:
    """By the arm with cached input, where its batches are as large as the script's."""
    if measured.changed("cached_input"):
        return None
    usual, cached = (measured.mean_elements(arm) for arm in ("baseline", "cached_input"))
    if usual and any(abs(b / a - 1) > SAME_SIZE for a, b in zip(usual, cached, strict=True) if a):
        return None
    return measured.saved("cached_input")


def loader_starts(measured: Measured) -> dict[str, Any]:
    """How often a loader of the training began anew in a run's steps, of that before its last batch, and
    whether it starts workers each time; on the rank with the fewest.
    """
    rank = min(measured.alone, key=lambda rank: int(rank.get("iterators", 0)), default=None)
    if rank is None:
        return {"starts": 0, "abandoned": 0, "steps": 0, "starts_workers": False}
    count = rank.get("iterators", 0)
    has_workers = rank.get("loader_workers", 0) > 0 and not rank.get("persistent_workers", False)
    return {
        "starts": count,
        "abandoned": count - rank.get("exhausted", 0),
        "steps": min(map(len, rank["step_s"])),
        "starts_workers": count > 1 and has_workers,
    }

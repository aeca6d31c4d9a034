"""Kinds of failure, as the summary of a failed run has them under FAILURE_KIND."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

OUT_OF_MEMORY, DEVICE_LOST, OTHER_FAILURE = "out_of_memory", "device_lost", "error"
DISK_FULL = "disk_full"  # never in a record: the run stays planned

FAILURE_KIND = "failure_kind"


def failure_kind(summary: Mapping[str, Any], reason: str | None) -> str:
    """What kind of failure ended a run; of a record that is older than the kinds, by the reason's words."""
    if recorded := summary.get(FAILURE_KIND):
        return str(recorded)
    words = (reason or "").lower()
    if "memory" in words:
        return OUT_OF_MEMORY
    return DEVICE_LOST if "cuda error" in words else OTHER_FAILURE

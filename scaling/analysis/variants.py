"""Which of an aggregator's cells represent it where only one variant is shown."""

from __future__ import annotations

import math
from collections.abc import Sequence

from scaling.analysis.columns import Row, is_unchanged
from scaling.analysis.groups import CellGroup


def main_variant(group: CellGroup, label: str) -> list[Row]:
    """The rows of one aggregator with one bucket size, wire format and input placement: one
    row per world size. One worker, which exchanges nothing, may have none of these.

    Of several placements the first that it has (`device` if there), then of several bucket sizes and
    wire formats the one that is fastest at the largest world size. Of a script of the user's: unchanged, on
    one worker, and without exchange.
    """
    rows = [row for row in group.rows if row["aggregator"] == label]
    rows = [row for row in rows if is_unchanged(row) or row["arm"] in ("one_worker", "no_exchange")] or rows
    placements = dict.fromkeys(map(_placement, rows))
    preferred = min(placements, key=lambda placement: placement[0] != "device")
    rows = [row for row in rows if _placement(row) == preferred]
    largest = max(row["world_size"] for row in rows)
    fastest = min(
        (row for row in rows if row["world_size"] == largest),
        key=lambda row: math.inf if row["iteration_s"] is None else row["iteration_s"],
    )
    names = ("bucket_mb", "bucket_sizes_mb", "wire")
    return [
        row
        for row in rows
        if all(row[name] == fastest[name] or (row["world_size"] == 1 and row[name] is None) for name in names)
    ]


def _placement(row: Row) -> tuple[str, int | None]:
    return row["input_placement"], row["loader_workers"]


def measured_at_most_workers(group: CellGroup, label: str) -> Sequence[Row]:
    """An aggregator's rows with a time, at the group's largest world size."""
    largest = max(group.world_sizes)
    rows = [row for row in group.rows if row["aggregator"] == label and row["world_size"] == largest]
    return [row for row in rows if row["iteration_s"] is not None]

"""The noise floor: how much two measurements of the very same differ.

An A/A pair is a cell that was measured twice under two identities (`aa_replicate` 0 and 1), in the same
launches. In each launch the floor is the difference of the two medians over their mean; that of a group of
comparable cells is the largest of its pairs and launches. Smaller differences between other cells say
nothing.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from scaling.analysis.columns import Row
from scaling.analysis.findings import Finding
from scaling.analysis.groups import Group, group_key
from scaling.analysis.samples import CellResult

Key = Callable[[Row], tuple[Any, ...]]


def noise_floors(cells: Sequence[CellResult], rows: Mapping[str, Row]) -> dict[str, float]:
    """Cell id -> its noise floor, as a ratio; cells for which none was measured have no entry.

    Args:
        cells: with their samples.
        rows: the summary's, by cell id.
    """
    pairs = [
        (rows[replicate.cell_id], floor)
        for cell, replicate in aa_pairs(cells)
        if (floor := pair_floor(cell, replicate)) is not None
    ]
    in_group, in_family = _largest(pairs, group_key), _largest(pairs, _family)
    floors = {}
    for cell_id, row in rows.items():
        floor = in_group.get(group_key(row), in_family.get(_family(row)))
        if floor is not None:
            floors[cell_id] = floor
    return floors


def aa_pairs(cells: Sequence[CellResult]) -> list[tuple[CellResult, CellResult]]:
    """All A/A pairs: cells that differ in the replicate's number alone, the first before the second."""
    firsts = {_without_replicate(cell): cell for cell in cells if not cell.cell.get("aa_replicate")}
    seconds = [(_without_replicate(cell), cell) for cell in cells if cell.cell.get("aa_replicate")]
    return [(firsts[key], cell) for key, cell in seconds if key in firsts]


def pair_floor(first: CellResult, second: CellResult) -> float | None:
    """The largest difference of an A/A pair over its launches, as a ratio; None without a common launch."""
    medians = [
        {launch.repeat: float(np.median(launch.step_s)) for launch in cell.launches}
        for cell in (first, second)
    ]
    both = medians[0].keys() & medians[1].keys()
    ratios = [
        2 * abs(medians[0][repeat] - medians[1][repeat]) / (medians[0][repeat] + medians[1][repeat])
        for repeat in both
        if medians[0][repeat] + medians[1][repeat] > 0
    ]
    return max(ratios, default=None)


def noise_finding(group: Group, groups: Sequence[Group]) -> Finding | None:
    """The noise floor of a table and the A/A pairs that it comes from; None where none was measured.

    Args:
        group: the table's.
        groups: all of the summary, for a pair of another group.
    """
    floor = next((row["noise_floor"] for row in group.rows if row["noise_floor"] is not None), None)
    if floor is None:
        return None
    replicates = _measured(group.replicates)
    is_of_another = not replicates
    if is_of_another:
        family = _family(group.rows[0])
        everyone = [row for other in groups for row in _measured(other.replicates)]
        replicates = [row for row in everyone if _family(row) == family]
    names = ("aggregator", "world_size")
    pairs = [{name: replicate[name] for name in names} for replicate in replicates]
    cells = tuple(replicate["cell_id"] for replicate in replicates)
    return Finding("noise_floor", cells, {"floor": floor, "pairs": pairs, "of_another": is_of_another})


def _measured(replicates: Sequence[Row]) -> list[Row]:
    return [replicate for replicate in replicates if replicate["iteration_s"] is not None]


def _largest(pairs: Sequence[tuple[Row, float]], key: Key) -> dict[tuple[Any, ...], float]:
    floors: dict[tuple[Any, ...], float] = {}
    for row, floor in pairs:
        floors[key(row)] = max(floor, floors.get(key(row), 0.0))
    return floors


def _family(row: Row) -> tuple[Any, ...]:
    """Where a group has no pair, one of the same model, step and device stands in."""
    return tuple(row[name] for name in ("kind", "model", "step", "device"))


def _without_replicate(cell: CellResult) -> str:
    return json.dumps(
        {name: value for name, value in cell.cell.items() if name != "aa_replicate"}, sort_keys=True
    )

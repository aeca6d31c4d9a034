"""A/A pairs: how much two measurements of the same cell differ.

An A/A pair is a cell that was measured twice under two identities (`aa_replicate` 0 and 1), in the same
launches. Its difference is that of the two means of the launches' times, as logarithms: it falls with the
launches, down to what stays from launch to launch. The floor of a group of comparable cells is the root mean
square of its pairs' differences.

The floor is told, and decides nothing: what launches scatter by is measured on all cells, and what stays is a
component of variance where enough pairs show it (`scaling.analysis.study_scatter`). A pair that differs by
more than its launches scatter is a warning.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from operator import itemgetter
from typing import Any

import numpy as np

from scaling.analysis.columns import Row, by_key, unit_of_workers
from scaling.analysis.findings import Finding
from scaling.analysis.groups import CellGroup, group_key
from scaling.analysis.launch_effects import Serial, inflation
from scaling.analysis.samples import CellResult
from scaling.analysis.study_scatter import FEWEST_PAIRS, StudyScatter, cell_times, study_scatter

Key = Callable[[Row], tuple[Any, ...]]


def noise_floors(cells: Sequence[CellResult], rows: Mapping[str, Row]) -> dict[str, float]:
    """Cell id -> its noise floor, as a ratio; cells without a measured one have no entry."""
    pairs = [
        (rows[replicate.cell_id], floor)
        for cell, replicate in aa_pairs(cells)
        if (floor := pair_floor(cell, replicate)) is not None
    ]
    in_group, in_family = _root_mean_squares(pairs, group_key), _root_mean_squares(pairs, _family)
    floors = {name: in_group.get(group_key(row), in_family.get(_family(row))) for name, row in rows.items()}
    return {cell_id: floor for cell_id, floor in floors.items() if floor is not None}


def scatter_of(cells: Sequence[CellResult], *, typical: bool = False) -> StudyScatter:
    """Of a study's timed cells (`typical`: their median steps) and trainings, with its A/A pairs."""
    pairs = [(first.cell_id, second.cell_id) for first, second in aa_pairs(cells)]
    scatter = study_scatter(cell_times(cells, typical=typical), pairs, in_order=True)
    return replace(scatter, remarks=(*_slow_launches(cells), *launch_remarks([scatter])))


def launch_remarks(scatters: Sequence[StudyScatter], serial: Serial | None = None) -> Iterator[Finding]:
    """What folders together do not tell of launches and cells; `serial` is by default the first one's."""
    counts = [logs.shape[1] for scatter in scatters for logs in scatter.logs if logs.shape[1] > 1]
    correlation = (serial or scatters[0].serial).total if scatters else 0.0
    if correlation:
        wider_ratio = math.sqrt(inflation(correlation, max(counts)))
        yield Finding("correlated_launches", (), {"wider_ratio": wider_ratio})
    num_pairs = sum(pair.error is not None for scatter in scatters for pair in scatter.pairs)
    if counts and num_pairs < FEWEST_PAIRS:
        yield Finding("offsets_not_measured", (), {"num_pairs": num_pairs, "fewest": FEWEST_PAIRS})


def _slow_launches(cells: Sequence[CellResult]) -> Iterator[Finding]:
    """Which launches do not count, since most of their cells were slow in them."""
    found = [(launch.repeat, cell) for cell in cells for launch in cell.slow_launches]
    grouped = by_key(found, lambda one: (one[1].cell["world_size"], one[1].cell["device"], one[0]))
    for (world_size, device, repeat), members in sorted(grouped.items(), key=lambda one: one[0]):
        times = [(cell, {one.repeat: one.iteration_s for one in cell.all_launches}) for _, cell in members]
        ratios = sorted(
            own[repeat] / math.exp(np.mean([math.log(own[launch.repeat]) for launch in cell.launches]))
            for cell, own in times
        )
        values = {
            "launch": repeat + 1,
            "world_size": world_size,
            "unit": "GPU" if device == "cuda" else "worker",
            "num_cells": len(ratios),
            "num_slow": sum(ratio > 1 for ratio in ratios),
            "median_ratio": float(np.median(ratios)) - 1,
            "most_ratio": ratios[-1] - 1,
            "num_left": min(len(cell.launches) for cell, _ in times),
        }
        yield Finding("launch_set_aside", tuple(cell.cell_id for cell, _ in times), values)


def aa_pairs(cells: Sequence[CellResult]) -> list[tuple[CellResult, CellResult]]:
    """All A/A pairs: cells that differ only in the replicate number, the first before the second."""
    if not any(cell.cell.get("aa_replicate") for cell in cells):
        return []
    firsts = {_without_replicate(cell): cell for cell in cells if not cell.cell.get("aa_replicate")}
    seconds = [(_without_replicate(cell), cell) for cell in cells if cell.cell.get("aa_replicate")]
    return [(firsts[key], cell) for key, cell in seconds if key in firsts]


def pair_floor(first: CellResult, second: CellResult) -> float | None:
    """By how much an A/A pair differs over its common launches, as a ratio; None without a common launch."""
    one, other = (
        {launch.repeat: launch.iteration_s for launch in cell.launches if launch.iteration_s > 0}
        for cell in (first, second)
    )
    logs = [math.log(other[repeat] / one[repeat]) for repeat in one.keys() & other.keys()]
    return abs(float(np.mean(logs))) if logs else None


def aa_warnings(cells: Sequence[CellResult], scatter: StudyScatter) -> list[Finding]:
    """The A/A pairs that differ by more than their launches scatter, if no component stands for that."""
    if scatter.offset_degrees:
        return []
    warnings = []
    for first, second in aa_pairs(cells):
        ids = first.cell_id, second.cell_id
        if all(map(scatter.num_launches, ids)) and (difference := scatter.difference(*ids)).is_significant:
            values = {"name": first.label("aggregator"), "world_size": first.cell["world_size"]}
            warnings.append(Finding("aa_pair_differs", ids, {**values, "ratio": abs(difference.log_ratio)}))
    return warnings


def noise_finding(group: CellGroup, groups: Sequence[CellGroup]) -> Finding | None:
    """The noise floor of a group's table, if any, with the A/A pairs behind it, perhaps of another group."""
    floor = next((row["noise_floor"] for row in group.rows if row["noise_floor"] is not None), None)
    if floor is None:
        return None
    replicates = _measured(group.replicates)
    is_of_another = not replicates
    if is_of_another:
        family = _family(group.rows[0])
        everyone = [row for other in groups for row in _measured(other.replicates)]
        replicates = [row for row in everyone if _family(row) == family]
    shared = {"unit": unit_of_workers(group.rows[0])}
    pairs = [{name: row[name] for name in ("aggregator", "world_size")} | shared for row in replicates]
    cells = tuple(replicate["cell_id"] for replicate in replicates)
    return Finding("noise_floor", cells, {"floor": floor, "pairs": pairs, "of_another": is_of_another})


def _measured(replicates: Sequence[Row]) -> list[Row]:
    return [replicate for replicate in replicates if replicate["iteration_s"] is not None]


def _root_mean_squares(pairs: Sequence[tuple[Row, float]], key: Key) -> dict[tuple[Any, ...], float]:
    groups = by_key(pairs, lambda pair: key(pair[0])).items()
    return {name: math.sqrt(float(np.mean(np.square([floor for _, floor in rows])))) for name, rows in groups}


_family = itemgetter("kind", "model", "step", "device")  # whose pair a group without one uses


def _without_replicate(cell: CellResult) -> str:
    return json.dumps(
        {name: value for name, value in cell.cell.items() if name != "aa_replicate"}, sort_keys=True
    )

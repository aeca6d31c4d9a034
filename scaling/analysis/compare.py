"""Compares two studies cell by cell: what became faster or slower, and how sure that is.

1. Cells are paired (`scaling.analysis.comparison`); of each pair the ratio b / a of the times is taken:
   iterations of timed cells, seconds of training of others.
2. Two folders are two campaigns: the shift of all cells of a world size is a line of its own, and cells are
   called relative to it (`scaling.analysis.decisions.campaigns`). All pairs are tested together: Holm's
   correction at a family-wise level.
3. Several folders on both sides are as many campaigns, and each is one value of a cell: what differs from one
   campaign to the next is then measured. Several on one side alone are taken as more launches.
4. Two folders with launches that took turns (`run --against`) are one campaign: what a launch does to all
   cells is paired launch by launch, and no shift between campaigns is allowed for.
5. What a cell differs by between campaigns, however many launches, is the A/A pairs' component of variance.
6. With one launch on a side nobody knows how much launches scatter: the pair is not resolved.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd

from scaling.analysis.columns import Row, by_key, to_rows
from scaling.analysis.comparison import (
    COMPARED_KINDS,
    CellComparison,
    Comparison,
    Match,
    Shift,
    Verdict,
    has_time,
    match_cells,
    nearest_differences,
)
from scaling.analysis.decisions import Campaigns, Design, adjusted, campaigns, goes_along
from scaling.analysis.environments import environment_differences
from scaling.analysis.findings import Finding
from scaling.analysis.groups import group_rows
from scaling.analysis.launch_effects import serial_correlation
from scaling.analysis.noise import aa_warnings, launch_remarks, scatter_of
from scaling.analysis.samples import CellResult, read_cells
from scaling.analysis.study_scatter import (
    TIMER_S,
    CellTimes,
    StudyScatter,
    cell_times,
    log_matrix,
    offset_variance,
)
from scaling.analysis.summary import cell_table, study_name
from scaling.errors import ScalingError
from scaling.store import ResultsFolder, Snapshot

FAMILY_LEVEL = 0.02  # the probability that any of the cells is called different where none is


@dataclass(frozen=True)
class Side:
    rows: Sequence[Sequence[Row]]  # of their summaries
    cells: Sequence[Sequence[CellResult]]  # the samples that these were made of

    @classmethod
    def of(cls, tables: Sequence[pd.DataFrame], cells: Sequence[Sequence[CellResult]]) -> Side:
        return cls([to_rows(table) for table in tables], cells)


def compare(
    a: Sequence[ResultsFolder], b: Sequence[ResultsFolder], level: float = FAMILY_LEVEL
) -> Comparison:
    """Compares two sides; ratios are b / a. StoreError: a folder is damaged; ScalingError: no common cell."""
    a, b = ([Snapshot.of(folder.require()) for folder in side] for side in (a, b))
    comparison = compare_sides(_side(a), _side(b), level)
    others = [environment_differences(a[0], other) for other in (*b, *a[1:])]
    by_field = {key.field: key for differences in reversed(others) for key in differences}
    return replace(comparison, environment=sorted(by_field.values(), key=lambda key: not key.decides))


def _side(folders: Sequence[ResultsFolder]) -> Side:
    names = [study_name(folder) for folder in folders]
    cells = [read_cells(folder) for folder in folders]
    side = Side.of([cell_table(*study) for study in zip(names, cells, strict=True)], cells)
    for folder, rows in zip(folders, side.rows, strict=True):
        if not any(has_time(row) for row in rows):
            raise ScalingError(
                f"{folder.path} has no cell that `compare` reads; allowed: {' and '.join(COMPARED_KINDS)} "
                "with a GPU a worker; `scaling report DIR` shows what it has"
            )
    return side


def compare_sides(a: Side, b: Side, level: float = FAMILY_LEVEL) -> Comparison:
    """Without environments; ScalingError where the level is no probability, or no cell is in common."""
    if not 0 < level < 1:
        raise ScalingError(f"the level is {level:g}; it is a probability between 0 and 1, such as 0.02")
    rows_a, rows_b = a.rows[0], b.rows[0]
    are_campaigns = min(len(a.rows), len(b.rows)) > 1
    scatters = [scatter_of(cells) for side in (a, b) for cells in side.cells]
    serial = serial_correlation([] if are_campaigns else [logs for one in scatters for logs in one.logs])
    # Of a cell's ratio between two campaigns of equal conditions; the scatter of campaigns includes it.
    variance, degrees = offset_variance([pair for scatter in scatters for pair in scatter.pairs])
    offset = (0.0, 0.0) if are_campaigns else (variance * (1 / len(a.rows) + 1 / len(b.rows)), degrees)
    is_paired = not are_campaigns and _took_turns(a, b)
    if is_paired:  # what both sides' launches share cancels
        serial = replace(serial, shared=0.0)
    design = Design(are_campaigns, is_paired, offset, serial)
    times_a, times_b = (_times(side, are_campaigns=are_campaigns) for side in (a, b))
    matches, alone_a, alone_b = match_cells(rows_a, rows_b)
    by_state = by_key(
        matches,  # measured: both sides have its times; of trainings, of equally many epochs
        lambda m: m.a["cell_id"] in times_a and m.b["cell_id"] in times_b and m.a["epochs"] == m.b["epochs"],
    )
    measured, unmeasured = by_state.get(True, []), by_state.get(False, [])
    if not measured:
        raise ScalingError(_nothing_in_common(rows_a, rows_b, matched=bool(matches)))
    pairs: dict[str, CellComparison] = {}
    shifts, names = [], _names(rows_a)
    for family in by_key(measured, lambda match: times_a[match.a["cell_id"]].family).values():
        of_a = [times_a[match.a["cell_id"]] for match in family]
        of_b = [times_b[match.b["cell_id"]] for match in family]
        compared = _campaigns(of_a, of_b, design)
        pairs.update(_pairs(family, (of_a, of_b), compared, names))
        if compared.shift is not None:
            kind, world_size = family[0].a["kind"], family[0].a["world_size"]
            is_relative, has_campaigns = compared.relative is not None, are_campaigns or design.is_paired
            shifts.append(Shift(kind, world_size, len(family), compared.shift, is_relative, has_campaigns))
    return Comparison(
        environment=[],
        cells=_judged([pairs[match.a["cell_id"]] for match in measured], level),
        shifts=shifts,
        only_in_a=[*alone_a, *(match.a for match in unmeasured if match.a["cell_id"] in times_a)],
        only_in_b=[*alone_b, *(match.b for match in unmeasured if match.b["cell_id"] in times_b)],
        level=level,
        num_left_out=sum(not has_time(row) for row in (*rows_a, *rows_b)),
        is_paired=design.is_paired,
        offset_ratio=math.sqrt(design.offset[0]),
        warnings=[*_warnings(a, b, scatters), *(() if are_campaigns else launch_remarks(scatters, serial))],
    )


def _warnings(a: Side, b: Side, scatters: Sequence[StudyScatter]) -> Iterator[Finding]:
    """A/A pairs that differ, and launches that do not count, with the side."""
    for cells, scatter in zip((*a.cells, *b.cells), scatters, strict=True):
        yield from aa_warnings(cells, scatter)
    for name, one in zip("A" * len(a.cells) + "B" * len(b.cells), scatters, strict=True):
        for remark in one.remarks:
            if remark.kind == "launch_set_aside":
                yield replace(remark, values={**remark.values, "folder": name})


def _times(side: Side, *, are_campaigns: bool) -> dict[Hashable, CellTimes]:
    """The first folder's cells, with the values of all folders: of launches, or of whole campaigns."""
    rows = side.rows[0]
    merged: dict[Hashable, dict[Hashable, float]] = {}
    families: dict[Hashable, Hashable] = {}
    for number, (table, cells) in enumerate(zip(side.rows, side.cells, strict=True)):
        matches = match_cells(rows, table)[0] if number else []
        first_ids = {match.b["cell_id"]: match.a["cell_id"] for match in matches}
        for cell_id, times in cell_times(cells).items():
            first = first_ids.get(str(cell_id)) if number else cell_id
            if first is None or not times.by_launch:
                continue
            families.setdefault(first, times.family)
            by_launch: dict[Hashable, float] = {(number, name): s for name, s in times.by_launch.items()}
            if are_campaigns:
                by_launch = {number: float(np.exp(np.mean(np.log([*times.by_launch.values()]))))}
            merged.setdefault(first, {}).update(by_launch)
    return {cell_id: CellTimes(families[cell_id], values) for cell_id, values in merged.items()}


def _took_turns(a: Side, b: Side) -> bool:
    """Whether both folders are one campaign with alternating launches: their run records have its id."""
    ids = [
        {record.launch.get("campaign") for cells in side.cells for cell in cells for record in cell.done}
        - {None}
        for side in (a, b)
    ]
    return len(a.rows) == len(b.rows) == 1 and ids[0] == ids[1] and len(ids[0]) == 1


def _campaigns(a: Sequence[CellTimes], b: Sequence[CellTimes], design: Design) -> Campaigns:
    launches = list(dict.fromkeys(name for cell in (*a, *b) for name in cell.by_launch))
    logs = [log_matrix(side, launches if design.is_paired else None) for side in (a, b)]
    smallest = (TIMER_S / np.exp(np.nanmean(logs[0], axis=1))) ** 2
    return campaigns(logs[0], logs[1], smallest, design)


def _pairs(
    family: Sequence[Match],
    times: tuple[Sequence[CellTimes], Sequence[CellTimes]],
    compared: Campaigns,
    names: Mapping[str, tuple[dict[str, Any], str]],
) -> dict[str, CellComparison]:
    """Cell id in a -> the pair, before all pairs are judged together."""
    pairs = {}
    for index, match in enumerate(family):
        group, name = names[cell_id := match.a["cell_id"]]
        quantity = "train_s" if match.a["kind"] == "convergence" else "iteration_s"
        counts = len(times[0][index].by_launch), len(times[1][index].by_launch)
        found = compared.ratios[index], compared.tested[index], None
        pairs[cell_id] = CellComparison(group, name, match, quantity, *found, "not resolved", counts)
    return pairs


def _names(rows: Sequence[Row]) -> Mapping[str, tuple[dict[str, Any], str]]:
    """Cell id -> what its group has in common, and its name there, with a seed that differs."""
    return {
        row["cell_id"]: (group.given, f"{group.name(row)}, seed {row['seed']}" if seeds else group.name(row))
        for group in group_rows(rows)
        for seeds in [group.kind == "convergence" and group.differs("seed")]
        for row in group.rows
    }


def _judged(pairs: Sequence[CellComparison], level: float) -> list[CellComparison]:
    known = [pair.tested.p_value for pair in pairs if pair.tested.p_value is not None]
    corrected, judged = iter(adjusted(known)), []
    for pair in pairs:
        verdict: Verdict = "not resolved"
        p_adjusted = None if pair.tested.p_value is None else next(corrected)
        if p_adjusted is not None and p_adjusted < level and goes_along(pair.difference, pair.tested):
            verdict = "slower" if pair.difference.ratio > 1 else "faster"
        elif pair.difference.is_same() and pair.tested.is_same():
            verdict = "same"
        judged.append(replace(pair, p_adjusted=p_adjusted, verdict=verdict))
    return judged


def _nothing_in_common(a: Sequence[Row], b: Sequence[Row], *, matched: bool) -> str:
    if matched:
        return (
            "the studies share cells, but none that is done in both; finish them with the same `run`, "
            "`scaling status DIR` shows what is left"
        )
    different = nearest_differences(a, b)
    nearest = f"; the nearest ones differ in {', '.join(different)}" if different else ""
    return (
        f"the studies have no cell in common that `compare` reads ({' or '.join(COMPARED_KINDS)}){nearest}; "
        "name two folders of one study"
    )

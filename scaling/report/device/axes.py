"""Timing studies over an axis (batch, threads, bucket size, ...), declared and reported as device studies
are: cells that differ in the axis, in what its lines are and in what its panels are."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from operator import itemgetter
from typing import Any, NamedTuple

from scaling.analysis.columns import Row, by_key, is_control_arm, is_of_older_code, is_unchanged, workers_of
from scaling.analysis.groups import CellGroup, group_rows
from scaling.analysis.study_scatter import StudyScatter, study_scatter
from scaling.axes import AXES, Role, Shared, fixed_batch
from scaling.device_studies.declaration import Bars, Fastest, FastestRows, Lines, Panels, Report, Variant
from scaling.measure.statistics import Estimate
from scaling.report.device.drawing import DRAWN
from scaling.report.device.findings import sentences
from scaling.report.device.results import SAMPLES, STEP, DeviceResult, DeviceResults, size_of
from scaling.report.device.tables import declared_table
from scaling.report.figures.base import Drawn, FigureInput, figure
from scaling.report.tables import Table
from scaling.report.text import title_of

FEWEST_NUMBERS, FEWEST_WORDS = 3, 2  # values of a study over an axis
BATCH = "batch"  # that the number of workers does not change
FIRST = ("aggregator", "step", "model", "dataset", "device", "scaling", "world_size", BATCH)
LEFT_OUT = ("study", "kind", "launcher", "local_batch", "global_batch", "arm", "aa_replicate")
COLUMNS = {axis.key: axis for axis in AXES if axis.key and axis.key not in (*FIRST, *LEFT_OUT)}
VARIED = [
    name
    for name, axis in COLUMNS.items()
    if axis.role & (Role.CHOSEN | Role.DESCRIBED) and not axis.role & (Role.REPETITION | Role.RECORDED)
]
SETTINGS = (*FIRST, *COLUMNS)  # the first in which cells differ are lines
CAPTION = "Each setting on the most workers, with its 95% interval (columns {}, iteration_s)."
STATISTIC = (
    "Column iteration_s; ±: half of its 95% interval; x as long: the slowest over the fastest, of batches by "
    "sample; behind these words, times that are not shown to differ."
)


ESTIMATE = ("iteration_s", "iteration_s_low", "iteration_s_high", "interval_method", "iterations", "repeats")
FACTS = {SAMPLES: "global_batch", "world_size": "world_size"}


class OverAxis(NamedTuple):
    """Cells over one axis: of a group of comparable cells, or of several groups that differ in it. `untimed`:
    values of the axis whose cells on as many workers have no time."""

    axis: str
    results: DeviceResults
    group: CellGroup | None
    untimed: list[Any]


def over_axes(rows: Sequence[Row], scatter: StudyScatter) -> Iterator[OverAxis]:
    """The sets of timed cells with enough values of an axis, of each set those on the most workers."""
    groups: list[tuple[CellGroup | None, list[Row]]] = []
    for group in group_rows(rows):
        todays = [row for row in group.rows if is_unchanged(row) and not is_of_older_code(row)]
        if group.kind == "iteration":
            groups.append((group, [{**row, BATCH: fixed_batch(row)} for row in todays]))
    everything = [row for _, members in groups for row in members]
    for axis in (BATCH, *VARIED):
        is_inside = axis != BATCH and not COLUMNS[axis].shared & Shared.GROUP
        for one, members in (*groups,) if is_inside else ((None, everything),):
            cells, untimed = _cells(axis, members, scatter)
            if cells:
                yield OverAxis(axis, _results(axis, cells, one), one, untimed)


def _cells(axis: str, todays: Sequence[Row], scatter: StudyScatter) -> tuple[list[DeviceResult], list[Any]]:
    others = [name for name in SETTINGS if name not in (axis, "world_size")]
    kept: list[Row] = []
    untimed: set[Any] = set()
    for same in by_key(todays, itemgetter(*others)).values():
        timed = [row for row in same if row["iteration_s"] is not None and row[axis] is not None]
        most = max((row["world_size"] for row in timed), default=0)
        values = {row[axis]: row for row in timed if row["world_size"] == most}
        if len(values) >= (FEWEST_NUMBERS if are_numbers(values) else FEWEST_WORDS):
            kept += values.values()
            untimed |= {row[axis] for row in same if row["world_size"] >= most and row["iteration_s"] is None}
    names = _differing(kept, axis)
    return [_cell(row, axis, names, scatter) for row in kept], sorted(untimed - {None}, key=size_of)


def _cell(row: Row, axis: str, others: Sequence[str], scatter: StudyScatter) -> DeviceResult:
    """A cell by its row of the summary; its point are the axis, and other settings as they are called."""
    called = {**row, "world_size": workers_of(row), BATCH: f"batch {row[BATCH]:,}"}
    called |= {name: COLUMNS[name].text(row[name]) for name in others if name in COLUMNS}
    point = {axis: row[axis], **{name: called[name] for name in others}}
    facts = [{"fact": fact, "value": row[name]} for fact, name in FACTS.items()]
    known = {STEP: Estimate(*(row[name] for name in ESTIMATE))}
    what = row["cell_id"], point, row["device"], row["threads"] or 0
    launches = dict.fromkeys(range(row["repeats"]), facts)
    return DeviceResult(*what, launches, scatters={STEP: scatter}, known=known)


def are_numbers(values: Iterable[Any]) -> bool:
    return all(isinstance(value, (int, float)) for value in values)


def _differing(rows: Sequence[Row], axis: str) -> list[str]:
    """The settings that tell rows apart besides the axis; one that others imply is left out."""
    chosen: list[str] = []
    for name in SETTINGS:
        finer = {tuple(row[one] for one in (*chosen, name)) for row in rows}
        if name != axis and len(finer) > len({tuple(row[one] for one in chosen) for row in rows}):
            chosen.append(name)
    return chosen


def _results(axis: str, cells: Sequence[DeviceResult], group: CellGroup | None) -> DeviceResults:
    of, names = words(axis), [*cells[0].point][1:]
    line, others = names[:1], tuple(names[1:])
    is_number = are_numbers(cell.value(axis) for cell in cells)
    title, at = (", ".join(f"{{{name}}}" for name in some) for some in (others, (*line, *others)))
    drawn: Bars | Lines = Bars("", "", "", others, title, f"{{{axis}}}", line[0] if line else axis, {})
    if is_number:
        lines = line[0] if line else (Variant("a step", {}),)
        drawn = Lines("", "", "", (Panels(axis, of, by=others, title=title),), lines)
    by = (*others, *line)
    what = f"Least time of a {'sample' if axis == BATCH else 'step'} by {of}"
    what += f" ({title_of(group.given)})" if group else ""
    found = Fastest(f"{what}: ", axis, by, f"for {at}" if at else "", {})
    rows = FastestRows("", axis, by, line[0] if line and is_number else "", STATISTIC)
    # As they are in the summary; what exchanges nothing last, since the first line is what others are
    # compared with.
    last = sorted(cells, key=lambda cell: is_control_arm({"aggregator": cell.point.get("aggregator", "")}))
    order = {name: tuple(dict.fromkeys(cell.value(name) for cell in last)) for name in (axis, *by)}
    report = Report("", (axis,), (drawn,), (rows,), findings=(found,), order=order)
    return DeviceResults(f"A step by {of}", axis, report, [*cells])


def words(axis: str) -> str:
    return {"bucket_mb": "bucket size in MiB", "input_placement": "where the input comes from"}.get(
        axis, axis.replace("_", " ")
    )


@figure(section="choices")
def choices(data: FigureInput) -> Iterator[Drawn]:
    for axis, results, group, _ in over_axes(data.rows, study_scatter({})):
        what = f"Time of a step by {words(axis)}"
        title = data.titled(what, group) if group else what
        (declared,) = results.report.figures
        if drawn := DRAWN[type(declared)](declared, results, title):
            slug = f"{axis}-{group.slug}" if group else axis
            yield Drawn(f"by-{slug}", title, CAPTION.format(axis), drawn, group=group)


def axis_tables(studies: Iterable[OverAxis]) -> list[Table]:
    return [
        replace(table, section="choices", group=group.key if group else "")
        for _, results, group, _ in studies
        for declared in results.report.tables
        for table in declared_table(results, declared)
    ]


def axis_sentences(studies: Iterable[OverAxis]) -> Iterator[str]:
    for one in studies:
        yield from sentences(one.results.report.findings, one.results)
        if one.untimed:
            values = ", ".join(map(one.results.label, one.untimed))
            yield f"Not measured, of {words(one.axis)}: {values}; the fastest may be there."

"""The tables that a device study declares, and texts of their cells."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

from scaling.analysis.cautions import LONG_STEPS
from scaling.device_studies.declaration import DEVICES, FastestRows, Rows, Show, Variant
from scaling.report.device.comparisons import crossing, crossing_text, least, least_text, over_samples
from scaling.report.device.findings import ratios
from scaling.report.device.results import STEP, DeviceResult, Results, fastest
from scaling.report.formats import (
    MISSING,
    half_width_percent,
    interval,
    milliseconds,
    number,
    of_times,
    ratio,
)
from scaling.report.tables import Column, Table, table_of, without_empty_columns

Cells = Sequence[DeviceResult]  # a row: the cells of a point
LOAD = "load_average"  # the fact with the host's load before a cell (`scaling.study.kinds.device`)
BUSY = 1.3  # a load of so many processes a core is more than the study's own
LEFT_OUT = (
    "Left out: the fewest samples would pass the time limit of a cell (limit_s), it does not fit, or as the "
    "reason says."
)


def scientific(value: float | None) -> str:
    return MISSING if value is None else f"{value:.1e}"


def per_s(cell: DeviceResult, name: str, phase: str = STEP) -> float | None:
    mean, value = cell.mean(phase), cell.value(name)
    return value / mean[0] if mean and value else None


def shown(results: Results, show: Show, cell: DeviceResult | None) -> str:
    if cell is None:
        return MISSING
    if show.kind in ("time", "seconds", "interval", "both"):
        estimate = cell.estimate(show.phase)
        if estimate is None:
            return MISSING
        ends = interval(estimate.low, estimate.high)
        width = None if estimate.low is None or estimate.high is None else estimate.high - estimate.low
        time = milliseconds(estimate.median, width)
        both = time if ends == MISSING else f"{time} ({ends})"
        return {"time": time, "seconds": number(estimate.median), "interval": ends, "both": both}[show.kind]
    if show.kind == "over_first":
        difference = cell.difference(results.first_along(cell, show.name))
        return ratio(difference.ratio) if difference else MISSING
    value = per_s(cell, show.name, show.phase) if show.kind == "per_s" else cell.value(show.name)
    if show.kind == "error" or value is None:
        return scientific(value)
    return results.label(value) if show.kind == "fact" else number(value * show.scale)


def declared_table(results: Results, rows: Rows | FastestRows) -> Iterator[Table]:
    if isinstance(rows, FastestRows):
        yield _fastest_table(results, rows)
        return
    groups = list(results.grouped(results.where(rows.where), *rows.by).values())
    if not groups:
        return
    columns: list[Column[Cells]] = [variable(results, name) for name in rows.by]
    for variant in [None] if rows.variants is None else results.columns(rows.variants):
        for show in rows.show:
            header = f"{variant.name}: {show.header}" if variant else show.header
            columns.append(Column(header, partial(_text, results, show, variant)))
    if rows.ratio:
        columns.append(Column("CPU / GPU, least of each", partial(_cpu_over_gpu, results)))
    below = [*remarks(results), *([rows.below] if rows.below else [])]
    yield cells_table(results, results.text(rows.title), columns, groups, below)


def _fastest_table(results: Results, declared: FastestRows) -> Table:
    def with_x(cells: Cells) -> str:
        return least_text(cells, [results.label(cell.value(declared.x)) for cell in cells])

    def half_width(cells: Cells) -> str:
        one = least(cells)[0].estimate()
        return half_width_percent(one.median, one.low, one.high) if one else ""

    def slowest(cells: Cells) -> DeviceResult:
        return max(cells, key=lambda cell: cell.sample_s)

    def longer(cells: Cells) -> str:
        one = over_samples(least(cells)[0], slowest(cells))
        return ratio(one.ratio) + of_times({"times": one.ratio, "interval": one.interval}) if one else MISSING

    def from_where_on(cells: Cells) -> str:
        own, others = cells[0].value(declared.lines), [name for name in declared.by if name != declared.lines]
        if own == first:
            return MISSING
        compared = results.where({name: cells[0].value(name) for name in others})
        sides = {declared.lines: own}, {declared.lines: first}
        return crossing_text(crossing(ratios(results, compared, *sides, [declared.x])))

    first, *_ = results.grouped(results.cells, declared.lines) if declared.lines else [""]
    columns: list[Column[Cells]] = [
        *(variable(results, name) for name in declared.by),
        Column("fastest", lambda cells: with_x(least(cells))),
        Column("ms", lambda cells: milliseconds(least(cells)[0].median())),
        Column("±", half_width),
        Column("slowest", lambda cells: with_x([slowest(cells)])),
        Column("ms", lambda cells: milliseconds(slowest(cells).median())),
        Column("x as long", longer),
        *([Column(f"less time than {results.label(first)}", from_where_on)] if declared.lines else []),
    ]
    groups = results.grouped(results.cells, *declared.by).values() if declared.by else [results.cells]
    return without_empty_columns(
        cells_table(results, declared.title, columns, [*groups], statistic=declared.statistic)
    )


def _text(results: Results, show: Show, variant: Variant | None, cells: Cells) -> str:
    of = results.where(variant.where, cells) if variant else cells
    return shown(results, show, next(iter(of), None))


def _cpu_over_gpu(results: Results, cells: Cells) -> str:
    cpu, gpu = (fastest(results.where(device.where, cells)) for device in DEVICES)
    difference = gpu.difference(cpu) if cpu and gpu else None
    return number(difference.ratio) if difference else MISSING


def variable(results: Results, name: str) -> Column[Cells]:
    def text(cells: Cells) -> str:
        values = [value for cell in cells if (value := cell.value(name)) is not None]
        return results.label(values[0]) if values else MISSING

    return Column(results.label(name), text)


def cells_table(
    results: Results,
    title: str,
    columns: Sequence[Column[Cells]],
    groups: Sequence[Cells],
    below: Sequence[str] = (),
    statistic: str | None = None,
) -> Table:
    """A table of an experiment with a row for each of the groups of cells; medians of times unless said."""
    ids = [[cell.cell_id for cell in cells] for cells in groups]
    every = [cell.estimate(phase) for cell in results.cells for phase in cell.phases]
    methods = dict.fromkeys(estimate.method for estimate in every if estimate)
    above = statistic or (
        "Times are medians, rates are of mean times; 95% intervals of times: "
        f"{'; '.join(methods) or MISSING}. A dash: not measured, see below."
    )
    name = f"{results.experiment}: {title}" if title else results.experiment
    return table_of(name, above, columns, groups, remarks=below, cells=ids)


def left_out_table(results: Results) -> Iterator[Table]:
    def on(cells: Cells) -> str:
        """How the cell was computed: `GPU eager`."""
        return next((arm.name for arm in results.arms if results.where(arm.where, cells)), cells[0].device)

    without = [[cell] for cell in results.cells if cell.reason is not None]
    columns = [
        *(variable(results, name) for name in results.report.named),
        Column("on", on),
        Column("state", lambda cells: "failed" if cells[0].has_failed else "left out"),
        Column("reason", lambda cells: cells[0].reason or ""),
    ]
    if without:
        yield cells_table(results, "points without numbers, and why", columns, without, statistic=LEFT_OUT)


def remarks(results: Results) -> list[str]:
    """What stands below a table: devices that are missing, a busy machine, points that are not done."""
    lines = [*missing_remark(results)]
    loads = [float(load) for cell in results.cells if (load := cell.fact(LOAD)) is not None]
    if results.num_cores and loads and max(loads) > BUSY * results.num_cores:
        lines.append(
            f"The machine was busy: its load average reached {max(loads):.1f} on {results.num_cores} cores. "
            "Times on the CPU, above all with several threads, are those of a machine that is shared."
        )
    above = [mean[0] / cell.median() - 1 for cell in results.cells if (mean := cell.mean())]
    if long := sum(ratio > LONG_STEPS for ratio in above):
        lines.append(
            f"The mean step is over {LONG_STEPS:.0%} above the median in {long} of {len(above)} points (at "
            f"most {max(above):.0%}): times are those of a typical step, rates have the long ones in them."
        )
    if num := sum(not cell.is_over for cell in results.cells):
        total = len(results.cells)
        lines.append(f"{num} of {total} points are not measured yet, or not all of their repeats.")
    return lines


def missing_remark(results: Results) -> Iterator[str]:
    if "cuda" in results.missing:
        yield "This machine has no GPU that torch can use: the columns of the GPU are empty, or not there."

"""The tables that a device study declares, and texts of their cells."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

from scaling.analysis.cautions import LONG_STEPS
from scaling.device_studies.declaration import DEVICES, FastestRows, Rows, Show
from scaling.report.device.comparisons import crossing, crossing_text, least, least_text
from scaling.report.device.findings import ratios
from scaling.report.device.results import LEFT_OUT, DeviceResult, DeviceResults, fastest
from scaling.report.formats import (
    MISSING,
    half_width_percent,
    interval,
    milliseconds,
    number,
    of_times,
    ratio,
)
from scaling.report.tables import Table, without_empty_columns

Cells = Sequence[DeviceResult]  # a row: the cells of a point
LOAD = "load_average"  # the fact with the host's load before a cell (`scaling.study.kinds.device`)


def scientific(value: float | None) -> str:
    return MISSING if value is None else f"{value:.1e}"


def shown(results: DeviceResults, show: Show, cell: DeviceResult | None) -> str:
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
        difference = cell.difference(results.along(cell, show.name)[0])
        return ratio(difference.ratio) if difference else MISSING
    value = cell.per_s(show.name, show.phase) if show.kind == "per_s" else cell.value(show.name)
    if show.kind == "error" or value is None:
        return scientific(value)
    return results.label(value) if show.kind == "fact" else number(value * show.scale)


def table_by(
    results: DeviceResults,
    title: str,
    by: Sequence[str],
    groups: Iterable[Cells],
    headings: Sequence[str],
    texts: Callable[[Cells], Iterable[str]],
    statistic: str | None = None,
    remarks: Sequence[str] = (),
) -> Table:
    """A row for each of the groups of cells: the values of `by`, and further texts; medians by default."""

    def named(cells: Cells, name: str) -> str:
        values = [value for cell in cells if (value := cell.value(name)) is not None]
        return results.label(values[0]) if values else MISSING

    every = [cell.estimate(phase) for cell in results.cells for phase in cell.phases]
    methods = dict.fromkeys(estimate.method for estimate in every if estimate)
    above = statistic or (
        "Times are medians, rates are of mean times; 95% intervals of times: "
        f"{'; '.join(methods) or MISSING}. A dash: not measured, see below."
    )
    full_title = f"{results.experiment}: {title}" if title else results.experiment
    rows = [([*(named(cells, name) for name in by), *texts(cells)], cells) for cells in groups]
    ids = [[cell.cell_id for cell in cells] for _, cells in rows]
    shown_headings = [*map(results.label, by), *headings]
    return Table(full_title, above, shown_headings, [row for row, _ in rows], remarks, cells=ids)


def declared_table(results: DeviceResults, rows: Rows | FastestRows) -> Iterator[Table]:
    if isinstance(rows, FastestRows):
        yield _fastest_table(results, rows)
        return
    variants = [None] if rows.variants is None else results.columns(rows.variants)
    columns = [(variant, show) for variant in variants for show in rows.show]
    headings = [f"{variant.name}: {show.header}" if variant else show.header for variant, show in columns]

    def texts(cells: Cells) -> Iterator[str]:
        for variant, show in columns:
            of = results.where(variant.where, cells) if variant else cells
            yield shown(results, show, next(iter(of), None))
        if rows.ratio:
            cpu, gpu = (fastest(results.where(device.where, cells)) for device in DEVICES)
            difference = gpu.difference(cpu) if cpu and gpu else None
            yield number(difference.ratio) if difference else MISSING

    if groups := results.grouped(results.where(rows.where), *rows.by).values():
        headings += ["CPU / GPU, least of each"] if rows.ratio else []
        below = [*remarks(results), *filter(None, [rows.below])]
        title = results.text(rows.title)
        yield table_by(results, title, rows.by, groups, headings, texts, remarks=below)


def _fastest_table(results: DeviceResults, declared: FastestRows) -> Table:
    first, *_ = results.grouped(results.cells, declared.lines) if declared.lines else [""]
    others = [name for name in declared.by if name != declared.lines]

    def texts(cells: Cells) -> Iterator[str]:
        yield from fastest_and_slowest(results, declared.x, cells)
        own = cells[0].value(declared.lines) if declared.lines else first
        compared = results.where({name: cells[0].value(name) for name in others})
        sides = {declared.lines: own}, {declared.lines: first}
        times = {} if own == first else ratios(results, compared, *sides, [declared.x])
        yield MISSING if own == first else crossing_text(crossing(times))

    groups = results.grouped(results.cells, *declared.by).values()
    headings = ["fastest", "ms", "±", "slowest", "ms", "x as long", f"less time than {results.label(first)}"]
    table = table_by(results, declared.title, declared.by, groups, headings, texts, declared.statistic)
    return without_empty_columns(table)


def fastest_and_slowest(results: DeviceResults, x: str, cells: Cells) -> Iterator[str]:
    best, slowest = least(cells), max(cells, key=lambda cell: cell.sample_s)
    *labels, slowest_label = (results.label(cell.value(x)) for cell in (*best, slowest))
    one, longer = best[0].estimate(), best[0].over_samples(slowest)
    yield from (least_text(best, labels), milliseconds(best[0].median()))
    yield half_width_percent(one.median, one.low, one.high) if one else ""
    yield from (slowest_label, milliseconds(slowest.median()))
    width = of_times({"times": longer.ratio, "interval": longer.interval}) if longer else ""
    yield ratio(longer.ratio if longer else None) + width


def left_out_table(results: DeviceResults) -> Iterator[Table]:
    def texts(cells: Cells) -> Iterator[str]:
        (cell,) = cells
        yield next((arm.name for arm in results.arms if results.where(arm.where, cells)), cell.device)
        yield from ("left out" if cell.fact(LEFT_OUT) else "failed", cell.reason or "")

    if without := [[cell] for cell in results.cells if cell.reason is not None]:
        title, headings = "points without numbers, and why", ["on", "state", "reason"]
        what = "Left out: the fewest samples would pass the time limit of a cell (limit_s), it does not fit, "
        what += "or as the reason says."
        yield table_by(results, title, results.report.named, without, headings, texts, what)


def remarks(results: DeviceResults) -> list[str]:
    lines = [*missing_remark(results)]
    loads = [float(load) for cell in results.cells if (load := cell.fact(LOAD)) is not None]
    if results.num_cores and loads and max(loads) > 1.3 * results.num_cores:  # more than the study's own
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


def missing_remark(results: DeviceResults) -> Iterator[str]:
    if "cuda" in results.missing:
        yield "This machine has no GPU that torch can use: the columns of the GPU are empty, or not there."

"""What the reports of experiments have in common: names and looks of devices, tables, texts."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import cycle
from typing import TypeVar, cast

from scaling.report.device.results import STEP, DeviceResult, Results
from scaling.report.figures.style import BLACK, BLUE, GREEN, ORANGE, PURPLE, SKY_BLUE, VERMILLION, LineStyle
from scaling.report.formats import MISSING, interval, milliseconds, number
from scaling.report.tables import Column, Table, table_of

Item = TypeVar("Item")
Cells = Sequence[DeviceResult]
"""A row of most tables: the cells of a point."""

DEVICES = {"cpu": "CPU", "cuda": "GPU"}

CPU_COLOURS = (SKY_BLUE, BLUE, GREEN, BLACK)
GPU_LOOKS = {"eager": (ORANGE, "s"), "captured": (VERMILLION, "D")}
CPU_MARKERS = ("o", "^", "v", "P")
OTHER_COLOURS = (BLACK, BLUE, ORANGE, GREEN, VERMILLION, SKY_BLUE, PURPLE)
OTHER_MARKERS = ("o", "s", "^", "D", "v", "P", "X")


LOAD = "load_average"
"""The fact with the host's load before a cell (`scaling.study.kinds.device`)."""

BUSY = 1.3
"""A load of so many processes a core is more than the study's own."""

EMPTY_COLUMNS = "the columns of the GPU are empty"
NO_ROWS = "there are no rows and no lines of the GPU"
"""Where the devices of a table are rows."""


@dataclass(frozen=True)
class Variant:
    """One way to compute a point: a device with its threads, and how the step is launched there.

    Attributes:
        device, step: as cells have them.
        threads: of the CPU; None on a GPU, and for any number.
        colour, marker: in every figure of the experiment.
        part: a further variable of its cells, and its value.
        dashes: of its line; what is dashed has hollow markers.
        label: its name where that does not follow from the others.
    """

    device: str
    step: str
    threads: int | None
    colour: str
    marker: str
    part: tuple[str, str] | None = None
    label: str = ""
    dashes: LineStyle = "-"

    @property
    def name(self) -> str:
        """`CPU, 4 threads`, `GPU eager`."""
        if self.label:
            return self.label
        if self.device == "cpu":
            return f"CPU, {self.threads} thread{'s' * (self.threads != 1)}"
        return f"GPU {self.step}"

    def holds(self, cell: DeviceResult) -> bool:
        """Whether the cell was computed so."""
        return (
            cell.device == self.device
            and cell.point.get("step", "eager") == self.step
            and self.threads in (None, cell.threads)
            and (self.part is None or cell.point.get(self.part[0]) == self.part[1])
        )

    def of(self, cells: Iterable[DeviceResult]) -> list[DeviceResult]:
        """Those of the cells that were computed so."""
        return [cell for cell in cells if self.holds(cell)]


def arms_of(results: Results) -> list[Variant]:
    """All that the experiment's cells were computed by: CPU threads ascending, then the GPU."""
    looks = zip(cycle(CPU_COLOURS), cycle(CPU_MARKERS), strict=False)
    threads = sorted({cell.threads for cell in results.all("cpu")})
    cpu = [Variant("cpu", "eager", count, *look) for count, look in zip(threads, looks, strict=False)]
    used = {cell.point.get("step", "eager") for cell in results.all("cuda")}
    return [*cpu, *(Variant("cuda", step, None, *look) for step, look in GPU_LOOKS.items() if step in used)]


def gpu_arms(results: Results) -> list[Variant]:
    """Those of the GPU."""
    return [arm for arm in arms_of(results) if arm.device == "cuda"]


def time_cell(cell: DeviceResult | None, phase: str = STEP) -> str:
    """A table's text: milliseconds with their interval's digits."""
    estimate = cell.estimate(phase) if cell else None
    if estimate is None:
        return MISSING
    width = None if estimate.low is None or estimate.high is None else estimate.high - estimate.low
    return milliseconds(estimate.median, width)


def interval_cell(cell: DeviceResult | None, phase: str = STEP) -> str:
    """A table's text: the 95% interval in milliseconds."""
    estimate = cell.estimate(phase) if cell else None
    return MISSING if estimate is None else interval(estimate.low, estimate.high)


def time_and_interval_cell(cell: DeviceResult | None) -> str:
    """A table's text: `0.903 (0.880 to 0.925)`, in milliseconds."""
    ends = interval_cell(cell)
    return time_cell(cell) if ends == MISSING else f"{time_cell(cell)} ({ends})"


def median_text(results: Results) -> str:
    """What a number of the experiment is, for above its tables."""
    every = [cell.estimate(phase) for cell in results.cells for phase in cell.phases]
    methods = dict.fromkeys(estimate.method for estimate in every if estimate)
    return f"Medians; 95% intervals: {'; '.join(methods) or MISSING}. A dash: not measured, see below."


def columns_of(results: Results) -> list[Variant]:
    """The arms that a table has columns for: those of the GPU too where the study asked for one in vain."""
    missing = GPU_LOOKS if "cuda" in results.missing else {}
    return [*arms_of(results), *(Variant("cuda", step, None, *look) for step, look in missing.items())]


def device_table(
    results: Results,
    title: str,
    columns: Sequence[Column[Item]],
    items: Iterable[Item],
    *,
    cells_of: Callable[[Item], Iterable[DeviceResult]] | None = lambda item: cast("Cells", item),
    statistic: str | None = None,
    remarks: Sequence[str] = (),
) -> Table:
    """A table of an experiment, a row an item.

    Args:
        results: of the experiment.
        title: without the experiment's name.
        columns: what each has of an item.
        items: in the order of the rows.
        cells_of: the cells that an item is made of; by default the item is these cells; None for no cells.
        statistic: what its values are; without it, medians of step times.
        remarks: what stands below it.
    """
    rows = list(items)
    return table_of(
        f"{results.experiment}{title}",
        median_text(results) if statistic is None else statistic,
        columns,
        rows,
        remarks=remarks,
        cells=[[cell.cell_id for cell in cells_of(item)] for item in rows] if cells_of else [],
    )


def variable(name: str, header: str | None = None, otherwise: str = MISSING) -> Column[Cells]:
    """The column of a variable or a fact: of the first cell that has one."""

    def text(cells: Cells) -> str:
        values = [value for cell in cells if (value := cell.value(name)) is not None]
        return plain(values[0]) if values else otherwise

    return Column(header or name, text)


def measured(
    arm: Variant | None = None, step: str = "ms a step", rate: str = "samples/s"
) -> list[Column[Cells]]:
    """Time of a step, its interval and the rate, of the arm's cell or the only one."""

    def column(header: str, text: Callable[[DeviceResult | None], str]) -> Column[Cells]:
        return Column(
            f"{arm.name}: {header}" if arm else header,
            lambda cells: text(next(iter(arm.of(cells) if arm else cells), None)),
        )

    return [
        column(step, time_cell),
        column("95% interval, ms", interval_cell),
        column(rate, lambda cell: MISSING if cell is None else number(cell.samples_per_s)),
    ]


def scientific(value: float | None) -> str:
    """A table's text: `1.2e-07`."""
    return MISSING if value is None else f"{value:.1e}"


def left_out_table(results: Results, named: Sequence[str]) -> Iterator[Table]:
    """Which points, by the variables that name them, have no numbers, and why; nothing where all have."""
    without, arms = [[cell] for cell in results.cells if cell.reason is not None], arms_of(results)
    if not without:
        return
    columns: list[Column[Cells]] = [
        *map(variable, named),
        Column("on", lambda cells: next((a.name for a in arms if a.holds(cells[0])), cells[0].device)),
        Column("state", lambda cells: "failed" if cells[0].has_failed else "left out"),
        Column("reason", lambda cells: cells[0].reason or ""),
    ]
    yield device_table(
        results,
        ": points without numbers, and why",
        columns,
        without,
        statistic="Left out: the fewest samples would pass the time limit of a cell (limit_s), it does not "
        "fit, or as the reason says.",
    )


def plain(value: object) -> str:
    """A table's text of a variable: numbers of four digits and more with commas."""
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)


def remarks(results: Results, empty: str = EMPTY_COLUMNS) -> list[str]:
    """What stands below a table: devices that are missing, a busy machine, points that are not done."""
    lines = [*missing_remark(results, empty)]
    loads = [float(load) for cell in results.cells if (load := cell.fact(LOAD)) is not None]
    if results.num_cores and loads and max(loads) > BUSY * results.num_cores:
        lines.append(
            f"The machine was busy: its load average reached {max(loads):.1f} on {results.num_cores} cores. "
            "Times on the CPU, above all with several threads, are those of a machine that is shared."
        )
    if num := sum(not cell.is_over for cell in results.cells):
        total = len(results.cells)
        lines.append(f"{num} of {total} points are not measured yet, or not all of their repeats.")
    return lines


def missing_remark(results: Results, empty: str = EMPTY_COLUMNS) -> Iterator[str]:
    """That there was no GPU, if the study asked for one, and what is empty therefore."""
    if "cuda" in results.missing:
        yield f"This machine has no GPU that torch can use: {empty}."


def no_gpu(results: Results, empty: str = EMPTY_COLUMNS) -> str:
    """Why nothing is known of a GPU."""
    return " ".join(missing_remark(results, empty)) or "The study did not ask for a GPU."

"""What the reports of experiments have in common: names and looks of devices, lines of figures, texts."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

from scaling.analysis.formats import MISSING, interval, milliseconds, number
from scaling.measure.statistics import Estimate
from scaling.report.device.crossover import overlap
from scaling.report.device.results import DeviceResult, Results
from scaling.report.figures.parts import add_tip
from scaling.report.figures.style import BLACK, BLUE, GREEN, ORANGE, PURPLE, SKY_BLUE, VERMILLION
from scaling.report.tables import Table

DEVICES = {"cpu": "CPU", "cuda": "GPU"}

CPU_COLOURS = (SKY_BLUE, BLUE, GREEN, BLACK)
GPU_LOOKS = {"eager": (ORANGE, "s"), "captured": (VERMILLION, "D")}
CPU_MARKERS = ("o", "^", "v", "P")
OTHER_COLOURS = (BLACK, BLUE, ORANGE, GREEN, VERMILLION, SKY_BLUE, PURPLE)
OTHER_MARKERS = ("o", "s", "^", "D", "v", "P", "X")


@dataclass(frozen=True)
class Arm:
    """One way to compute a point: a device with its threads, and how the step is launched there.

    Attributes:
        device, step: as cells have them.
        threads: of the CPU; None on a GPU.
        colour, marker: in every figure of the experiment.
    """

    device: str
    step: str
    threads: int | None
    colour: str
    marker: str

    @property
    def name(self) -> str:
        """`CPU, 4 threads`, `GPU eager`."""
        if self.device == "cpu":
            return f"CPU, {self.threads} thread{'s' * (self.threads != 1)}"
        return f"GPU {self.step}"

    def holds(self, cell: DeviceResult) -> bool:
        """Whether the cell was computed so."""
        return (
            cell.device == self.device
            and cell.point.get("step", "eager") == self.step
            and self.threads in (None, cell.threads)
        )


def arms_of(results: Results) -> list[Arm]:
    """All that the experiment's cells were computed by: CPU threads ascending, then the GPU."""
    threads = sorted({cell.threads for cell in results.all("cpu")})
    looks = _cpu_looks(len(threads))
    cpu = [Arm("cpu", "eager", count, *look) for count, look in zip(threads, looks, strict=True)]
    used = {cell.point.get("step", "eager") for cell in results.all("cuda")}
    gpu = [Arm("cuda", step, None, *look) for step, look in GPU_LOOKS.items() if step in used]
    return [*cpu, *gpu]


def _cpu_looks(count: int) -> list[tuple[str, str]]:
    return [
        (CPU_COLOURS[index % len(CPU_COLOURS)], CPU_MARKERS[index % len(CPU_MARKERS)])
        for index in range(count)
    ]


@dataclass(frozen=True)
class Line:
    """Values over an axis, with their intervals, as a figure shows them.

    Attributes:
        label, colour, marker: of the line.
        at, values: of each point; NaN, where the line is broken, for one that has no number.
        low, high: ends of the interval; None where there is none.
    """

    label: str
    colour: str
    marker: str
    at: list[float]
    values: list[float]
    low: list[float | None]
    high: list[float | None]

    @property
    def is_empty(self) -> bool:
        """Whether no point has a number."""
        return all(math.isnan(value) for value in self.values)


def time_line(arm: Arm, cells: Iterable[tuple[float, DeviceResult]], scale: float = 1e3) -> Line:
    """Times of a step (in milliseconds) over an axis; broken at cells without one."""
    pairs = sorted(((at, cell.estimate()) for at, cell in cells), key=lambda pair: pair[0])
    return estimate_line(arm.name, arm.colour, arm.marker, pairs, scale)


def estimate_line(
    label: str, colour: str, marker: str, pairs: Sequence[tuple[float, Estimate | None]], scale: float = 1e3
) -> Line:
    """Estimates times `scale` over an axis, in its order; broken where there is none."""
    return Line(
        label,
        colour,
        marker,
        [float(at) for at, _ in pairs],
        [math.nan if one is None else scale * one.median for _, one in pairs],
        [None if one is None or one.low is None else scale * one.low for _, one in pairs],
        [None if one is None or one.high is None else scale * one.high for _, one in pairs],
    )


def draw_lines(axes: Axes, lines: Sequence[Line], unit: str) -> None:
    """All lines with markers, intervals as bars, and a tip a point."""
    for line in lines:
        axes.plot(line.at, line.values, color=line.colour, marker=line.marker, linewidth=1.2, markersize=4)
        for at, value, low, high in zip(line.at, line.values, line.low, line.high, strict=True):
            if math.isnan(value):
                continue
            if low is not None and high is not None and low > 0:
                axes.plot([at, at], [low, high], color=line.colour, linewidth=0.9)
            add_tip(axes, at, value, f"{line.label}, {at:,g}: {value:.3g} {unit}")


def handles(lines: Iterable[Line | Arm]) -> list[Line2D]:
    """Entries of a legend, each name once."""
    found: dict[str, Line2D] = {}
    for one in lines:
        label = one.label if isinstance(one, Line) else one.name
        found.setdefault(
            label, Line2D([], [], color=one.colour, marker=one.marker, markersize=4, label=label)
        )
    return list(found.values())


def log_axes(axes: Axes, x: str, y: str) -> None:
    """Both logarithmic, ticks at powers of ten and numbers without exponents as far as they are short.

    What is drawn is to be drawn before: an axis of less than two powers of ten has ticks at 2 and 5, too.
    """
    axes.set_xscale("log")
    axes.set_yscale("log")
    for axis, (low, high) in ((axes.xaxis, axes.get_xlim()), (axes.yaxis, axes.get_ylim())):
        is_short = low > 0 and high / low < 100
        axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0) if is_short else (1.0,), numticks=7))
        axis.set_minor_locator(NullLocator())
        axis.set_major_formatter(FuncFormatter(lambda value, _: short(value)))
    axes.set_xlabel(x)
    axes.set_ylabel(y)


def short(value: float) -> str:
    """`0.01`, `100`, `1k`, `1M`."""
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= size:
            return f"{value / size:g}{letter}"
    return f"{value:g}"


def time_cell(estimate: Estimate | None) -> str:
    """A table's text: milliseconds with their interval's digits."""
    if estimate is None:
        return MISSING
    width = None if estimate.low is None or estimate.high is None else estimate.high - estimate.low
    return milliseconds(estimate.median, width)


def time_and_interval_cell(estimate: Estimate | None) -> str:
    """A table's text: `0.903 (0.880 to 0.925)`, in milliseconds."""
    if estimate is None or estimate.low is None or estimate.high is None:
        return time_cell(estimate)
    return f"{time_cell(estimate)} ({interval(estimate.low, estimate.high)})"


def interval_cell(estimate: Estimate | None) -> str:
    """A table's text: the 95% interval in milliseconds."""
    return MISSING if estimate is None else interval(estimate.low, estimate.high)


def rate_cell(cell: DeviceResult | None) -> str:
    """A table's text: samples a second."""
    return MISSING if cell is None else number(cell.samples_per_s)


def statistic(results: Results) -> str:
    """What a number of the experiment is, for above its tables."""
    methods = dict.fromkeys(
        estimate.method
        for cell in results.cells
        for phase in cell.phases
        if (estimate := cell.estimate(phase))
    )
    return f"Medians; 95% intervals: {'; '.join(methods) or MISSING}. A dash: not measured, see below."


def one_launch(results: Results) -> str:
    """What intervals of a single launch do not tell, as the end of a sentence; "" with several."""
    return "" if results.num_launches > 1 else " (intervals within one launch: another may differ by more)"


def columns_of(results: Results) -> list[Arm]:
    """The arms that a table has columns for: those of the GPU too where the study asked for one in vain."""
    missing = GPU_LOOKS if "cuda" in results.missing else {}
    return [*arms_of(results), *(Arm("cuda", step, None, *look) for step, look in missing.items())]


def left_out_table(results: Results, named: Sequence[str]) -> Iterator[Table]:
    """Which points have no numbers, and why; nothing where all have.

    Args:
        results: of the experiment.
        named: the variables that name a point.
    """
    without = [cell for cell in results.cells if cell.reason is not None]
    if not without:
        return
    rows = []
    for cell in without:
        failed = any(record.state == "failed" for record in cell.records)
        arm = next((arm.name for arm in arms_of(results) if arm.holds(cell)), cell.device)
        state = "failed" if failed else "left out"
        rows.append(
            [*(plain(cell.point.get(name, MISSING)) for name in named), arm, state, cell.reason or ""]
        )
    yield Table(
        f"{results.experiment}: points without numbers, and why",
        "Left out: the fewest samples would pass the time limit of a cell (limit_s), it does not fit, or as "
        "the reason says.",
        [*named, "on", "state", "reason"],
        rows,
        cells=[[cell.cell_id] for cell in without],
        section="devices",
    )


def plain(value: object) -> str:
    """A table's text of a variable: numbers of four digits and more with commas."""
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)


def times_of(slow: Estimate, fast: Estimate) -> str:
    """`3.2 times`: how often `fast` goes into `slow`, and whether their intervals overlap."""
    unsure = " (their intervals overlap)" if overlap(slow, fast) else ""
    return f"{times(slow.median / fast.median)}{unsure}"


def range_of(pairs: Sequence[tuple[Estimate, Estimate]]) -> str:
    """`2.0 to 4.0 times`: how often the second goes into the first, and whether intervals overlap."""
    ratios = [slow.median / fast.median for slow, fast in pairs]
    low, high = times(min(ratios)), times(max(ratios))
    told = high if low == high else f"{low.removesuffix(' times')} to {high}"
    num = sum(overlap(slow, fast) for slow, fast in pairs)
    if not num:
        return told
    return f"{told} (intervals overlap{f' for {num} of {len(pairs)}' if len(pairs) > 1 else ''})"


def times(ratio: float) -> str:
    """`0.32 times`, `3.2 times`, `41 times`."""
    digits = 0 if ratio >= 9.95 else 1 if ratio >= 0.995 else 2
    return f"{ratio:,.{digits}f} times"

"""When is a GPU worth it for a small network? Break-even widths, depth, inputs, recurrence."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from scaling.analysis.decisions import Difference
from scaling.report.device.common import (
    Cells,
    Variant,
    columns_of,
    device_table,
    gpu_arms,
    median_text,
    missing_remark,
    plain,
    remarks,
    time_and_interval_cell,
    variable,
)
from scaling.report.device.comparisons import (
    Crossing,
    crossing,
    crossing_text,
    finding,
    rounded,
    seen,
    times,
    times_of,
)
from scaling.report.device.declared import DeviceReport, Drawing, Lines
from scaling.report.device.drawing import Panel, handle, log_axes, new_figure
from scaling.report.device.results import DeviceResult, Results, fastest, grouped, paired
from scaling.report.figures.parts import add_tip, legend_below
from scaling.report.figures.style import BLUE, GREY, VERMILLION
from scaling.report.formats import MISSING, listed, number
from scaling.report.tables import Column, Table

VARIABLES = ("network", "batch", "depth", "inputs", "width")
"""That name a network."""

Differences = Mapping[tuple[int, int], Difference | None]
Crossings = Mapping[int, Crossing | None]

GPU_WINS, CPU_WINS = VERMILLION, BLUE
MARGIN = 1.9
"""Room beyond the outermost points, as a factor."""


def grid(results: Results) -> list[DeviceResult]:
    """The cells that vary width and batch."""
    base = results.parameters
    return results.all(network="mlp", equal_parameters=0, inputs=base["inputs"], depth=base["depth"])


def sweep(results: Results, axis: str) -> list[DeviceResult]:
    """The cells that vary one axis, the others as at the base point."""
    return results.all(network="mlp", equal_parameters=0, **_base_point(results, axis))


def _base_point(results: Results, axis: str) -> dict[str, Any]:
    """The variables of the base point, without the axis."""
    return {name: results.parameters[name] for name in ("inputs", "depth", "width", "batch") if name != axis}


def family(results: Results) -> list[DeviceResult]:
    """Recurrent networks, and the perceptrons that they are compared with."""
    return [cell for cell in results.cells if cell.point["equal_parameters"]]


def _base_text(results: Results) -> str:
    """The variables that the grid of widths and batches keeps."""
    return f"{results.parameters['depth']} hidden layers and {results.parameters['inputs']} inputs"


def _fastest_threads(cells: Iterable[DeviceResult]) -> DeviceResult | None:
    """The CPU's fastest; None where it has none, or a number of threads is not measured yet."""
    on_cpu = [cell for cell in cells if cell.device == "cpu"]
    return fastest(on_cpu) if all(cell.is_over for cell in on_cpu) else None


def cpu_over_gpu(cells: Iterable[DeviceResult], gpu: Variant, *names: str) -> dict[Any, Difference | None]:
    """Values of those variables -> time on the CPU over that on the GPU; None where one was not measured."""
    times = {
        key: (fastest(gpu.of(same)), _fastest_threads(same)) for key, same in grouped(cells, *names).items()
    }
    return {key: fast.difference(slow) if fast and slow else None for key, (fast, slow) in times.items()}


def width_crossings(results: Results, gpu: Variant) -> dict[int, Crossing | None]:
    """Batch -> from which width on the GPU takes less time."""
    return {
        batch: crossing(cpu_over_gpu(cells, gpu, "width"))
        for batch, cells in grouped(grid(results), "batch").items()
    }


def thread_crossing(results: Results, batch: int, counts: Sequence[int]) -> Crossing | None:
    """From which width on the most threads take less time than the fewest."""
    cells = [cell for cell in grid(results) if cell.point["batch"] == batch and cell.device == "cpu"]
    few, many = ([cell for cell in cells if cell.threads == count] for count in (counts[0], counts[-1]))
    return crossing(paired(many, few, "width"))


SWEPT = {"depth": "hidden layers", "inputs": "input features"}
KINDS = {"lstm": "recurrent (LSTM)", "mlp": "feed-forward (perceptron)"}
TIMES = (
    "Milliseconds of a training step over the width of the hidden layers, a panel for each batch (column "
    "iteration_s, with its 95% interval as a bar). All axes are logarithmic. A line is broken where a width "
    "has no number."
)
BREAK_EVEN = (
    "Each number is the time of a step on the CPU, with the number of threads of least time there, over "
    "that on the GPU (column iteration_s): above 1 the GPU takes less. The line is the width from which on "
    "it does at each batch, interpolated between two measured widths; the band is its 95% interval, and ends "
    "at the plot's edge where it is open; one launch gives none. A batch at which it does at every width has "
    "none. A cross: no number for one of the two, or not every number of threads measured yet."
)
SWEEPS = (
    "Milliseconds of a training step over the number of hidden layers and of input features (column "
    "iteration_s, with its 95% interval as a bar), other variables as in the title."
)
FAMILIES = (
    "Milliseconds of a training step over trainable parameters (columns parameters and iteration_s): a "
    "recurrent network over a sequence, and a perceptron of as many parameters that takes the whole "
    "sequence at once."
)


def _is_swept(cells: list[DeviceResult], axis: str) -> bool:
    """Whether they have several values of it."""
    return len(grouped(cells, axis)) > 1


def _grid_title(results: Results) -> str:
    return (
        f"perceptrons of {results.parameters['depth']} hidden layers, {results.parameters['inputs']} inputs"
    )


def _sweep_title(results: Results) -> str:
    base = results.parameters
    return f"width {base['width']}, batch {base['batch']}, else {_base_text(results)}"


def _sweep_panels(results: Results) -> list[Panel]:
    cells = {axis: sweep(results, axis) for axis in SWEPT}
    return [Panel(cells[x], x, SWEPT[x], doubles=x == "depth") for x in SWEPT if _is_swept(cells[x], x)]


def _kind_panels(results: Results) -> list[Panel]:
    kinds = grouped(family(results), "network")
    return [Panel(kinds.get(kind, []), "parameters", title=label) for kind, label in KINDS.items()]


def _draw_break_even(results: Results, title: str) -> Figure | None:
    """Widths over batches, a panel for each way of launching the step on the GPU."""
    gpus = gpu_arms(results)
    if not gpus:
        return None
    figure, grids = new_figure(title, 0.9 + 3.4 * len(gpus), len(gpus))
    crossings = [width_crossings(results, arm) for arm in gpus]
    for axes, arm, widths in zip(grids[:, 0], gpus, crossings, strict=True):
        _draw(axes, cpu_over_gpu(grid(results), arm, "batch", "width"), widths)
        axes.set_title(f"{arm.name} against the CPU threads of least time", loc="left")
    has_interval = any(c and c.has_interval for widths in crossings for c in widths.values())
    band = [Patch(color="#999999", alpha=0.35, label="its 95% interval")] if has_interval else []
    line = handle("break-even width", color="black", marker="D")
    gpu = Patch(color=GPU_WINS, label="CPU / GPU: less time on the GPU")
    legend_below(figure, [line, *band, gpu, Patch(color=CPU_WINS, label="less on the CPU")])
    return figure


def _draw(axes: Axes, differences: Differences, crossings: Crossings) -> None:
    batches, widths = sorted({b for b, _ in differences}), sorted({w for _, w in differences})
    log_axes(axes, "batch", "width of the hidden layers")
    axes.set_xlim(batches[0] / MARGIN, batches[-1] * MARGIN**2)
    axes.set_ylim(widths[0] / MARGIN, widths[-1] * MARGIN)
    axes.set_xticks(batches, labels=[f"{batch:,}" for batch in batches])
    axes.set_yticks(widths, labels=[f"{width:,}" for width in widths])
    for (batch, width), difference in differences.items():
        _draw_ratio(axes, batch, width, difference.ratio if difference else None)
    _draw_line(axes, crossings, widths)


def _draw_ratio(axes: Axes, batch: int, width: int, ratio: float | None) -> None:
    if ratio is None:
        axes.plot([batch], [width], marker="x", color=GREY, markersize=4)
        return
    text = times(ratio).removesuffix(" times")
    colour = GPU_WINS if ratio > 1 else CPU_WINS
    axes.plot([batch], [width], marker="o", color=colour, markersize=2.5)
    offset: Any = {"textcoords": "offset points", "xytext": (6, 0), "verticalalignment": "center"}
    axes.annotate(text, (batch, width), color=colour, fontsize=8, fontweight="bold", zorder=4, **offset)
    add_tip(axes, batch, width, f"batch {batch:,}, width {width:,}: CPU time / GPU time = {ratio:.3g}")


def _draw_line(axes: Axes, crossings: Crossings, widths: Sequence[int]) -> None:
    """The line through the batches that have a break-even width, and a band where it has an interval."""
    floor, ceiling = widths[0] / MARGIN, widths[-1] * MARGIN
    known = [(batch, c.at, c) for batch, c in sorted(crossings.items()) if c and c.at is not None]
    look: dict[str, Any] = {"color": "black", "zorder": 3}
    batches, ats, _ = zip(*known, strict=True) if known else ((), (), ())
    axes.plot(batches, ats, marker="D", markersize=4, linewidth=1.2, **look)
    banded: dict[int, tuple[float, float]] = {}
    for batch, at, width in known:
        add_tip(axes, batch, at, f"batch {batch:,}: break-even width {rounded(at)}{width.bounds}")
        if width.has_interval:
            banded[batch] = (
                floor if width.low is None else width.low,
                ceiling if width.high is None else width.high,
            )
            axes.plot([batch, batch], banded[batch], linewidth=0.9, **look)
    low, high = ([ends[index] for ends in banded.values()] for index in (0, 1))
    axes.fill_between([*banded], low, high, color="#999999", alpha=0.35, linewidth=0)


PLOTS = (
    Drawing(
        "break-even", BREAK_EVEN, lambda results: f"GPU over CPU, {_grid_title(results)}", _draw_break_even
    ),
    Lines(
        "widths", TIMES, lambda results: f"time over width, {_grid_title(results)}",
        lambda results: [
            Panel(same, "width", title=f"batch {batch:,}")
            for batch, same in grouped(grid(results), "batch").items()
        ],
        row_height=2.1, share={"sharex": True},
    ),
    Lines("sweeps", SWEEPS, _sweep_title, _sweep_panels, rows=1),
    Lines(
        "recurrent", FAMILIES,
        lambda results: f"recurrent and feed-forward networks, batch {results.parameters['batch']}",
        _kind_panels, share={"sharey": True},
    ),
)  # fmt: skip


def _rows(results: Results) -> Iterator[Table]:
    """Break-even widths, and every point in a row."""
    if gpus := gpu_arms(results):
        columns = [Column[int]("batch", plain), *(_crossing_column(results, arm) for arm in gpus)]
        yield device_table(
            results,
            ": from which width on the GPU takes less time than the CPU",
            columns,
            grouped(grid(results), "batch"),
            cells_of=None,
            statistic="Break-even width with its 95% interval, against the CPU threads of least time at "
            f"each width, interpolated between measured widths. {median_text(results)}",
        )
    perceptrons = [cell for cell in results.cells if not cell.point["equal_parameters"]]
    yield from _times_table(results, ": milliseconds of a training step, perceptrons", perceptrons)
    title = ": recurrent against feed-forward at equal parameters, ms a step"
    yield from _times_table(results, title, family(results))


def _crossing_column(results: Results, gpu: Variant) -> Column[int]:
    crossings = width_crossings(results, gpu)
    return Column(gpu.name, lambda batch: crossing_text(crossings[batch], "width"))


def _times_table(results: Results, title: str, cells: Sequence[DeviceResult]) -> Iterator[Table]:
    def of(arm: Variant) -> Column[Cells]:
        return Column(arm.name, lambda same_point: time_and_interval_cell(fastest(arm.of(same_point))))

    columns = [
        *(variable(name, {"depth": "layers"}.get(name)) for name in VARIABLES),
        variable("parameters", otherwise="0"),
        *map(of, columns_of(results)),
        Column("CPU / GPU, least of each", _cpu_over_gpu),
    ]
    if cells:
        rows = grouped(cells, *VARIABLES).values()
        yield device_table(results, title, columns, rows, remarks=remarks(results))


def _cpu_over_gpu(cells: Cells) -> str:
    cpu, gpu = _fastest_threads(cells), fastest(cells, "cuda")
    difference = gpu.difference(cpu) if cpu and gpu else None
    return number(difference.ratio) if difference else MISSING


def _findings(results: Results) -> Iterator[str]:
    """Recurrent against feed-forward; then depth and inputs, or threads where there is no GPU."""
    yield from _recurrent_sentences(results)
    if gpus := gpu_arms(results):
        yield from _sweep_sentences(results, gpus)
    else:
        yield from _thread_sentences(results)


def _headline(results: Results) -> str:
    """From which width on the GPU takes less at every batch, of each kind of step; "" where it does not."""
    clauses = []
    for gpu in gpu_arms(results):
        every = [*width_crossings(results, gpu).values()]
        if any(width is None or width.wins == "nowhere" or not width.is_decided for width in every):
            return ""
        widths = [width.at for width in every if width and width.at is not None]
        where = f"from width {rounded(max(widths))} on" if widths else "at every measured width"
        clauses.append(f"with {gpu.step} steps {where}")
    return f"At every measured batch, {' and '.join(clauses)}." if clauses else ""


def _answer(results: Results) -> str:
    """From which width on the GPU wins."""
    gpus = gpu_arms(results)
    if not gpus:
        return " ".join(["That is not answered here.", *missing_remark(results)])
    steps = " ".join(f"{arm.step.capitalize()}, {_ahead(results, arm)}." for arm in gpus)
    widths = grouped(grid(results), "width")
    return (
        f"For perceptrons of {_base_text(results)}, a training step on the GPU takes less time than one on "
        f"the CPU with the threads of least time from these widths on{seen(results)}. {steps} Between "
        f"measured widths ({', '.join(f'{width:,}' for width in widths)}) the break-even is interpolated."
    )


def _ahead(results: Results, gpu: Variant) -> str:
    """`at batch 1 from width 2,100 [1,900, 2,300] on; at batch 64 at every measured width (10 to 8,192)`."""
    groups: dict[str, list[str]] = {}
    for batch, width in width_crossings(results, gpu).items():
        groups.setdefault(crossing_text(width, "width"), []).append(f"{batch:,}")
    return "; ".join(f"at batch {listed(batches)} {text}" for text, batches in groups.items())


def _sweep_sentences(results: Results, gpus: Sequence[Variant]) -> Iterator[str]:
    for axis, label in SWEPT.items():
        base, cells, clauses = _base_point(results, axis), sweep(results, axis), []
        if not _is_swept(cells, axis):
            continue
        for arm in gpus:
            break_even = crossing(cpu_over_gpu(cells, arm, axis))
            if break_even is not None and break_even.at is not None:
                clauses.append(f"{arm.name} from {rounded(break_even.at)} {label}{break_even.bounds} on")
            else:
                clauses.append(f"{arm.name} {crossing_text(break_even)}")
        where = ", ".join(f"{name} {value:,}" for name, value in base.items())
        yield from finding(results, f"At {where}, the GPU takes less time: ", clauses)


def _recurrent_sentences(results: Results) -> Iterator[str]:
    """How much longer a recurrent network takes than a perceptron of as many parameters, on each device."""
    clauses = []
    for device, name in (("cpu", "the CPU"), ("cuda", "the GPU")):
        ratios = []
        same_point = [cell for cell in family(results) if cell.device == device]
        for size, cells in grouped(same_point, "equal_parameters").items():
            lstm, mlp = (fastest(c for c in cells if c.point["network"] == kind) for kind in ("lstm", "mlp"))
            difference = mlp.difference(lstm) if lstm and mlp else None
            if difference and all(cell.is_over for cell in cells):
                ratios.append(f"{times_of([difference])} at {size:,}")
        if ratios:
            clauses.append(f"on {name} {listed(ratios)}")
    before = "How much longer a step of the recurrent network takes than one of a perceptron with as many"
    yield from finding(
        results, f"{before} parameters: ", clauses, " parameters (each with its least time there)"
    )


def _thread_sentences(results: Results) -> Iterator[str]:
    """What CPU alone answers: from which width on all threads pay."""
    counts = [*grouped(results.all("cpu"), "threads")]
    if len(counts) > 1:
        clauses = [
            f"at batch {batch:,} {crossing_text(thread_crossing(results, batch, counts), 'width')}"
            for batch in grouped(grid(results), "batch")
        ]
        before = f"On the CPU {counts[-1]} threads take less time than {counts[0]}: "
        yield from finding(results, before, clauses)


REPORT = DeviceReport(
    question="When is the GPU worth it for a small network?",
    plots=PLOTS,
    rows=_rows,
    named=VARIABLES,
    findings=_findings,
    answer=_answer,
    headline=_headline,
)

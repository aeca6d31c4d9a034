"""When is a GPU worth it for a small network? Break-even widths, depth, inputs, recurrence."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from scaling.report.device.common import (
    Arm,
    Cells,
    columns_of,
    device_table,
    finding,
    gpu_arms,
    median_text,
    plain,
    time_and_interval_cell,
    times_of,
    variable,
)
from scaling.report.device.crossover import bounds_text, crossing_of, crossing_text, rounded
from scaling.report.device.declared import DeviceReport
from scaling.report.device.remarks import missing_remark, remarks
from scaling.report.device.results import DeviceResult, Results, fastest, grouped
from scaling.report.device.small_networks_figures import (
    PLOTS,
    SWEPT,
    base_point,
    base_text,
    family,
    fastest_threads,
    grid,
    is_swept,
    sweep,
    thread_crossing,
    times_by,
    width_crossings,
)
from scaling.report.formats import MISSING, listed, number
from scaling.report.tables import Column, Table

VARIABLES = ("network", "batch", "depth", "inputs", "width")
"""That name a network."""


def _rows(results: Results) -> Iterator[Table]:
    """Break-even widths, and every point in a row."""
    if gpus := gpu_arms(results):
        columns = [Column[int]("batch", plain), *(_crossing_column(results, arm) for arm in gpus)]
        yield device_table(
            results,
            ": from which width on the GPU is faster than the CPU",
            columns,
            grouped(grid(results), "batch"),
            cells_of=None,
            statistic="Break-even width with its 95% interval, against the fastest number of CPU threads at "
            f"each width, interpolated between measured widths. {median_text(results)}",
        )
    perceptrons = [cell for cell in results.cells if not cell.point["equal_parameters"]]
    yield from _times_table(results, ": milliseconds of a training step, perceptrons", perceptrons)
    title = ": recurrent against feed-forward at equal parameters, ms a step"
    yield from _times_table(results, title, family(results))


def _crossing_column(results: Results, gpu: Arm) -> Column[int]:
    crossings = width_crossings(results, gpu)
    return Column(gpu.name, lambda batch: crossing_text(crossings[batch], "width"))


def _times_table(results: Results, title: str, cells: Sequence[DeviceResult]) -> Iterator[Table]:
    def of(arm: Arm) -> Column[Cells]:
        return Column(arm.name, lambda same_point: time_and_interval_cell(fastest(arm.of(same_point))))

    columns = [
        *(variable(name, {"depth": "layers"}.get(name)) for name in VARIABLES),
        variable("parameters", otherwise="0"),
        *map(of, columns_of(results)),
        Column("CPU / GPU, fastest of each", _cpu_over_gpu),
    ]
    if cells:
        rows = grouped(cells, *VARIABLES).values()
        yield device_table(results, title, columns, rows, remarks=remarks(results))


def _cpu_over_gpu(cells: Cells) -> str:
    cpu, gpu = fastest_threads(cells), fastest(cell for cell in cells if cell.device == "cuda")
    return number(cpu.median / gpu.median) if cpu and gpu else MISSING


def _findings(results: Results) -> Iterator[str]:
    """Recurrent against feed-forward; then depth and inputs, or threads where there is no GPU."""
    yield from _recurrent_sentences(results)
    if gpus := gpu_arms(results):
        yield from _sweep_sentences(results, gpus)
    else:
        yield from _thread_sentences(results)


def _headline(results: Results) -> str:
    """From which width on the GPU wins at every batch, of each kind of step; "" where it does not."""
    clauses = []
    for gpu in gpu_arms(results):
        crossings = [*width_crossings(results, gpu).values()]
        if any(crossing is None or crossing.wins == "nowhere" for crossing in crossings):
            return ""
        widths = [crossing.at for crossing in crossings if crossing and crossing.at is not None]
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
    once = ", and the intervals are of one launch: another may differ by more"
    return (
        f"For perceptrons of {base_text(results)}, a training step on the GPU is faster than one on the CPU "
        f"at its fastest number of threads from these widths on. {steps} Between measured widths "
        f"({', '.join(f'{width:,}' for width in widths)}) the break-even is interpolated"
        f"{once if results.num_launches == 1 else ''}."
    )


def _ahead(results: Results, gpu: Arm) -> str:
    """`at batch 1 from width 2,100 [1,900, 2,300] on; at batch 64 at every measured width (10 to 8,192)`."""
    groups: dict[str, list[str]] = {}
    for batch, crossing in width_crossings(results, gpu).items():
        groups.setdefault(crossing_text(crossing, "width"), []).append(f"{batch:,}")
    return "; ".join(f"at batch {listed(batches)} {text}" for text, batches in groups.items())


def _sweep_sentences(results: Results, gpus: Sequence[Arm]) -> Iterator[str]:
    for axis, label in SWEPT.items():
        base, cells, clauses = base_point(results, axis), sweep(results, axis), []
        if not is_swept(cells, axis):
            continue
        for arm in gpus:
            crossing = crossing_of(times_by(cells, arm, axis))
            if crossing is not None and crossing.at is not None:
                clauses.append(f"{arm.name} from {rounded(crossing.at)} {label} {bounds_text(crossing)} on")
            else:
                clauses.append(f"{arm.name} {crossing_text(crossing)}")
        where = ", ".join(f"{name} {value:,}" for name, value in base.items())
        yield from finding(results, f"At {where}, the GPU is faster: ", clauses)


def _recurrent_sentences(results: Results) -> Iterator[str]:
    """How much longer a recurrent network takes than a perceptron of as many parameters, on each device."""
    clauses = []
    for device, name in (("cpu", "the CPU"), ("cuda", "the GPU")):
        ratios = []
        same_point = [cell for cell in family(results) if cell.device == device]
        for size, cells in grouped(same_point, "equal_parameters").items():
            lstm, mlp = (fastest(c for c in cells if c.point["network"] == kind) for kind in ("lstm", "mlp"))
            if lstm and mlp and all(cell.is_over for cell in cells):
                ratios.append(f"{times_of(lstm, mlp)} at {size:,}")
        if ratios:
            clauses.append(f"on {name} {listed(ratios)}")
    before = "How much longer a step of the recurrent network takes than one of a perceptron with as many"
    yield from finding(
        results, f"{before} parameters: ", clauses, " parameters (each as it is fastest there)"
    )


def _thread_sentences(results: Results) -> Iterator[str]:
    """What CPU alone answers: from which width on all threads pay."""
    counts = [*grouped(results.all("cpu"), "threads")]
    if len(counts) > 1:
        clauses = [
            f"at batch {batch:,} {crossing_text(thread_crossing(results, batch, counts), 'width')}"
            for batch in grouped(grid(results), "batch")
        ]
        yield from finding(results, f"On the CPU {counts[-1]} threads are faster than {counts[0]}: ", clauses)


REPORT = DeviceReport(
    question="When is the GPU worth it for a small network?",
    plots=PLOTS,
    rows=_rows,
    named=VARIABLES,
    findings=_findings,
    answer=_answer,
    headline=_headline,
)

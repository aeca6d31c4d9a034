"""When is a GPU worth it for a small network? Break-even widths, depth, inputs, recurrence."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from scaling.analysis.formats import MISSING, listed, number
from scaling.report.device.common import (
    Arm,
    arms_of,
    columns_of,
    left_out_table,
    one_launch,
    statistic,
    time_and_interval_cell,
    times_of,
)
from scaling.report.device.crossover import bounds_text, crossing_text, rounded
from scaling.report.device.remarks import missing_remark, remarks
from scaling.report.device.results import DeviceResult, Results, fastest
from scaling.report.device.small_networks_data import (
    base_text,
    batches_of,
    break_even,
    family,
    fastest_threads,
    grid,
    perceptrons,
    sweep_values,
    thread_crossing,
    width_crossings,
)
from scaling.report.device.small_networks_figures import figures
from scaling.report.tables import Table

__all__ = ["figures", "sentences", "tables"]

VARIABLES = ("network", "batch", "depth", "inputs", "width")
"""That name a network."""


def tables(results: Results) -> Iterator[Table]:
    """Break-even widths, and every point in a row."""
    arms = arms_of(results)
    gpus = [arm for arm in arms if arm.device == "cuda"]
    if gpus:
        yield _crossing_table(results, gpus)
    parts = [
        (f"{results.experiment}: milliseconds of a training step, perceptrons", perceptrons(results)),
        (
            f"{results.experiment}: recurrent against feed-forward at equal parameters, ms a step",
            family(results),
        ),
    ]
    for title, own in parts:
        if own:
            yield _times_table(results, title, own, columns_of(results))
    yield from left_out_table(results, VARIABLES)


def _crossing_table(results: Results, gpus: Sequence[Arm]) -> Table:
    found = [width_crossings(results, arm) for arm in gpus]
    rows = [
        [f"{batch:,}", *(crossing_text(own[batch], "width") for own in found)]
        for batch in batches_of(grid(results))
    ]
    return Table(
        f"{results.experiment}: from which width on the GPU is faster than the CPU",
        "Break-even width with its 95% interval, against the fastest number of CPU threads at each width, "
        "interpolated between measured widths. " + statistic(results),
        ["batch", *(arm.name for arm in gpus)],
        rows,
        section="devices",
    )


def _times_table(results: Results, title: str, cells: Sequence[DeviceResult], arms: Sequence[Arm]) -> Table:
    points: dict[tuple[Any, ...], list[DeviceResult]] = {}
    for cell in cells:
        key = tuple(cell.point[name] for name in VARIABLES)
        points.setdefault(key, []).append(cell)
    rows = []
    for key, own in sorted(points.items()):
        cpu = fastest_threads(own)
        gpu = fastest([cell for cell in own if cell.device == "cuda"])
        ratio = number(cpu[1].median / gpu[1].median) if cpu and gpu else MISSING
        parameters = next((value for cell in own if (value := cell.fact("parameters"))), None)
        measured = [time_and_interval_cell(_of(own, arm)) for arm in arms]
        rows.append([key[0], *(f"{value:,}" for value in key[1:]), f"{parameters or 0:,}", *measured, ratio])
    headings = ["network", "batch", "layers", "inputs", "width", "parameters", *(arm.name for arm in arms)]
    gpu_column = "CPU / GPU, fastest of each"
    ids = [[cell.cell_id for cell in own] for _, own in sorted(points.items())]
    return Table(
        title,
        statistic(results),
        [*headings, gpu_column],
        rows,
        remarks(results),
        cells=ids,
        section="devices",
    )


def _of(cells: Sequence[DeviceResult], arm: Arm) -> Any:
    found = fastest([cell for cell in cells if arm.holds(cell)])
    return found[1] if found else None


def sentences(results: Results) -> Iterator[str]:
    """Recurrent against feed-forward, depth and inputs; last, from which width on the GPU wins."""
    gpus = [arm for arm in arms_of(results) if arm.device == "cuda"]
    yield from _recurrent_sentences(results)
    if not gpus:
        yield from _cpu_sentences(results)
        return
    yield from _sweep_sentences(results, gpus)
    steps = " ".join(f"{arm.step.capitalize()}, {_ahead(results, arm)}." for arm in gpus)
    widths = sorted({cell.point["width"] for cell in grid(results)})
    between = (
        f" Between measured widths ({', '.join(f'{width:,}' for width in widths)}) the break-even is "
        "interpolated"
    )
    once = ", and the intervals are of one launch: another may differ by more."
    within = f"{between}{once if results.num_launches == 1 else '.'}"
    yield (
        f"When is the GPU worth it for a small network? For perceptrons of {base_text(results)}, a training "
        "step on the GPU is faster than one on the CPU at its fastest number of threads from these widths "
        f"on. {steps}{within}"
    )


def _ahead(results: Results, gpu: Arm) -> str:
    """`at batch 1 from width 2,100 [1,900, 2,300] on; at batch 64 at every measured width (10 to 8,192)`."""
    groups: dict[str, list[str]] = {}
    for batch, one in width_crossings(results, gpu).items():
        groups.setdefault(crossing_text(one, "width"), []).append(f"{batch:,}")
    return "; ".join(f"at batch {listed(batches)} {text}" for text, batches in groups.items())


def _sweep_sentences(results: Results, gpus: Sequence[Arm]) -> Iterator[str]:
    labels = {"depth": "hidden layers", "inputs": "input features"}
    for axis, label in labels.items():
        base = {n: results.parameters[n] for n in ("inputs", "depth", "width", "batch") if n != axis}
        if len(sweep_values(results, axis)) < 2:
            continue
        told = []
        for arm in gpus:
            found = break_even(results, arm, axis, **base)
            if found is not None and found.at is not None:
                told.append(f"{arm.name} from {rounded(found.at)} {label} {bounds_text(found)} on")
            else:
                told.append(f"{arm.name} {crossing_text(found)}")
        where = ", ".join(f"{name} {value:,}" for name, value in base.items())
        yield f"At {where}, the GPU is faster: {'; '.join(told)}{one_launch(results)}."


def _recurrent_sentences(results: Results) -> Iterator[str]:
    """How much longer a recurrent network takes than a perceptron of as many parameters, on each device."""
    told = []
    for device, name in (("cpu", "the CPU"), ("cuda", "the GPU")):
        ratios = []
        for size in sorted({cell.point["equal_parameters"] for cell in family(results)}):
            own = [cell for cell in results.all(device) if cell.point["equal_parameters"] == size]
            pair = [fastest([c for c in own if c.point["network"] == kind]) for kind in ("lstm", "mlp")]
            if pair[0] and pair[1] and all(cell.is_over for cell in own):
                ratios.append((size, times_of(pair[0][1], pair[1][1])))
        if ratios:
            text = listed([f"{ratio} at {size:,}" for size, ratio in ratios])
            told.append(f"on {name} {text}")
    if told:
        yield (
            "How much longer a step of the recurrent network takes than one of a perceptron with as many "
            f"parameters: {'; '.join(told)} parameters (each as it is fastest there){one_launch(results)}."
        )


def _cpu_sentences(results: Results) -> Iterator[str]:
    """What CPU alone answers: from which width on all threads pay."""
    counts = sorted({cell.threads for cell in results.all("cpu")})
    if len(counts) > 1:
        told = [
            f"at batch {batch:,} {crossing_text(thread_crossing(results, batch, counts), 'width')}"
            for batch in batches_of(grid(results))
        ]
        yield (
            f"On the CPU {counts[-1]} threads are faster than {counts[0]}: "
            f"{'; '.join(told)}{one_launch(results)}."
        )
    missing = " ".join(missing_remark(results))
    yield f"When is the GPU worth it for a small network? That is not answered here. {missing}".strip()

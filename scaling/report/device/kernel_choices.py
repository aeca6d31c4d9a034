"""Which kernel should a library choose? Transposed operands, algorithms of convolutions, precisions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from scaling.analysis.decisions import Difference
from scaling.report.device.common import (
    DEVICES,
    NO_ROWS,
    device_table,
    interval_cell,
    median_text,
    missing_remark,
    remarks,
    scientific,
    time_cell,
)
from scaling.report.device.comparisons import finding, is_longer, least_text, spread, times_of
from scaling.report.device.declared import DeviceReport
from scaling.report.device.kernel_data import (
    CAPPED,
    CHOICES,
    CONVOLUTION,
    MATMUL,
    NO_CAP,
    PRECISION_NAMES,
    KernelCase,
    cases,
    name_of,
    teraflop_per_s,
)
from scaling.report.device.kernel_figures import PLOTS
from scaling.report.device.results import DeviceResult, Results
from scaling.report.formats import MISSING, listed, megabytes, milliseconds, number
from scaling.report.tables import Column, Table


def _rows(results: Results) -> Iterator[Table]:
    """Products, convolutions, and what was left out."""
    for operation, title in ((MATMUL, "matrix products x W^T"), (CONVOLUTION, "convolutions")):
        if shown := cases(results, operation):
            yield _table(results, shown, f": {title}", operation)


def _table(results: Results, shown: Sequence[KernelCase], title: str, operation: str) -> Table:
    is_product = operation == MATMUL
    phase, second = ("transpose", "copy alone, ms") if is_product else ("forward", "forward, ms")
    columns: list[Column[tuple[KernelCase, DeviceResult]]] = [
        Column("on", lambda row: row[0].title),
        Column("choice", lambda row: name_of(row[1])),
        Column("ms" if is_product else "forward and backward, ms", lambda row: time_cell(row[1])),
        Column("95% interval, ms", lambda row: interval_cell(row[1])),
        Column(second, lambda row: time_cell(row[1], phase)),
        Column("TFLOP/s", lambda row: number(teraflop_per_s(row[1]))),
        Column("relative error", lambda row: scientific(row[1].fact("error"))),
        Column(
            None if is_product else "workspace, MB", lambda row: megabytes(row[1].fact("workspace_bytes"))
        ),
    ]
    return device_table(
        results,
        title,
        columns,
        [(case, cell) for case in shown for cell in case.cells if cell.reason is None],
        cells_of=lambda row: [row[1]],
        statistic=f"{median_text(results)} Relative error: rms difference from float64 over the rms of the "
        "values. TFLOP/s of a forward pass, by the definition's number of operations.",
        remarks=[
            *remarks(results, NO_ROWS),
            "TF32 is a number format of GPUs: on the CPU there are no such rows.",
        ],
    )


def _findings(results: Results) -> Iterator[str]:
    """Products, precisions, autotuning, workspace."""
    products = cases(results, MATMUL)
    convolutions = cases(results, CONVOLUTION)
    yield from _precisions(results, [*products, *convolutions])
    yield from _autotuned(results, convolutions)
    yield from _capped(results, convolutions)
    yield from _interfaces(results, convolutions)


def _headline(results: Results) -> str:
    """What transposing first costs, and the convolution of least time on each device."""
    products, convolutions = cases(results, MATMUL), cases(results, CONVOLUTION)
    known = [difference for case in products if (difference := _transposing(case))]
    clauses = []
    if known and all(map(is_longer, known)):
        ratios = spread([difference.ratio for difference in known])
        clauses.append(f"W as it is stored takes least (transposed first {ratios} times as long)")
    for device, name in DEVICES.items():
        every = [case for case in convolutions if case.device == device and not case.unmeasured()]
        choices = [{cell.point["choice"] for cell in case.fastest()} for case in every]
        common = sorted(set.intersection(*choices)) if choices else []
        clauses += [f"{CHOICES[choice]} for convolutions on the {name}" for choice in common[:1]]
    text = "; ".join(clauses)
    return f"{text[:1].upper()}{text[1:]}." if text else ""


def _transposing(case: KernelCase) -> Difference | None:
    """The product's time with W transposed first over that with W as it is stored."""
    plain, first = case.find("transposed"), case.find("transpose-first")
    return plain.difference(first) if plain and first else None


def _answer(results: Results) -> str:
    """What a library should choose, and what is not known."""
    products, convolutions = cases(results, MATMUL), cases(results, CONVOLUTION)
    advice = [clause for device in DEVICES for clause in _advice(device, products, convolutions)]
    known = finding(results, "In float32, ", advice)
    return " ".join([*known, *_unanswered([*products, *convolutions]), *missing_remark(results, NO_ROWS)])


def _unanswered(shown: Sequence[KernelCase]) -> Iterator[str]:
    """`Not answered, as choices in float32 are not measured yet: GPU: AlexNet 5x5, batch 64.`"""
    if cases := [case.title for case in shown if case.unmeasured()]:
        yield f"Not answered, as choices in float32 are not measured yet: {'; '.join(cases)}."


def _precisions(results: Results, shown: Sequence[KernelCase]) -> Iterator[str]:
    """What TF32 and bfloat16 save, and lose in exactness, with the choice that needs nothing else."""
    for device, name in DEVICES.items():
        clauses: list[str] = []
        compared: list[DeviceResult] = []
        for precision in ("tf32", "bfloat16"):
            pairs = [
                (case, exact, other)
                for case in shown
                if case.device == device
                for choice in ("transposed", "library")
                if (exact := case.find(choice)) and (other := case.find(choice, precision))
            ]
            if differences := [d for _, exact, other in pairs if (d := other.difference(exact))]:
                name_only = pairs[0][0].title.split(": ", 1)[1]
                where = f"{len(pairs)} operations" if len(pairs) > 1 else f"one operation, {name_only}"
                errors = _largest_error([other for _, _, other in pairs])
                clauses.append(
                    f"{times_of(differences)} as long as {PRECISION_NAMES[precision]} ({where}; relative "
                    f"error up to {errors})"
                )
                compared += [exact for _, exact, _ in pairs]
        error = _largest_error(compared)
        yield from finding(results, f"On the {name}, float32 (relative error up to {error}) takes ", clauses)


def _largest_error(cells: Sequence[DeviceResult]) -> str:
    errors = [error for cell in cells if (error := cell.fact("error")) is not None]
    return f"{max(errors):.1e}" if errors else MISSING


def _autotuned(results: Results, convolutions: Sequence[KernelCase]) -> Iterator[str]:
    clauses = []
    for case in convolutions:
        guess, tried = (case.find(choice) for choice in ("library", "autotuned"))
        if guess and tried and (difference := tried.difference(guess)):
            clauses.append(f"{case.title} {times_of([difference])}")
    yield from finding(
        results,
        "Forward and backward pass in float32 by cuDNN's own guess take so many times as long as by the "
        "algorithm found by trying all: ",
        clauses,
    )


def _advice(device: str, products: Sequence[KernelCase], convolutions: Sequence[KernelCase]) -> Iterator[str]:
    """For one device: how W is read, and each layer's algorithm of least time."""
    here = [case for case in convolutions if case.device == device]
    clauses = [
        f"{_reading(difference)} at batch {case.batch:,}"
        for case in products
        if case.device == device and (difference := _transposing(case))
    ]
    if clauses:
        yield f"on the {DEVICES[device]} the product with W takes least {listed(clauses)}"
    layers: dict[str, list[str]] = {}
    for case in here:
        if (best := case.fastest()) and not case.unmeasured():
            names = least_text(best, [CHOICES[cell.point["choice"]] for cell in best])
            layers.setdefault(names, []).append(case.name)
    if layers:
        each = [f"{names} for {listed(chosen)}" for names, chosen in layers.items()]
        older = "".join(map(_saved_by_older, here))
        yield f"on the {DEVICES[device]} the convolution takes least by {'; by '.join(each)}{older}"
    if costs := [cost for case in here for cost in _limit_costs(case)]:
        difference, name, cap = max(costs, key=lambda cost: cost[0].ratio)
        yield (
            f"on the {DEVICES[device]} a limit of a convolution's workspace makes its forward pass take up "
            f"to {times_of([difference])} as long ({name}, at most {cap})"
        )


def _reading(difference: Difference) -> str:
    """Which of the two readings takes less time."""
    other = replace(difference, log_ratio=-difference.log_ratio)
    if is_longer(other):
        return f"transposed first (as it is stored {times_of([other])} as long)"
    reading = "as it is stored" if is_longer(difference) else "either way"
    return f"{reading} (transposed first {times_of([difference])} as long)"


def _capped(results: Results, convolutions: Sequence[KernelCase]) -> Iterator[str]:
    """Which limits of the workspace were not kept, and which are not measured yet."""
    for case in convolutions:
        limited = [cell for cell in case.cells if cell.point["workspace_cap"] != NO_CAP]
        exceeded = [cell for cell in limited if cell.estimate() and _exceeds(cell)]
        planned = [cell for cell in limited if not cell.is_over]
        for cells, what in ((exceeded, "was not kept"), (planned, "is not measured yet")):
            if cells:
                limits = listed([str(cell.point["workspace_cap"]) for cell in cells])
                yield f"{case.title}: by cuDNN's older interface the limit of {limits} {what}."


def _exceeds(cell: DeviceResult) -> bool:
    limit_bytes = float(cell.point["workspace_cap"].split()[0]) * 2**20
    return (cell.fact("workspace_bytes") or 0) > limit_bytes


def _saved_by_older(case: KernelCase) -> str:
    """That cuDNN's older interface takes less still, which only an environment variable chooses."""
    older, best = case.find(CAPPED), case.fastest()
    difference = older.difference(best[0]) if older and best else None
    if difference is None or not is_longer(difference):
        return ""
    return f" ({case.name}'s takes {times_of([difference])} as long as by cuDNN's older interface)"


def _limit_costs(case: KernelCase) -> Iterator[tuple[Difference, str, str]]:
    """(forward pass with a limited workspace over that without, layer, limit), where the limit was kept."""
    free = case.find(CAPPED)
    for cell in case.cells:
        difference = free.difference(cell, "forward") if free else None
        if difference and cell.point["workspace_cap"] != NO_CAP and not _exceeds(cell):
            yield difference, case.name, str(cell.point["workspace_cap"])


def _interfaces(results: Results, convolutions: Sequence[KernelCase]) -> Iterator[str]:
    """Whether choosing cuDNN's older interface did anything, as the times tell."""
    both = [(case, case.find(CAPPED), case.find("autotuned")) for case in convolutions]
    pairs = [(case, older, newer) for case, older, newer in both if older and newer]
    start = "cuDNN's older interface, asked for by TORCH_CUDNN_V8_API_DISABLED=1, both autotuned, "
    instead = [
        (
            f"{case.name} {milliseconds(older.median())} ms instead of {milliseconds(newer.median())} ms",
            newer.difference(older),
        )
        for case, older, newer in pairs
    ]
    if results.num_launches == 1:
        yield from finding(results, f"{start}took ", [text for text, _ in instead])
    elif other := [text for text, difference in instead if difference and difference.is_significant]:
        yield (
            f"{start}took other times than its present one: {'; '.join(other)}: the variable does something "
            "in this version of torch, or autotuning does not choose the same twice."
        )
    elif pairs:
        yield (
            f"{start}is not told from its present one by its times: in this version of torch the variable "
            "may do nothing."
        )


REPORT = DeviceReport(
    question="Which kernel should a library choose?",
    plots=PLOTS,
    rows=_rows,
    named=("operation", "case", "batch", "choice", "precision"),
    findings=_findings,
    answer=_answer,
    headline=_headline,
)

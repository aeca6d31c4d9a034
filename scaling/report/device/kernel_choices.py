"""Which kernel should a library choose? Transposed operands, algorithms of convolutions, precisions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from scaling.report.device.common import (
    DEVICES,
    device_table,
    finding,
    interval_cell,
    median_text,
    one_launch,
    range_of,
    scientific,
    spread,
    step_of,
    time_cell,
    times,
    times_of,
)
from scaling.report.device.declared import DeviceReport
from scaling.report.device.kernel_data import (
    CHOICES,
    CONVOLUTION,
    MATMUL,
    PRECISION_NAMES,
    KernelCase,
    cases,
    median,
    name_of,
    overlap,
    teraflop_per_s,
)
from scaling.report.device.kernel_figures import PLOTS
from scaling.report.device.kernel_workspace import capped, faster_by_older, interfaces, limit_costs
from scaling.report.device.remarks import NO_ROWS, missing_remark, remarks
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
        Column("ms" if is_product else "forward and backward, ms", lambda row: time_cell(row[1].estimate())),
        Column("95% interval, ms", lambda row: interval_cell(row[1].estimate())),
        Column(second, lambda row: time_cell(row[1].estimate(phase))),
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
    for case in products:
        yield from _product(results, case)
    yield from _precisions(results, [*products, *convolutions])
    yield from _autotuned(results, convolutions)
    yield from capped(results, convolutions)
    yield from interfaces(results, convolutions)


def _headline(results: Results) -> str:
    """What the stored W gains over transposing first, and each device's fastest convolution."""
    products, convolutions = cases(results, MATMUL), cases(results, CONVOLUTION)
    pairs = [(case.find("transposed"), case.find("transpose-first")) for case in products]
    known = [(plain, first) for plain, first in pairs if plain and first]
    clauses = []
    if known and all(_is_faster(plain, first) for plain, first in known):
        gains = [(median(first) or 0.0) / (median(plain) or 1.0) for plain, first in known]
        clauses.append(f"read W as it is stored ({spread(gains)} times as fast as transposing first)")
    for device, name in DEVICES.items():
        measured = [case for case in convolutions if case.device == device and not case.unmeasured()]
        common = (
            set.intersection(*({cell.point["choice"] for cell in case.fastest()} for case in measured))
            if measured
            else ()
        )
        clauses += [f"{CHOICES[choice]} for convolutions on the {name}" for choice in sorted(common)[:1]]
    text = "; ".join(clauses)
    return f"{text[:1].upper()}{text[1:]}." if text else ""


def _is_faster(first: DeviceResult, second: DeviceResult) -> bool:
    return (median(first) or 0.0) < (median(second) or 0.0) and not overlap(first, second)


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


def _product(results: Results, case: KernelCase) -> Iterator[str]:
    plain, first, before = (median(case.find(choice)) for choice in list(CHOICES)[:3])
    copy = median(case.find("transpose-first"), "transpose")
    if plain and first and before and copy:
        yield (
            f"{case.title}, float32: with W as it is stored {milliseconds(plain)} ms, with transposed first "
            f"{milliseconds(first)} ms ({times(first / plain)} that), of which the copy alone takes "
            f"{milliseconds(copy)} ms; had W been transposed before, {milliseconds(before)} ms"
            f"{one_launch(results)}."
        )


def _precisions(results: Results, shown: Sequence[KernelCase]) -> Iterator[str]:
    """What TF32 and bfloat16 gain, and lose in exactness, with the choice that needs nothing else."""
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
            if pairs:
                clauses.append(_gain(PRECISION_NAMES[precision], pairs))
                compared += [exact for _, exact, _ in pairs]
        error = _largest_error(compared)
        yield from finding(results, f"On the {name}, over float32 (relative error up to {error}): ", clauses)


def _gain(precision: str, pairs: Sequence[tuple[KernelCase, DeviceResult, DeviceResult]]) -> str:
    """With the one case's name, where there is only one."""
    estimates = [
        (first, second)
        for _, exact, other in pairs
        if (first := exact.estimate()) and (second := other.estimate())
    ]
    errors = _largest_error([other for _, _, other in pairs])
    num = len(pairs)
    where = f"{num} operations" if num > 1 else f"one operation, {pairs[0][0].title.split(': ', 1)[1]}"
    return f"{precision} is {range_of(estimates)} as fast ({where}), with a relative error of up to {errors}"


def _largest_error(cells: Sequence[DeviceResult]) -> str:
    errors = [error for cell in cells if (error := cell.fact("error")) is not None]
    return f"{max(errors):.1e}" if errors else MISSING


def _autotuned(results: Results, convolutions: Sequence[KernelCase]) -> Iterator[str]:
    clauses = []
    for case in convolutions:
        guess, tried = (step_of(case.find(choice)) for choice in ("library", "autotuned"))
        if guess and tried:
            clauses.append(f"{case.title} {times_of(guess, tried)}")
    yield from finding(
        results,
        "With cuDNN's algorithm found by trying all, over its own guess, forward and backward pass in "
        "float32 are so many times as fast: ",
        clauses,
    )


def _advice(device: str, products: Sequence[KernelCase], convolutions: Sequence[KernelCase]) -> Iterator[str]:
    """For one device: the product's reading, and each layer's fastest algorithm."""
    clauses = []
    for case in products:
        plain, first = case.find("transposed"), case.find("transpose-first")
        if case.device == device and plain and first:
            clauses.append(f"{_better(plain, first)} at batch {case.batch:,}")
    if clauses:
        yield f"on the {DEVICES[device]} the product with W {listed(clauses)}"
    layers: dict[str, list[str]] = {}
    for case in convolutions:
        best = case.fastest()
        if case.device == device and best and not case.unmeasured():
            names = " or ".join(CHOICES[cell.point["choice"]] for cell in best)
            layers.setdefault(names, []).append(case.name)
    if layers:
        each = [f"{names} for {listed(chosen)}" for names, chosen in layers.items()]
        older = "".join(faster_by_older(case) for case in convolutions if case.device == device)
        yield f"on the {DEVICES[device]} the fastest convolution by {'; by '.join(each)}{older}"
    costs = [cost for case in convolutions if case.device == device for cost in limit_costs(case)]
    if costs:
        cost, name, cap = max(costs)
        yield (
            f"on the {DEVICES[device]} a limit of a convolution's workspace makes its forward pass take up "
            f"to {times(cost)} as long ({name}, at most {cap})"
        )


def _better(plain: DeviceResult, first: DeviceResult) -> str:
    """Which of the two readings takes less time, if their intervals tell."""
    if overlap(plain, first):
        return "either way (their intervals overlap)"
    ratio = (median(first) or 0.0) / (median(plain) or 1.0)
    if ratio > 1:
        return f"as it is stored ({times(ratio)} as fast as transposing first)"
    return f"transposed first ({times(1 / ratio)} as fast as reading it as it is stored)"


REPORT = DeviceReport(
    question="Which kernel should a library choose?",
    plots=PLOTS,
    rows=_rows,
    named=("operation", "case", "batch", "choice", "precision"),
    findings=_findings,
    answer=_answer,
    headline=_headline,
)

"""What a limit of a convolution's workspace costs, and what cuDNN's older interface does, in sentences."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from scaling.report.device.common import finding, one_launch, times
from scaling.report.device.kernel_data import CAPPED, NO_CAP, KernelCase, median, overlap
from scaling.report.device.results import DeviceResult, Results
from scaling.report.formats import listed, megabytes, milliseconds


def capped(results: Results, convolutions: Sequence[KernelCase]) -> Iterator[str]:
    """What a limit of the workspace costs, and whether it was kept."""
    for case in convolutions:
        free = case.find(CAPPED)
        if free is None:
            continue
        caps = [cell for cell in case.cells if cell.point["workspace_cap"] != NO_CAP and cell.estimate()]
        clauses = [f"without a limit {_forward(free)}"]
        clauses += [f"at most {cell.point['workspace_cap']}: {_forward(cell)}" for cell in caps]
        kept = ""
        if exceeded := [cell for cell in caps if _exceeds(cell)]:
            kept = f"; the limit of {_limits(exceeded)} was not kept"
        if missing := [cell for cell in case.cells if cell.point["choice"] == CAPPED and not cell.is_over]:
            kept += f" (not measured yet: at most {_limits(missing)})"
        before = f"{case.title}, float32, the forward pass by cuDNN's older interface: "
        yield from finding(results, before, clauses if caps else [], kept)


def _limits(cells: Sequence[DeviceResult]) -> str:
    return listed([str(cell.point["workspace_cap"]) for cell in cells])


def _forward(cell: DeviceResult) -> str:
    workspace = megabytes(cell.fact("workspace_bytes"))
    return f"{milliseconds(median(cell, 'forward'))} ms and {workspace} MB of workspace"


def _exceeds(cell: DeviceResult) -> bool:
    limit_bytes = float(cell.point["workspace_cap"].split()[0]) * 2**20
    workspace = cell.fact("workspace_bytes")
    return workspace is not None and workspace > limit_bytes


def faster_by_older(case: KernelCase) -> str:
    """That cuDNN's older interface is faster still, which only an environment variable chooses."""
    older, best = case.find(CAPPED), case.fastest()
    if older is None or not best or overlap(older, best[0]):
        return ""
    ratio = (median(best[0]) or 0.0) / (median(older) or 1.0)
    return f" ({case.name}'s is {times(ratio)} as fast still by cuDNN's older interface)" if ratio > 1 else ""


def limit_costs(case: KernelCase) -> Iterator[tuple[float, str, str]]:
    """(forward pass with a limited workspace over that without, layer, limit), where the limit was kept."""
    free = case.find(CAPPED)
    without_s = median(free, "forward")
    for cell in case.cells:
        limited_s = median(cell, "forward") if cell.point["workspace_cap"] != NO_CAP else None
        if without_s and limited_s and not _exceeds(cell):
            yield limited_s / without_s, case.name, str(cell.point["workspace_cap"])


def interfaces(results: Results, convolutions: Sequence[KernelCase]) -> Iterator[str]:
    """Whether choosing cuDNN's older interface did anything, as the times tell."""
    pairs = [
        (case, older, newer)
        for case in convolutions
        if (older := case.find(CAPPED)) and (newer := case.find("autotuned"))
    ]
    if not pairs:
        return
    apart = [
        f"{case.name} {milliseconds(median(older))} ms instead of {milliseconds(median(newer))} ms"
        for case, older, newer in pairs
        if not overlap(older, newer)
    ]
    start = "cuDNN's older interface, asked for by TORCH_CUDNN_V8_API_DISABLED=1, both autotuned, "
    verdict = "took the same times as its present one: in this version of torch the variable may do nothing"
    if apart:
        verdict = (
            f"took other times than its present one: {'; '.join(apart)}: the variable does something in this "
            "version of torch, or autotuning does not choose the same twice"
        )
    yield f"{start}{verdict}{one_launch(results)}."

"""The report of an experiment that declares none."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from scaling.device_studies.declaration import (
    STEP_TIME,
    BreakEven,
    Fastest,
    Finding,
    Lines,
    Panels,
    Report,
    Rows,
    Show,
)
from scaling.report.device.cells import LEFT_OUT, DeviceResult

PLAIN = "Milliseconds (column iteration_s)."


def plain_report(cells: Sequence[DeviceResult]) -> Report:
    """What can be said of cells that nothing is declared of.

    A figure over the number that has most values, one table, and where the GPU begins to take less time, or
    which word of a variable takes the least.
    """
    values: dict[str, set[Any]] = {}
    for name, value in (pair for cell in cells for pair in cell.point.items()):
        values.setdefault(name, set()).add(value)
    varied = [name for name, several in values.items() if len(several) > 1 and name != "step"]
    numbers = [name for name in varied if all(type(value) in (int, float) for value in values[name])]
    words = [name for name in varied if name not in numbers]
    x = max(numbers, key=lambda name: len(values[name]), default="")
    others = tuple(name for name in varied if name != x)
    facts = dict.fromkeys(name for cell in cells for name in cell.scalars if name != LEFT_OUT)
    shown = [
        show
        for phase in dict.fromkeys(phase for cell in cells for phase in cell.phases)
        for show in (Show(f"{phase}, ms", phase=phase), Show("95% interval, ms", "interval", phase=phase))
    ]
    columns = (*shown, STEP_TIME[-1], *(Show(name, "fact", name) for name in facts))
    at = ", ".join(f"{name} {{{name}}}" for name in others)
    findings: list[Finding] = []
    if x and len(others) < 2 and {cell.device for cell in cells} == {"cpu", "cuda"}:
        by = others[0] if others else ""
        findings.append(BreakEven("The GPU takes less time than the CPU: ", x, x, by=by))
    if words:
        rest = tuple(name for name in varied if name != words[0])
        each = ", ".join(f"{name} {{{name}}}" for name in rest)
        findings.append(
            Fastest("Least time of a step on the {on}: ", words[0], rest, f"at {each}" if rest else "", {})
        )
    lines = Lines("times", PLAIN, "times of a step", (Panels(x, by=others, title=at),))
    table = Rows("", (*values, "device", "threads"), columns)
    return Report("", (*values,), (lines,) if x else (), (table,), tuple(findings))

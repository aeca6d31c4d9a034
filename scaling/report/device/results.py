"""The samples of device cells: for each point of an experiment and each device, estimates and facts.

All cells of the experiment together tell how they scatter over launches (`scaling.analysis.study_scatter`):
every interval and every difference of two cells rests on it.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Any

from scaling.analysis.columns import DEVICE, by_key
from scaling.analysis.study_scatter import CellTimes, study_scatter
from scaling.analysis.summary import environment_of, num_cores
from scaling.device_studies.declaration import (
    ARMS,
    DEVICES,
    STEP_TIME,
    BreakEven,
    Fastest,
    Finding,
    Lines,
    Panels,
    Report,
    Rows,
    Setting,
    Show,
    Variant,
    Where,
)
from scaling.device_studies.registry import EXPERIMENTS
from scaling.errors import StoreError, StudyError
from scaling.report.device.cells import LEFT_OUT, DeviceResult, size_of
from scaling.store import ResultsFolder, RunRecord
from scaling.store.records import MEND
from scaling.store.run_samples import DeviceLineModel, validate_lines

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


NO_GPU = "devices: no GPU"  # how a study's note begins that says so (`scaling.study.kinds.device`)


@dataclass(frozen=True)
class Results:
    experiment: str
    slug: str
    parameters: Mapping[str, Any]
    cells: list[DeviceResult]
    missing: list[str]
    num_cores: int | None
    folder: str
    report: Report

    @property
    def num_launches(self) -> int:
        return min((len(cell.launches) for cell in self.cells if cell.launches), default=0)

    def where(self, where: Where, cells: Iterable[DeviceResult] | None = None) -> list[DeviceResult]:
        wanted = {name: self._allowed(value) for name, value in where.items()}
        every = self.cells if cells is None else cells
        return [cell for cell in every if all(cell.value(name) in values for name, values in wanted.items())]

    def all(self, device: str | None = None, **point: Any) -> list[DeviceResult]:
        """The cells there with these values of their variables."""
        return self.where({**({"device": device} if device else {}), **point})

    def _allowed(self, value: Any) -> Sequence[Any]:
        given = self.parameters.get(value.name, ()) if isinstance(value, Setting) else value
        return given if isinstance(given, (list, tuple)) else (given,)

    def grouped(self, cells: Iterable[DeviceResult], *names: str) -> dict[Any, list[DeviceResult]]:
        """Value of that variable, or values of several -> the cells that have it, in the report's order."""
        orders = [list(self._allowed(self.report.order.get(name, ()))) for name in names]

        def place(cell: DeviceResult) -> list[Any]:
            values = [cell.value(name) for name in names]
            ranks = [
                order.index(value) if value in order else len(order)
                for order, value in zip(orders, values, strict=True)
            ]
            return [*zip(ranks, map(size_of, values), strict=True)]

        def key(cell: DeviceResult) -> Any:
            values = tuple(cell.value(name) for name in names)
            return values[0] if len(values) == 1 else values

        return by_key(sorted(cells, key=place), key)

    def first_along(self, cell: DeviceResult, x: str) -> DeviceResult:
        others = {name: value for name, value in cell.point.items() if name != x}
        same = [one for one in self.where(others) if one.device == cell.device]
        return min(same, key=lambda one: one.value(x))

    @property
    def arms(self) -> list[Variant]:
        if self.report.variants != ARMS:
            return [variant for variant in self.report.variants if self.where(variant.where)]
        threads = sorted({cell.threads for cell in self.all("cpu")})
        cpu = [
            Variant(f"CPU, {count} thread{'s' * (count != 1)}", {"device": "cpu", "threads": count})
            for count in threads
        ]
        return [*cpu, *(variant for variant in GPU_STEPS if self.where(variant.where))]

    @property
    def gpu_arms(self) -> list[Variant]:
        return [arm for arm in self.arms if arm.where["device"] == "cuda"]

    def columns(self, variants: Sequence[Variant]) -> list[Variant]:
        every = variants or [*self.arms, *(GPU_STEPS if "cuda" in self.missing else ())]
        return [one for one in every if self.where(one.where) or one.where["device"] in self.missing]

    def label(self, value: Any) -> str:
        if isinstance(value, int) and not isinstance(value, bool):
            return f"{value:,}"
        return str(self.report.labels.get(value, value))

    def text(self, template: str, cell: DeviceResult | None = None, **more: Any) -> str:
        """A template of the declaration, filled with parameters, a cell's variables and more."""
        named = [variant.name for variant in self.arms]
        values: dict[str, Any] = {
            **self.parameters,
            "arms": " and ".join(named) if len(named) < 3 else "CPU and GPU",
            "cores": f"{self.num_cores} cores" if self.num_cores else "all cores",
        }
        if cell:
            (on,) = (one.name for one in DEVICES if one.where["device"] == cell.device)
            values |= {**cell.point, "device": cell.device, "threads": cell.threads, "on": on}
        texts = {name: self.label(value) for name, value in values.items() if isinstance(value, str)}
        return template.format_map({**values, **texts, **more})


GPU_STEPS = tuple(Variant(f"GPU {step}", {"device": "cuda", "step": step}) for step in ("eager", "captured"))


def report_of(experiment: str, cells: Sequence[DeviceResult]) -> Report:
    """What the experiment declares; where it is not installed or declares nothing, what its cells tell."""
    try:
        declared: Report | None = EXPERIMENTS.load(experiment).report
    except (StudyError, AttributeError):
        declared = None
    return declared or plain_report(cells)


def read_devices(folder: ResultsFolder) -> list[Results]:
    """The experiments of a folder, in the order of their names.

    Raises:
        StoreError: a record or a sample of a done run is missing or damaged.
    """
    all_runs = (record for record in folder.runs() if record.cell.get("kind") == DEVICE)
    records = by_key(all_runs, lambda record: record.cell_id)
    if not records:
        return []
    experiments: dict[tuple[str, str], list[DeviceResult]] = {}
    for cell_id, runs in records.items():
        cell = runs[0].cell
        launches = {record.repeat: _rows(folder, record) for record in runs if record.state == "done"}
        key = (cell["experiment"], repr(sorted(cell["parameters"].items())))
        experiments.setdefault(key, []).append(DeviceResult(cell_id, cell, runs, launches))
    no_gpu = any(str(note).startswith(NO_GPU) for note in folder.study().get("notes") or [])
    asked, cores = _asked(folder), num_cores(environment_of(folder))
    read: list[Results] = []
    for (name, _), cells in sorted(experiments.items(), key=lambda item: item[0]):
        same = sum(other.experiment == name for other in read)
        here = {cell.device for cell in cells}
        missing = sorted(asked.get(name, set()) - here) if no_gpu else []
        _add_scatters(cells)
        slug, parameters = name.replace(":", "-"), cells[0].cell["parameters"]
        slug += f"-{same + 1}" if same else ""
        results = Results(
            name, slug, parameters, cells, missing, cores, str(folder.path), report_of(name, cells)
        )
        ordered = results.grouped(cells, *cells[0].point, "device", "threads").values()
        read.append(replace(results, cells=[cell for same in ordered for cell in same]))
    return read


def _add_scatters(cells: Sequence[DeviceResult]) -> None:
    """Cells of one device have their launches in common, whatever their threads."""
    for phase in dict.fromkeys(phase for cell in cells for phase in cell.phases):
        medians: dict[str, dict[Hashable, float]] = {
            cell.cell_id: {repeat: median(samples) for repeat, samples in cell.seconds(phase).items()}
            for cell in cells
        }
        scatter = study_scatter(
            {cell.cell_id: CellTimes(cell.device, medians[cell.cell_id]) for cell in cells}
        )
        for cell in cells:
            cell.scatters[phase] = scatter


def _rows(folder: ResultsFolder, record: RunRecord) -> list[dict[str, Any]]:
    where = folder.path / "runs" / record.cell_id / str(record.repeat)
    (rows, *_) = folder.samples(record.cell_id, record.repeat) or [[]]
    if not rows:
        raise StoreError(f"{where}: the run is done, but nothing that it measured was recorded; {MEND}")
    validate_lines(DeviceLineModel, rows, f"{where}/rank0.jsonl")
    return rows


def _asked(folder: ResultsFolder) -> dict[str, set[str]]:
    asked: dict[str, set[str]] = {}
    for part in folder.study().get("parts", []):
        if part.get("kind") == DEVICE:
            asked.setdefault(part["experiment"]["name"], set()).update(part["devices"])
    return asked

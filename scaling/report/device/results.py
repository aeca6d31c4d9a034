"""The samples of device cells: for each point of an experiment and each device, estimates and facts.
Intervals and differences rest on the scatter of all cells over launches
(`scaling.analysis.study_scatter`)."""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import chain
from statistics import geometric_mean, median
from typing import Any

import numpy as np

from scaling.analysis.columns import DEVICE, by_key
from scaling.analysis.decisions import Difference
from scaling.analysis.environments import environment_of
from scaling.analysis.study_scatter import CellTimes, StudyScatter, estimate_within, study_scatter
from scaling.analysis.summary import num_cores
from scaling.device_studies.declaration import (
    ARMS,
    DEVICES,
    EXPERIMENTS,
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
from scaling.errors import StoreError, StudyError
from scaling.measure.statistics import Estimate, interval_of_launches, interval_of_mean
from scaling.store import ResultsFolder, RunRecord
from scaling.store.records import MEND
from scaling.store.run_samples import DeviceLineModel, validate_lines

LEFT_OUT = "left_out"
SAMPLES = "samples"
STEP = "step"


@dataclass(frozen=True)
class DeviceResult:
    """A cell, a point on a device. `known`: estimates of phases that are not of its samples."""

    cell_id: str
    point: Mapping[str, Any]
    device: str
    threads: int
    launches: Mapping[int, list[dict[str, Any]]]
    records: Sequence[RunRecord] = ()
    scatters: dict[str, StudyScatter] = field(default_factory=dict, repr=False)
    known: Mapping[str, Estimate] = field(default_factory=dict)

    def value(self, name: str) -> Any:
        known = {"step": "eager", **self.point, "device": self.device, "threads": self.threads}
        return known[name] if name in known else self.fact(name)

    @property
    def reason(self) -> str | None:
        failed = (record.reason for record in self.records if record.state == "failed")
        return self.fact(LEFT_OUT) or next(failed, None)

    @property
    def _rows(self) -> Iterator[dict[str, Any]]:
        return chain.from_iterable(self.launches.values())

    @cached_property
    def phases(self) -> list[str]:
        return list(dict.fromkeys([*self.known, *(row["phase"] for row in self._rows if "phase" in row)]))

    def seconds(self, phase: str = STEP) -> dict[Hashable, list[float]]:
        launches: dict[Hashable, list[float]] = {
            repeat: [row["seconds"] for row in rows if row.get("phase") == phase]
            for repeat, rows in self.launches.items()
        }
        return {repeat: samples for repeat, samples in launches.items() if samples}

    def estimate(self, phase: str = STEP) -> Estimate | None:
        launches = [*self.seconds(phase).values()]
        made = estimate_within(launches, self.scatters.get(phase), self.cell_id) if launches else None
        return self.known.get(phase, made)

    def median(self, phase: str = STEP) -> float:
        estimate = self.estimate(phase)
        return estimate.median if estimate else math.inf

    def mean(self, phase: str = STEP) -> tuple[float, float | None, float | None] | None:
        """The launches' means, combined on the log scale, and the 95% interval: a median has no long steps in
        it."""
        launches = [np.array(samples) for samples in self.seconds(phase).values()]
        if not launches or min(one.mean() for one in launches) <= 0:
            return None
        means = [float(one.mean()) for one in launches]
        ends = interval_of_launches(means) if len(means) > 1 else interval_of_mean(launches[0])
        return geometric_mean(means) if len(means) > 1 else means[0], *ends

    def difference(
        self, other: DeviceResult, phase: str = STEP, log_factor: float = 0.0
    ) -> Difference | None:
        """The other's time over this one's, times e to the power log_factor; None where one has none."""
        scatter, both = self.scatters.get(phase), (self.cell_id, other.cell_id)
        if scatter is None or not all(map(scatter.num_launches, both)):
            return None
        return scatter.difference(*both, log_factor)

    def fact(self, name: str, key: str = "value") -> Any:
        """The first that was told; of a curve its `x` or `y`. None where there is none."""
        return next((row[key] for row in self._rows if row.get("fact") == name and key in row), None)

    @cached_property
    def scalars(self) -> dict[str, Any]:
        facts = (row for row in self._rows if "fact" in row)
        names = [row["fact"] for row in facts if isinstance(row.get("value"), (int, float, str))]
        return {name: self.fact(name) for name in dict.fromkeys(names)}

    @property
    def num_samples(self) -> int:
        return int(self.fact(SAMPLES) or 1)

    @property
    def sample_s(self) -> float:
        return self.median() / self.num_samples

    def over_samples(self, other: DeviceResult) -> Difference | None:
        return self.difference(other, log_factor=math.log(self.num_samples / other.num_samples))

    @property
    def is_over(self) -> bool:
        return all(record.state in ("done", "failed") for record in self.records)

    def per_s(self, name: str = SAMPLES, phase: str = STEP) -> float | None:
        mean, value = self.mean(phase), self.value(name)
        return value / mean[0] if mean and value else None


def fastest(cells: Iterable[DeviceResult], phase: str = STEP) -> DeviceResult | None:
    """None where no cell has a time, or one of several is not measured yet."""
    every = [*cells]
    timed = [cell for cell in every if cell.estimate(phase)]
    if len(every) > 1 and not all(cell.is_over for cell in every):
        return None
    return min(timed, key=lambda cell: cell.median(phase), default=None)


def size_of(value: Any) -> tuple[int, float, str]:
    return (0, float(value), "") if isinstance(value, (int, float)) else (1, 0.0, str(value))


def plain_report(cells: Sequence[DeviceResult]) -> Report:
    """Where nothing is declared: a figure, a table, and where the GPU, or which word, takes least time."""
    values = {name: {cell.point.get(name) for cell in cells} - {None} for name in cells[0].point}
    varied = [name for name, several in values.items() if len(several) > 1 and name != "step"]
    numbers = [name for name in varied if all(type(value) in (int, float) for value in values[name])]
    words = [name for name in varied if name not in numbers]
    x = max(numbers, key=lambda name: len(values[name]), default="")
    others = tuple(name for name in varied if name != x)
    facts = dict.fromkeys(name for cell in cells for name in cell.scalars if name != LEFT_OUT)
    phases = dict.fromkeys(phase for cell in cells for phase in cell.phases)
    shown = [Show(f"{phase}, ms", "both", phase=phase) for phase in phases]
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
    caption = "Milliseconds (column iteration_s)."
    lines = Lines("times", caption, "times of a step", (Panels(x, by=others, title=at),))
    table = Rows("", (*values, "device", "threads"), columns)
    return Report("", (*values,), (lines,) if x else (), (table,), tuple(findings))


NO_GPU = "devices: no GPU"  # how a study's note begins that says so (`scaling.study.kinds.device`)


@dataclass(frozen=True)
class DeviceResults:
    experiment: str
    slug: str
    report: Report
    cells: list[DeviceResult]
    parameters: Mapping[str, Any] = field(default_factory=dict)
    missing: Sequence[str] = ()
    num_cores: int | None = None
    folder: str = ""

    @property
    def num_launches(self) -> int:
        return min((len(cell.launches) for cell in self.cells if cell.launches), default=0)

    def where(self, where: Where, cells: Iterable[DeviceResult] | None = None) -> list[DeviceResult]:
        wanted = {name: self._allowed(value) for name, value in where.items()}
        every = self.cells if cells is None else cells
        return [cell for cell in every if all(cell.value(name) in values for name, values in wanted.items())]

    def _allowed(self, value: Any) -> Sequence[Any]:
        given = self.parameters.get(value.name, ()) if isinstance(value, Setting) else value
        return given if isinstance(given, (list, tuple)) else (given,)

    def grouped(self, cells: Iterable[DeviceResult], *names: str) -> dict[Any, list[DeviceResult]]:
        """Value of that variable, or values of several -> the cells that have it, in the report's order."""
        orders = {name: [*self._allowed(self.report.order.get(name, ()))] for name in names}

        def place(cell: DeviceResult) -> list[Any]:
            values = [(cell.value(name), order) for name, order in orders.items()]
            return [((*order, value).index(value), size_of(value)) for value, order in values]

        def key(cell: DeviceResult) -> Any:
            values = tuple(cell.value(name) for name in names)
            return values[0] if len(values) == 1 else values

        return by_key(sorted(cells, key=place), key)

    def along(self, cell: DeviceResult, x: str) -> list[DeviceResult]:
        """The cells on its device that differ from it in `x` alone, and itself, by `x`."""
        others = {**cell.point, "device": cell.device}
        others.pop(x, None)
        return sorted(self.where(others), key=lambda one: one.value(x))

    def ends(self, name: str, cells: Iterable[DeviceResult] | None = None) -> dict[str, Any]:
        values = sorted(cell.value(name) for cell in (self.cells if cells is None else cells))
        return {"least": values[0], "most": values[-1]} if values else {}

    @property
    def arms(self) -> list[Variant]:
        if self.report.variants != ARMS:
            return [variant for variant in self.report.variants if self.where(variant.where)]
        cpu = [
            Variant(f"CPU, {count} thread{'s' * (count != 1)}", {"device": "cpu", "threads": count})
            for count in sorted({cell.threads for cell in self.where({"device": "cpu"})})
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
        if isinstance(value, float):
            return f"{value:g}"
        return str(self.report.labels.get(value, value))

    def text(self, template: str, cell: DeviceResult | None = None, **more: Any) -> str:
        named = [variant.name for variant in self.arms]
        values: dict[str, Any] = {
            **self.parameters,
            "arms": " and ".join(named) if len(named) < 3 else "CPU and GPU",
            "cores": f"{self.num_cores} cores" if self.num_cores else "all cores",
        }
        if cell:
            values |= {**cell.point, "device": cell.device, "threads": cell.threads, "on": ON[cell.device]}
        texts = {name: self.label(value) for name, value in values.items() if isinstance(value, str)}
        return template.format_map({**values, **texts, **more})


ON = {device.where["device"]: device.name for device in DEVICES}
GPU_STEPS = tuple(Variant(f"GPU {step}", {"device": "cuda", "step": step}) for step in ("eager", "captured"))


def report_of(experiment: str, cells: Sequence[DeviceResult]) -> Report:
    try:
        declared: Report | None = EXPERIMENTS.load(experiment).report
    except (StudyError, AttributeError):
        declared = None
    return declared or plain_report(cells)


def read_devices(folder: ResultsFolder) -> list[DeviceResults]:
    """In the order of their names. Raises StoreError: a record or sample is missing or damaged."""
    runs = [record for record in folder.runs() if record.cell.get("kind") == DEVICE]
    if not runs:
        return []
    experiments = by_key(
        runs, lambda run: (run.cell["experiment"], repr(sorted(run.cell["parameters"].items())))
    )
    study, cores = folder.study(), num_cores(environment_of(folder))
    no_gpu = any(str(note).startswith(NO_GPU) for note in study.get("notes") or [])
    parts = [part for part in study.get("parts", []) if part.get("kind") == DEVICE]
    read: list[DeviceResults] = []
    for (name, _), records in sorted(experiments.items(), key=lambda item: item[0]):
        cells = [_cell(folder, of_cell) for of_cell in by_key(records, lambda run: run.cell_id).values()]
        _add_scatters(cells)
        same = sum(other.experiment == name for other in read)
        slug = name.replace(":", "-") + (f"-{same + 1}" if same else "")
        asked = {one for part in parts if part["experiment"]["name"] == name for one in part["devices"]}
        missing = sorted(asked - {cell.device for cell in cells}) if no_gpu else []
        given = records[0].cell["parameters"], missing, cores, str(folder.path)
        results = DeviceResults(name, slug, report_of(name, cells), cells, *given)
        ordered = results.grouped(cells, *cells[0].point, "device", "threads").values()
        read.append(replace(results, cells=[cell for group in ordered for cell in group]))
    return read


def _cell(folder: ResultsFolder, records: Sequence[RunRecord]) -> DeviceResult:
    first, launches = records[0], {}
    for record in (record for record in records if record.state == "done"):
        where = folder.path / "runs" / record.cell_id / str(record.repeat)
        (rows, *_) = folder.samples(record.cell_id, record.repeat) or [[]]
        if not rows:
            raise StoreError(f"{where}: the run is done, but nothing that it measured was recorded; {MEND}")
        validate_lines(DeviceLineModel, rows, f"{where}/rank0.jsonl")
        launches[record.repeat] = rows
    what = first.cell["point"], first.cell["device"], first.cell["threads"]
    return DeviceResult(first.cell_id, *what, launches, records)


def _add_scatters(cells: Sequence[DeviceResult]) -> None:
    """Cells of one device have their launches in common, whatever their threads."""
    for phase in dict.fromkeys(phase for cell in cells for phase in cell.phases):
        times: dict[Hashable, CellTimes] = {}
        for cell in cells:
            medians = {repeat: median(samples) for repeat, samples in cell.seconds(phase).items()}
            times[cell.cell_id] = CellTimes(cell.device, medians)
        scatter = study_scatter(times)
        for cell in cells:
            cell.scatters[phase] = scatter

"""The samples of device cells: for each point of an experiment and each device, estimates and facts.

All cells of the experiment together tell how they scatter over launches (`scaling.analysis.study_scatter`):
every interval and every difference of two cells rests on it.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain
from statistics import median
from typing import Any

from scaling.analysis.columns import DEVICE
from scaling.analysis.decisions import Difference
from scaling.analysis.grouping import by_key
from scaling.analysis.reading import environment_of, num_cores
from scaling.analysis.study_scatter import CellTimes, StudyScatter, estimate_within, study_scatter
from scaling.errors import StoreError
from scaling.measure.statistics import Estimate
from scaling.store import ResultsFolder, RunRecord
from scaling.store.records import MEND
from scaling.store.sample_schemas import DeviceLineModel, validate_lines

LEFT_OUT = "left_out"
SAMPLES = "samples"
STEP = "step"
NO_GPU = "devices: no GPU"
"""How a study's note begins that says so (`scaling.study.kinds.device`)."""


@dataclass(frozen=True)
class DeviceResult:
    """All that a folder holds of one point on one device.

    Attributes:
        cell_id: the cell's hash.
        cell: its variables (`DeviceCell.to_dict()`).
        records: one a repeat, in their order.
        launches: repeat -> rows of the done run: samples and facts (`scaling.device_studies.base`).
        scatters: phase -> how the experiment's cells scatter over launches in it.
    """

    cell_id: str
    cell: Mapping[str, Any]
    records: list[RunRecord]
    launches: Mapping[int, list[dict[str, Any]]]
    scatters: dict[str, StudyScatter] = field(default_factory=dict, repr=False)

    @property
    def point(self) -> dict[str, Any]:
        """Its independent variables, without device and threads."""
        return dict(self.cell["point"])

    @property
    def device(self) -> str:
        """cpu or cuda."""
        return str(self.cell["device"])

    @property
    def threads(self) -> int:
        """CPU threads."""
        return int(self.cell["threads"])

    def value(self, name: str) -> Any:
        """Of a variable, `device`, `threads` or a fact; None where it has no such."""
        known = {**self.point, "device": self.device, "threads": self.threads}
        return known[name] if name in known else self.fact(name)

    @property
    def reason(self) -> str | None:
        """Why it has no numbers: it was left out, or has failed; None where it has, or is not done."""
        left_out = self.fact(LEFT_OUT)
        if left_out is not None:
            return str(left_out)
        return next((record.reason for record in self.records if record.state == "failed"), None)

    @cached_property
    def phases(self) -> list[str]:
        """What was timed, in order of appearance."""
        return list(dict.fromkeys(row["phase"] for row in self._rows if "phase" in row))

    @property
    def _rows(self) -> Iterator[dict[str, Any]]:
        return chain.from_iterable(self.launches.values())

    def seconds(self, phase: str = STEP) -> dict[int, list[float]]:
        """Repeat -> its samples, where it has any."""
        launches = {
            repeat: [row["seconds"] for row in rows if row.get("phase") == phase]
            for repeat, rows in self.launches.items()
        }
        return {repeat: samples for repeat, samples in launches.items() if samples}

    def estimate(self, phase: str = STEP) -> Estimate | None:
        """Median and 95% interval of a phase's seconds; None where there is no sample, or it was left out."""
        launches = [*self.seconds(phase).values()]
        return estimate_within(launches, self.scatters.get(phase), self.cell_id) if launches else None

    def median(self, phase: str = STEP) -> float:
        """Of a phase's seconds; infinite where there is no sample."""
        estimate = self.estimate(phase)
        return estimate.median if estimate else math.inf

    def difference(
        self, other: DeviceResult, phase: str = STEP, log_factor: float = 0.0
    ) -> Difference | None:
        """The other's time over this one's, times e to the power log_factor; None where one has none."""
        scatter = self.scatters.get(phase)
        if scatter is None or not (
            scatter.num_launches(self.cell_id) and scatter.num_launches(other.cell_id)
        ):
            return None
        return scatter.difference(self.cell_id, other.cell_id, log_factor)

    def facts(self, name: str) -> list[dict[str, Any]]:
        """The rows of that fact, of all launches: with "value", or "x" and "y"."""
        return [row for row in self._rows if row.get("fact") == name]

    def fact(self, name: str) -> Any:
        """Its value, of the first launch that has it; None where none has."""
        return next((row["value"] for row in self.facts(name) if "value" in row), None)

    @cached_property
    def scalars(self) -> dict[str, Any]:
        """Facts that are a number, a text or a truth value: name -> value of the first launch."""
        facts: dict[str, Any] = {}
        for row in self._rows:
            if "fact" in row and isinstance(row.get("value"), (int, float, str)):
                facts.setdefault(row["fact"], row["value"])
        return facts

    @property
    def num_samples(self) -> int:
        """Training samples of a step; 1 where a step has no number of them."""
        return int(self.fact(SAMPLES) or 1)

    @property
    def has_failed(self) -> bool:
        """Whether one of its repeats has."""
        return any(record.state == "failed" for record in self.records)

    @property
    def is_over(self) -> bool:
        """Whether nothing of it is left to be run."""
        return all(record.state in ("done", "failed") for record in self.records)

    @property
    def samples_per_s(self) -> float | None:
        """Training samples a second, where a step has a number of them."""
        estimate, samples = self.estimate(), self.fact(SAMPLES)
        return samples / estimate.median if estimate and samples and estimate.median > 0 else None


@dataclass(frozen=True)
class Results:
    """An experiment's cells.

    Attributes:
        experiment: its name.
        slug: the same for file names; unique among the folder's experiments.
        parameters: all that the study set, or left as it is.
        cells: one for each point and device.
        missing: devices that the study asked for and this machine has not.
        num_cores: that could be used; None where that was not recorded.
        folder: of the results, for messages.
    """

    experiment: str
    slug: str
    parameters: Mapping[str, Any]
    cells: list[DeviceResult]
    missing: list[str]
    num_cores: int | None
    folder: str = ""

    @property
    def num_launches(self) -> int:
        """The fewest launches behind a number."""
        return min((len(cell.launches) for cell in self.cells if cell.launches), default=0)

    def all(self, device: str | None = None, **point: Any) -> list[DeviceResult]:
        """The cells there with these values of their variables."""
        return [
            cell
            for cell in self.cells
            if device in (None, cell.device)
            and all(cell.point.get(name) == value for name, value in point.items())
        ]


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
        cells.sort(key=_order)
        _add_scatters(cells)
        slug = f"{name}-{same + 1}" if same else name
        read.append(Results(name, slug, cells[0].cell["parameters"], cells, missing, cores, str(folder.path)))
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
    """Experiment -> the devices that the study's parts name."""
    asked: dict[str, set[str]] = {}
    for part in folder.study().get("parts", []):
        if part.get("kind") == DEVICE:
            asked.setdefault(part["experiment"]["name"], set()).update(part["devices"])
    return asked


def _order(cell: DeviceResult) -> tuple[Any, ...]:
    """By the point's values, numbers by size, then device and threads."""
    values: list[tuple[int, float, str]] = []
    for value in cell.point.values():
        is_number = isinstance(value, (int, float))
        values.append((0, float(value), "") if is_number else (1, 0.0, str(value)))
    return (values, cell.device, cell.threads, cell.cell_id)


def grouped(cells: Iterable[DeviceResult], *names: str) -> dict[Any, list[DeviceResult]]:
    """Value of that variable, or values of several -> the cells that have it; ascending."""

    def key(cell: DeviceResult) -> Any:
        values = tuple(cell.value(name) for name in names)
        return values[0] if len(values) == 1 else values

    return dict(sorted(by_key(cells, key).items()))


def paired(
    first: Iterable[DeviceResult], second: Iterable[DeviceResult], x: str, phase: str = STEP
) -> dict[Any, Difference]:
    """Value of a variable -> a phase's time of the second over that of the first, where both have one."""
    others = {cell.value(x): cell for cell in second}
    both = {
        cell.value(x): cell.difference(others[cell.value(x)], phase)
        for cell in first
        if cell.value(x) in others
    }
    return {value: difference for value, difference in sorted(both.items()) if difference is not None}


def by_network(results: Results, device: str | None = None) -> dict[str, list[DeviceResult]]:
    """Network -> its cells; the networks in the study's order."""
    groups = grouped(results.all(device), "model")
    known = [name for name in results.parameters.get("networks", []) if name in groups]
    return {name: groups[name] for name in dict.fromkeys([*known, *groups])}


def fastest(cells: Iterable[DeviceResult], device: str | None = None) -> DeviceResult | None:
    """The cell with the least median time of a step, of that device; None where none has one."""
    timed = [cell for cell in cells if device in (None, cell.device) and cell.estimate()]
    return min(timed, key=DeviceResult.median, default=None)

"""Reads what predictions are made from: results folders, and samples of `scaling topology probe`."""

from __future__ import annotations

import csv
import statistics
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path

import numpy as np

from scaling.analysis.columns import TRANSFER, Row, row_order
from scaling.analysis.environments import environment_differences
from scaling.analysis.noise import noise_floors, scatter_of
from scaling.analysis.samples import CellResult, read_cell, read_records
from scaling.analysis.summary import add_intervals, cell_row, study_name
from scaling.analysis.transfers import read_transfers
from scaling.axes import ATTACHED
from scaling.errors import StoreError
from scaling.files.documents import decoded, gunzipped, read_bytes
from scaling.files.texts import clean
from scaling.measure.probe.cases import ProbeSample, from_csv
from scaling.prediction.attached import as_timed, baseline_of, is_usable
from scaling.prediction.measured import MeasuredCell, MeasuredTransfer, measured_cells
from scaling.prediction.sources import Sources, gpu_names
from scaling.store import ResultsFolder, RunRecord, changes_since
from topologies.errors import TopologyError
from topologies.model import Topology
from topologies.schema import load

OPERATIONS = ("send", "swap", "shift", "all_reduce", "mpi_all_reduce")
LEAST_RELATIVE_SD = 0.005

LEAST_STEPS = 8  # of a launch, that tell what its steps scatter by
QUARTILES_APART = 1.349  # of a normal distribution, in standard deviations


class MeasuredFolder:
    """A study's folder, perhaps under way; asked again, it reads only cells with changed runs."""

    def __init__(self, folder: ResultsFolder) -> None:
        self._folder = folder
        self._timed: dict[str, tuple[CellResult, Row]] = {}
        self._transfer_records: list[RunRecord] = []
        self._transfers: list[MeasuredTransfer] = []

    def cells(self) -> list[MeasuredCell]:
        """The timed cells, made from the raw samples, in the order of the summary; StoreError where a sample
        of a done run is missing or damaged, PredictionError where the runs are of a script of which nothing
        can be predicted."""
        study = study_name(self._folder.require())
        by_cell = read_records(self._folder)
        attached = [run for records in by_cell.values() for run in records if run.cell["kind"] == ATTACHED]
        baseline = baseline_of(attached, str(self._folder.path)) if attached else None
        for cell_id, records in by_cell.items():
            is_timed = records[0].cell["kind"] == "iteration" or (
                baseline is not None and is_usable(records, baseline)
            )
            known = self._timed.get(cell_id)
            if is_timed and (known is None or known[0].records != records):
                cell = read_cell(self._folder, records)
                self._timed[cell_id] = cell, cell_row(study, cell)
        rows = {cell_id: row for cell_id, (_, row) in self._timed.items()}
        timed = [cell for cell, _ in self._timed.values()]
        floors = noise_floors(timed, rows)
        add_intervals(scatter_of(timed), rows)
        measured = []
        for cell, row in sorted(self._timed.values(), key=lambda pair: row_order(pair[1])):
            shapes = [text for record in cell.records if (text := record.summary.get("tensor_shapes"))]
            scattered = _with_scatter(cell, row, floors.get(cell.cell_id))
            variables = as_timed(cell.cell) if cell.cell["kind"] == ATTACHED else [cell.cell]
            measured += [(each, str(shapes[-1]) if shapes else "", scattered) for each in variables]
        return measured_cells(measured, str(self._folder.path))

    def older_code(self) -> dict[str, int]:
        """What has changed since its timed cells were measured -> how many cells that is true of."""
        changes = [
            {change.what for record in cell.done for change in changes_since(record)}
            for cell, _ in self._timed.values()
        ]
        return Counter(what for cell_changes in changes for what in sorted(cell_changes))

    def transfers(self) -> list[MeasuredTransfer]:
        records = [record for record in self._folder.require().runs() if record.cell.get("kind") == TRANSFER]
        if records != self._transfer_records:
            launches = [launch for result in read_transfers(self._folder) for launch in result.launches]
            self._transfers = transfers_from(sample for launch in launches for sample in launch)
            self._transfer_records = records
        return self._transfers


def _with_scatter(cell: CellResult, row: Row, noise_floor: float | None) -> Row:
    """The row with what repeats differ by, and the steps of one rank."""
    spreads = []
    for launch in cell.launches:
        first, median, third = np.percentile(launch.rank_steps_s, (25, 50, 75), axis=1)
        if launch.rank_steps_s.shape[1] >= LEAST_STEPS:
            spreads.append(float(np.median((third - first) / median)) / QUARTILES_APART)
    return {**row, "noise_floor": noise_floor, "step_sd": statistics.median(spreads) if spreads else None}


def transfers_from(samples: Iterable[ProbeSample]) -> list[MeasuredTransfer]:
    """Medians of a probe's samples, captured ones where there are such."""
    grouped: dict[tuple[str, tuple[int, ...], str, bool, int], list[float]] = defaultdict(list)
    for sample in samples:
        if sample.operation in OPERATIONS:
            key = (sample.operation, tuple(sample.ranks), sample.launch, sample.captured, sample.num_bytes)
            grouped[key].append(sample.seconds)
    captured = {key[:3] for key in grouped if key[3]}
    medians = []
    for (operation, ranks, launch, is_captured, num_bytes), seconds in grouped.items():
        if is_captured == ((operation, ranks, launch) in captured):
            median = statistics.median(seconds)
            spread = statistics.stdev(seconds) / median / len(seconds) ** 0.5 if len(seconds) > 2 else 0.05
            kind = operation, len(ranks), num_bytes, launch == "host_only"
            medians.append(MeasuredTransfer(*kind, median, max(LEAST_RELATIVE_SD, spread)))
    return medians


def read_samples(path: Path) -> list[ProbeSample]:
    """A probe's samples, as CSV, compressed or not; TopologyError where the file cannot be read."""
    mend = "name what `topology probe` or `topology import` wrote"
    try:
        content = read_bytes(path)
        return from_csv(decoded(gunzipped(content) if path.suffix == ".gz" else content))
    except FileNotFoundError:
        raise TopologyError(f"samples {path}: there is no such file; {mend}") from None
    except (ValueError, csv.Error) as error:
        raise TopologyError(f"samples {path}: {clean(str(error))}; {mend}") from None


def libraries_of(folders: Sequence[ResultsFolder]) -> tuple[dict[str, str], list[str]]:
    """The MPI and the Horovod of the launches, with a note where there are several: the first one counts."""
    names_seen: dict[str, dict[str, None]] = {"mpi": {}, "horovod": {}}
    for folder in folders:
        for record in folder.runs():
            for name, words in names_seen.items():
                if record.launch.get(name):
                    words[str(record.launch[name])] = None
    notes = [
        f"measured with several libraries: {', '.join(words)}; predictions take the first"
        for words in names_seen.values()
        if len(words) > 1
    ]
    return {name: next(iter(words)) for name, words in names_seen.items() if words}, notes


def sources_of(
    folders: Sequence[Path], samples: Sequence[Path], topology: Topology, source_topology: str | None
) -> tuple[Sources, list[str]]:
    """All that was measured, the machine it was measured on, and what to tell about that. The machine is, in
    this order: `source_topology`; a folder's probed.yaml, if it has as many GPUs as were measured;
    `topology`, where the folders' GPUs are the same product; a folder's topology.yaml."""
    opened = [ResultsFolder(path).require() for path in folders]
    measured_folders = [MeasuredFolder(folder) for folder in opened]
    cells = [cell for folder in measured_folders for cell in folder.cells()]
    transfers = [transfer for folder in measured_folders for transfer in folder.transfers()]
    transfers += transfers_from(sample for path in samples for sample in read_samples(path))
    largest = max((cell.world_size for cell in cells), default=1)
    widest = max((transfer.num_ranks for transfer in transfers), default=1)
    machine, note = _machine(opened, topology, source_topology, largest)
    notes = [note] if note else []
    if largest > max(machine.num_gpus, 1) and machine.num_gpus:
        notes.append(f"{machine.name} has {machine.num_gpus} GPUs: measured cells of more calibrate nothing")
    if widest > machine.num_gpus > 0:
        notes.append(f"samples of {widest} ranks are left out: {machine.name} has {machine.num_gpus} GPUs")
    if samples and not transfers:
        notes.append("the samples calibrate nothing: they have no messages and no all-reduce")
    notes += differences_between(opened)
    for folder, measured_folder in zip(opened, measured_folders, strict=True):
        notes += [
            f"{folder.path}: {count} cells were measured with older code and are used as they are; "
            f"since then {what}"
            for what, count in measured_folder.older_code().items()
        ]
    measured = {name for folder in opened for name in _gpus(folder)}
    if cells and measured and gpu_names(topology) and not measured <= gpu_names(topology):
        notes.append(
            f"computation was measured on {', '.join(sorted(measured))} and is taken as it is; "
            f"{topology.name} has {', '.join(sorted(gpu_names(topology)))}"
        )
    libraries, mixed = libraries_of(opened)
    seen = [load(source_topology)] if source_topology else list(_recorded_machines(opened))
    return Sources(cells, transfers, machine, libraries, seen), notes + mixed


def _recorded_machines(folders: Sequence[ResultsFolder]) -> Iterator[Topology]:
    for folder in folders:
        with suppress(TopologyError):
            if (folder.path / "topology.yaml").is_file():
                yield load(folder.path / "topology.yaml")


def differences_between(folders: Sequence[ResultsFolder]) -> list[str]:
    """In what the environments of folders taken together differ from the first one's; a line each."""
    notes = []
    for other in folders[1:]:
        differences = [one for one in environment_differences(folders[0], other) if one.decides]
        if differences:
            notes.append(
                f"taken together, though measured in different environments: {folders[0].path} against "
                f"{other.path}: {'; '.join(difference.line() for difference in differences)}"
            )
    return notes


def _machine(
    folders: Sequence[ResultsFolder], topology: Topology, source_topology: str | None, largest: int
) -> tuple[Topology, str | None]:
    if source_topology is not None:
        return load(source_topology), None
    probed = [folder.path / "probed.yaml" for folder in folders if (folder.path / "probed.yaml").is_file()]
    names = {name for folder in folders for name in _gpus(folder)}
    is_same = not folders or names == gpu_names(topology)
    for path in probed:
        if load(path).num_gpus >= largest or not is_same:
            return load(path), f"calibrated on the machine of {path}"
    if is_same:
        return topology, None
    for folder in folders:
        path = folder.path / "topology.yaml"
        with suppress(TopologyError):
            if path.is_file():
                return load(path), f"calibrated on the machine of {path}, whose figures are nominal"
    note = "calibrated as if it had been measured on this topology: the folders have no machine file"
    return topology, note


def _gpus(folder: ResultsFolder) -> set[str]:
    try:
        gpus = folder.environment().get("gpus") or []
    except StoreError:
        return set()
    return {str(gpu.get("name", "")).lower() for gpu in gpus}

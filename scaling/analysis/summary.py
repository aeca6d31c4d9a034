"""The summary: one row per cell, made from the raw samples alone."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from scaling.analysis.budgets import cell_budget
from scaling.analysis.cautions import cautions, code_cautions, joules_per_sample, memory_peaks
from scaling.analysis.columns import SEPARATOR, Row, columns, row_order, safe_cell, shares_gpus, to_table
from scaling.analysis.control import ControlPeers, differences_of_launches, exposed_check
from scaling.analysis.environments import environment_of
from scaling.analysis.learning import add_seeds_and_predictions, convergence_values
from scaling.analysis.noise import noise_floors, scatter_of
from scaling.analysis.samples import CellResult, read_cells
from scaling.analysis.study_scatter import MODERATED, StudyScatter
from scaling.axes import AXES
from scaling.measure.data_sheets import peak_flops
from scaling.measure.statistics import ONE_LAUNCH, interval_of_launches, interval_of_mean
from scaling.store import ResultsFolder, RunRecord
from scaling.store.run_samples import shortened
from topologies.detect_host import start_named

_EMBEDDINGS = re.compile(r"\d{1,9}x(\d{1,9}) (\d{1,9})x\1 ")  # of `gpt`: vocabulary, width, context


def summary_table(folder: ResultsFolder) -> pd.DataFrame:
    """The summary of a results folder: one row a cell, `scaling.analysis.columns.columns`; missing values do
    not exist. StoreError: samples of a done run are missing or damaged."""
    folder.require()
    return build_table(study_name(folder), read_cells(folder))


def cell_table(study: str, cells: Sequence[CellResult]) -> pd.DataFrame:
    """A row a cell, without the columns that need several cells; of the warnings only those of older code."""
    rows = [{**cell_row(study, cell), "warnings": code_cautions(cell) or None} for cell in cells]
    return to_table(sorted(rows, key=row_order))


def build_table(study: str, cells: Sequence[CellResult]) -> pd.DataFrame:
    """The summary of cells that were read already; see `summary_table`."""
    rows = {cell.cell_id: cell_row(study, cell) for cell in cells}
    trained = [cell for cell in cells if cell.is_trained]
    own_rows = {cell.cell_id: rows[cell.cell_id] for cell in trained}
    for cell_id, floor in noise_floors(trained, own_rows).items():
        rows[cell_id]["noise_floor"] = floor
    scatter, typical = scatter_of(trained), scatter_of(trained, typical=True)
    add_intervals(scatter, own_rows)
    add_seeds_and_predictions(trained, rows)
    peers = ControlPeers(trained)
    for cell in trained:
        row = rows[cell.cell_id]
        row.update(_speedup(cell, peers, rows, scatter))
        row.update(_exposed_by_difference(cell, peers, rows, typical))
        row["warnings"] = cautions(cell, row) or None
    return to_table(sorted(rows.values(), key=row_order))


def add_intervals(scatter: StudyScatter, rows: Mapping[str, Row]) -> None:
    """Adds to timed cells with several launches the intervals that all cells of the study give together."""
    for cell_id, row in rows.items():
        interval = scatter.interval(cell_id) if row["iteration_s"] is not None else None
        if interval is not None:
            row["iteration_s_low"], row["iteration_s_high"] = interval
            row["interval_method"] = MODERATED


def table_csv(table: pd.DataFrame, *, digits: int | None = None) -> str:
    """The table as RFC 4180 text; numbers have as many digits as tell them apart, or `digits`."""
    number_format = None if digits is None else f"%.{digits}g"
    texts = [name for name, kind in table.dtypes.items() if not pd.api.types.is_numeric_dtype(kind)]
    safe = table.assign(**{str(name): table[name].map(safe_cell, na_action="ignore") for name in texts})
    safe = safe.rename(columns=safe_cell)
    return safe.to_csv(index=False, lineterminator="\r\n", float_format=number_format)


def study_name(folder: ResultsFolder) -> str:
    return str(folder.study().get("name", folder.path.name))


def cell_row(study: str, cell: CellResult) -> Row:
    """The part of a row that needs this cell alone; columns that need other cells are None."""
    row: Row = dict.fromkeys(columns())
    row.update({axis.key: axis.shown(cell.cell) for axis in AXES if axis.key})
    row.update(
        study=study,
        launcher=_joined(record.launch.get("launcher") for record in cell.records),
        hosts=_joined(
            host  # the first node of each of a run's launches: its name, and the boot id of its kernel
            for record in cell.done
            for last in [start_named(record.launch.get("host"), record.launch.get("boot"))]
            for host in (*record.summary.get("hosts_before", []), last)
        ),
        num_nodes=_only(record.launch.get("num_nodes") for record in cell.done),
        state=cell.state,
        repeats=len(cell.done),
        wire_bytes_per_rank=_largest(record.summary.get("wire_bytes_per_rank") for record in cell.done),
        optimizer_state_bytes=_largest(record.summary.get("optimizer_state_bytes") for record in cell.done),
        model_flops=_only(record.summary.get("model_flops") for record in cell.done),
        reason=shortened(_joined(one.reason for one in cell.records if one.state == "failed") or "") or None,
        notes=_joined([*(note for record in cell.records for note in record.notes), *_divergence(cell)]),
        memory_peak_bytes=max(memory_peaks(cell), default=None),
        cell_id=cell.cell_id,
    )
    if cell.launches:
        row.update(_iteration_values(cell))
        tokens = _only(map(_tokens_per_sample, cell.done))
        if tokens and row["samples_per_s"]:
            row["tokens_per_s"] = row["samples_per_s"] * tokens
        if row["model_flops"] and row["iteration_s"]:
            per_worker = row["model_flops"] / cell.cell["world_size"]
            row["flops_per_s_per_worker"] = per_worker / row["iteration_s"]
            row.update(_utilization(cell, row))
    if cell.trainings:
        row.update(convergence_values(cell))
    return row


def _tokens_per_sample(record: RunRecord) -> int | None:
    """As recorded; older records of `gpt` have it in the shape of its embedding of positions."""
    tokens: int | None = record.summary.get("tokens_per_sample")
    if tokens is None and record.cell.get("model") == "gpt":
        embeddings = _EMBEDDINGS.match(record.summary.get("tensor_shapes") or "")
        tokens = int(embeddings[2]) if embeddings else None
    return tokens


def _utilization(cell: CellResult, row: Row) -> Row:
    """MFU, by the median over the runs of what their ranks measured; empty where one of them did not. And by
    the data sheet's peak, where that is known and each worker has a GPU of its own."""
    runs = [record.summary.get("matrix_rate") or [None] for record in cell.done]
    if not runs or not all(rate for ranks in runs for rate in ranks):
        return {}
    rate = float(np.median([np.mean([rank["flops_per_s"] for rank in ranks]) for ranks in runs]))
    sizes = sorted({rank["size"] for ranks in runs for rank in ranks})
    flops_per_s = row["flops_per_s_per_worker"]
    values = {"mfu": flops_per_s / rate, "matrix_flops_per_s": rate, "matrix_size": _joined(sizes)}
    is_gpu = row["device"] == "cuda" and not shares_gpus(row)
    peak = peak_flops(cell.gpu, row["precision"]) if is_gpu and cell.gpu else None
    if peak:
        values |= {"mfu_data_sheet": flops_per_s / peak, "data_sheet_flops_per_s": peak}
    return values


def _iteration_values(cell: CellResult) -> Row:
    rates = [launch.rate for launch in cell.launches]
    seconds = [rate.iteration_s for rate in rates]
    is_one = len(rates) == 1
    iteration_s = seconds[0] if is_one or min(seconds) <= 0 else float(np.exp(np.mean(np.log(seconds))))
    low, high = interval_of_mean(rates[0].cycles_s) if is_one else interval_of_launches(seconds)
    steps_s = np.concatenate([launch.step_s for launch in cell.launches])
    return {
        "iterations": cell.steps_each * len(steps_s),
        "iteration_s": iteration_s,
        "iteration_s_low": low,
        "iteration_s_high": high,
        "interval_method": ONE_LAUNCH if is_one else "t interval over launches",
        "iteration_form": _joined(rate.form for rate in rates),
        "pauses_s": cell.steps_each * sum(rate.pauses_s for rate in rates),
        "typical_iteration_s": float(np.median(steps_s)),
        "samples_per_s": cell.cell["global_batch"] / iteration_s if iteration_s > 0 else None,
        **cell_budget(cell.launches),
        "joules_per_sample": joules_per_sample(cell),
    }


def _divergence(cell: CellResult) -> list[str]:
    diverged = sum(not np.isfinite(training.train_loss).all() for training in cell.trainings)
    if not diverged:
        return []
    return [f"diverged: the training loss was not finite in {diverged} of {len(cell.trainings)} repeats"]


def _speedup(cell: CellResult, peers: ControlPeers, rows: dict[str, Row], scatter: StudyScatter) -> Row:
    """With the interval of both cells' scatter; none for the reference itself, or of one launch."""
    samples_per_s, baseline = rows[cell.cell_id]["samples_per_s"], peers.baseline_of(cell)
    reference = None if baseline is None else rows[baseline.cell_id]["samples_per_s"]
    if samples_per_s is None or baseline is None or reference is None:
        return {}
    ratio = samples_per_s / reference
    ends: tuple[float, float] | None = None
    if baseline is not cell and scatter.num_launches(cell.cell_id) and scatter.num_launches(baseline.cell_id):
        batches = math.log(cell.cell["global_batch"] / baseline.cell["global_batch"])
        ends = scatter.difference(cell.cell_id, baseline.cell_id, batches).interval
    low, high = ends or (None, None)
    efficiency = ratio / cell.cell["world_size"]
    return {"speedup": ratio, "speedup_low": low, "speedup_high": high, "parallel_efficiency": efficiency}


def _exposed_by_difference(
    cell: CellResult, peers: ControlPeers, rows: dict[str, Row], scatter: StudyScatter
) -> Row:
    row, control = rows[cell.cell_id], peers.control_arm(cell)
    if control is None or row["iteration_s"] is None:
        return {}
    other = rows[control.cell_id]
    by_difference = {"exposed_by_difference_s": row["typical_iteration_s"] - other["typical_iteration_s"]}
    difference = scatter.difference(control.cell_id, cell.cell_id)
    check = exposed_check(
        {**row, **by_difference}, other, difference, lambda: differences_of_launches(cell, control, peers)
    )
    return {**by_difference, "exposed_check": check}


def _joined(values: Iterable[Any]) -> str | None:
    return SEPARATOR.join(dict.fromkeys(str(value) for value in values if value)) or None


def _only(values: Iterable[Any]) -> Any:
    """The common value; None if the values differ, or there are none."""
    different = {value for value in values if value is not None}
    return different.pop() if len(different) == 1 else None


def _largest(per_run: Iterable[Sequence[int] | None]) -> int | None:
    return max((count for counts in per_run for count in counts or ()), default=None)


@dataclass(frozen=True)
class MeasuredStudy:
    name: str  # the study's
    table: pd.DataFrame  # the summary
    cells: list[CellResult]  # the samples it was made of
    num_cores: int | None  # CPU cores of a node; None where the environment does not say


def read_study(folder: ResultsFolder) -> MeasuredStudy:
    """Reads a folder, finished or not; StoreError where it is none, or samples are missing or damaged."""
    name, cells = study_name(folder.require()), read_cells(folder)
    return MeasuredStudy(name, build_table(name, cells), cells, num_cores(environment_of(folder)))


def num_cores(environment: Mapping[str, Any] | None) -> int | None:
    """The CPU cores of a node that workers could use; None if not recorded."""
    cpu = (environment or {}).get("cpu")
    cores = cpu.get("usable_cores", cpu.get("cores")) if isinstance(cpu, Mapping) else None
    return cores if isinstance(cores, int) else None


def notes_of(study: Mapping[str, Any]) -> tuple[list[str], list[str]]:
    """A study's notes, and the lines that `scaling attach` ended with, which are among its notes."""
    notes = [str(note) for note in study.get("notes") or []]
    is_attached = any(part.get("kind") == "attached" for part in study.get("parts") or [])
    return (notes[:1], notes[1:]) if is_attached else (notes, [])

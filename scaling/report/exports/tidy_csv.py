"""All samples as one long table: a value a row, RFC 4180, for pandas, R and spreadsheets.

| column | what |
|---|---|
| study, cell_id | of the sample; the cell's further variables are in summary.csv, by cell_id |
| kind, model, dataset, aggregator, step, device, scaling | of the cell |
| world_size, global_batch, aa_replicate | of the cell |
| repeat, rank | of the sample; a rank that is empty means all |
| index | of the step or epoch |
| sample | unprofiled, profiled, epoch; point: of an experiment, which has no model; plan: not measured |
| quantity, unit, value | iteration_s, a part of a profiled step, of an epoch, or a phase of an experiment |
| quantity, unit, value | of a plan: sent_to_1 or sent_to_h0 (host memory 0), the bytes of a step |

Transfers are left out: transfers.csv is theirs.
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import chain
from typing import Any

from scaling.analysis.budgets import step_table
from scaling.analysis.columns import DEVICE, safe_cell
from scaling.analysis.learning import epoch_table
from scaling.analysis.links import known_plan
from scaling.analysis.samples import CellResult
from scaling.analysis.summary import study_name
from scaling.store import ResultsFolder

OF_THE_CELL = ("kind", "model", "dataset", "aggregator", "step", "device", "scaling")
COLUMNS = (
    *("study", "cell_id", *OF_THE_CELL),
    *("world_size", "global_batch", "aa_replicate", "repeat", "rank", "index"),
    *("sample", "quantity", "unit", "value"),
)

OF_EPOCHS = {
    "samples": "1",
    "train_s": "s",
    "train_j": "J",
    "learning_rate": "1",
    "train_loss": "1",
    "train_accuracy": "1",
    "test_loss": "1",
    "test_accuracy": "1",
}
"""Column of convergence.csv -> its unit."""


def tidy_csv(folder: ResultsFolder, cells: Sequence[CellResult]) -> Iterator[str]:
    yield _line(COLUMNS)
    name = study_name(folder)
    for cell in cells:
        labels = {one: cell.label(one) for one in ("model", "dataset", "aggregator") if cell.is_trained}
        about = [name, cell.cell_id, *({**cell.cell, **labels}.get(column) for column in OF_THE_CELL)]
        about += [cell.cell.get(column) for column in ("world_size", "global_batch")]
        about.append(cell.cell.get("aa_replicate", 0) if cell.is_trained else None)
        rows = (_unprofiled(cell), _profiled(cell), _epochs(cell), _points(folder, cell), _sent(cell))
        for row in chain.from_iterable(rows):
            yield _line([*about, *row])


def _unprofiled(cell: CellResult) -> Iterator[list[Any]]:
    for launch in cell.all_launches:
        for rank, steps in enumerate(launch.rank_steps_s):
            for index, step_s in zip(launch.iterations.tolist(), steps.tolist(), strict=True):
                yield [launch.repeat, rank, index, "unprofiled", "step_s", "s", repr(step_s)]


def _profiled(cell: CellResult) -> Iterator[list[Any]]:
    if not cell.all_launches:
        return
    table = step_table([cell])
    named = ("cell_id", "repeat", "rank", "iteration")
    for row in table.to_dict("records"):
        for name, value in row.items():
            if name not in named and not math.isnan(value):
                where = [row["repeat"], row["rank"], row["iteration"]]
                yield [*where, "profiled", name, "s", repr(float(value))]


def _epochs(cell: CellResult) -> Iterator[list[Any]]:
    if not cell.trainings:
        return
    for row in epoch_table([replace(cell, begun=())]).to_dict("records"):
        for name, unit in OF_EPOCHS.items():
            value = row[name]
            if isinstance(value, (int, float)) and math.isfinite(value):
                yield [row["repeat"], "", row["epoch"], "epoch", name, unit, repr(value)]


def _sent(cell: CellResult) -> Iterator[list[Any]]:
    plan = known_plan(cell) if cell.is_trained else None
    if plan is None:
        return
    for rank in range(plan.world_size):
        for node, count in plan.sent_to(rank).items():
            yield ["", rank, "", "plan", f"sent_to_{node}", "B", round(count)]


def _points(folder: ResultsFolder, cell: CellResult) -> Iterator[list[Any]]:
    if cell.cell["kind"] != DEVICE:
        return
    for record in cell.done:
        for rank, lines in enumerate(folder.samples(cell.cell_id, record.repeat)):
            timed = [line for line in lines if "phase" in line and line.get("seconds") is not None]
            for index, line in enumerate(timed):
                yield [record.repeat, rank, index, "point", f"{line['phase']}_s", "s", repr(line["seconds"])]


def _line(values: Sequence[Any]) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="").writerow([safe_cell(value) for value in values])
    return text.getvalue()

"""How far a study is: the states of its cells. Reads the records alone, no samples."""

from __future__ import annotations

from typing import Any

from scaling.report.columns import to_rows
from scaling.report.samples import CellResult, read_records
from scaling.report.tables import build_table, study_name
from scaling.store import ResultsFolder


def status_table(folder: ResultsFolder) -> list[dict[str, Any]]:
    """The state of every cell, in the summary's order.

    Returns:
        One dict a cell: cell_id, kind, model, dataset, aggregator (labels), world_size, global_batch, state
        (of the cell), states (one a repeat, in their order), reason (None where nothing failed).

    Raises:
        StoreError: the folder is none, or a record is damaged.
    """
    folder.require()
    records = read_records(folder)
    cells = [CellResult(cell_id, own[0].cell, own, [], []) for cell_id, own in records.items()]
    kept = (
        "cell_id",
        "kind",
        "model",
        "dataset",
        "aggregator",
        "world_size",
        "global_batch",
        "state",
        "reason",
    )
    return [
        {**{name: row[name] for name in kept}, "states": [record.state for record in records[row["cell_id"]]]}
        for row in to_rows(build_table(study_name(folder), cells))
    ]

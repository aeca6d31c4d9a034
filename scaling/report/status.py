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


def describe_status(rows: list[dict[str, Any]]) -> str:
    """The same as text: one line a cell, then what is left."""
    lines = []
    for row in rows:
        reason = f"  {row['reason']}" if row["reason"] else ""
        name, states = row["aggregator"] or "", ", ".join(row["states"])
        lines.append(f"{row['kind']:11} {row['world_size']:3} x {name:14} {states}{reason}")
    return "\n".join([*lines, what_is_left(rows)])


def what_is_left(rows: list[dict[str, Any]]) -> str:
    """One sentence: the runs that are neither done nor failed, by world size.

    Args:
        rows: of `status_table`.
    """
    num_runs = sum(len(row["states"]) for row in rows)
    num_failed = sum(row["states"].count("failed") for row in rows)
    failed = f"; {num_failed} failed, `--retry-failed` runs them again" if num_failed else ""
    left: dict[int, int] = {}
    for row in rows:
        num_left = sum(state not in ("done", "failed") for state in row["states"])
        left[row["world_size"]] = left.get(row["world_size"], 0) + num_left
    parts = [
        f"{number} with {size} worker{'s' * (size > 1)}" for size, number in sorted(left.items()) if number
    ]
    if not parts:
        return f"nothing is left of {num_runs} runs{failed}"
    how_many = f"{sum(left.values())} of {num_runs} runs are left: {', '.join(parts)}"
    return f"{how_many}; the same `run` or `submit` goes on{failed}"

"""The columns of summary.csv: their names, order and types, and the order of the rows."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import pandas as pd

from scaling.measure.phase_names import PHASES

Row = dict[str, Any]
"""One cell: a value for every column, None where it does not exist."""

INDEPENDENT = {
    "study": "string",
    "kind": "string",
    "model": "string",
    "dataset": "string",
    "aggregator": "string",
    "step": "string",
    "launcher": "string",
    "device": "string",
    "scaling": "string",
    "world_size": "Int64",
    "local_batch": "Int64",
    "global_batch": "Int64",
    "threads": "Int64",
    "peer_access": "boolean",
    "num_nodes": "Int64",
    "precision": "string",
    "learning_rate": "float64",
    "momentum": "float64",
    "weight_decay": "float64",
    "nesterov": "boolean",
    "seed": "Int64",
}
"""What was chosen, with its type."""

_FIRST_PHASES = ("h2d", "d2h")  # the copies over the host's links come before the other phases
PHASE_COLUMNS = {
    name: f"{name}_s" for name in (*_FIRST_PHASES, *(p for p in PHASES if p not in _FIRST_PHASES))
}
"""Phase -> its column, in the order of the columns."""

MEASURED = {
    "state": "string",
    "repeats": "Int64",
    "iterations": "Int64",
    "iteration_s": "float64",
    "iteration_s_low": "float64",
    "iteration_s_high": "float64",
    "interval_method": "string",
    "samples_per_s": "float64",
    "speedup": "float64",
    "parallel_efficiency": "float64",
    "exposed_comm_s": "float64",
    "wire_bytes_per_rank": "Int64",
    **dict.fromkeys(PHASE_COLUMNS.values(), "float64"),
    "epochs": "Int64",
    "train_loss": "float64",
    "final_test_accuracy": "float64",
    "seconds_to_target": "float64",
    "target_accuracy": "float64",
    "train_s": "float64",
    "reason": "string",
    "notes": "string",
    "cell_id": "string",
}
"""What came out, with its type."""

COLUMNS: dict[str, str] = {**INDEPENDENT, **MEASURED}

KINDS = ("iteration", "convergence")
AGGREGATORS = ("none", "all_reduce", "ring", "tree", "host_serial", "host_parallel")
"""The order in which they are shown; others follow, by label."""

CONTROL_ARMS = ("none", "no_op")
"""Aggregators that exchange nothing: a bound for the others, never a candidate."""


SEPARATOR = " | "
"""Between several notes or reasons in one field: prose holds commas and semicolons itself."""


def aggregator_name(label: str) -> str:
    """`one_bit(threshold=mean)` -> `one_bit`."""
    return label.partition("(")[0]


def is_control_arm(row: Row) -> bool:
    """Whether nothing is exchanged in this cell, by its aggregator's name."""
    return aggregator_name(row["aggregator"]) in CONTROL_ARMS


def aggregator_order(label: str) -> tuple[int, str]:
    """A sort key: the known ones in AGGREGATORS' order, then the others by label."""
    name = aggregator_name(label)
    return (AGGREGATORS.index(name) if name in AGGREGATORS else len(AGGREGATORS), label)


def fixed_batch(row: Mapping[str, Any]) -> int:
    """The batch that the world size does not change: the worker's under weak scaling, else the global one."""
    return int(row["local_batch"] if row["scaling"] == "weak" else row["global_batch"])


def row_order(row: Row) -> tuple[Any, ...]:
    """A sort key: kind, model, dataset, batch, aggregator, world size, then the other axes."""
    kind = KINDS.index(row["kind"]) if row["kind"] in KINDS else len(KINDS)
    workload = (kind, row["kind"], row["model"], row["dataset"], row["scaling"], fixed_batch(row))
    rest = [str(row[name]) for name in INDEPENDENT if name not in ("world_size", "aggregator")]
    return (*workload, *aggregator_order(row["aggregator"]), row["world_size"], *rest, row["cell_id"])


def to_table(rows: Iterable[Row]) -> pd.DataFrame:
    """Rows -> a table of COLUMNS, with their types; None becomes a missing value."""
    table = pd.DataFrame(list(rows), columns=list(COLUMNS), dtype=object)
    return table.astype(COLUMNS)


def to_rows(table: pd.DataFrame) -> list[Row]:
    """A table -> one dict a row, a missing value being None."""
    return [
        {str(name): None if pd.isna(value) else value for name, value in record.items()}
        for record in table.to_dict("records")
    ]

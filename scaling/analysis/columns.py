"""The columns of summary.csv: their names, order and types, and the order of the rows."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import pandas as pd

from scaling.axes import TRAINED, column_types, fixed_batch, kind_of_table, workers
from scaling.measure.budget import PARTS

Row = dict[str, Any]
"""One cell: a value for every column, None where it does not exist."""

PART_COLUMNS = {name: f"{name}_s" for name in PARTS}
"""Part of a step (`scaling.measure.budget`) -> its column."""

BUDGET_COLUMNS = (
    *("input_s", "h2d_s", "forward_s", "backward_s", "encode_s", "decode_s", "d2h_s", "reduce_s"),
    *("h2d_result_s", "hidden_comm_s", "exposed_comm_s", "clip_s", "update_s", "wait_s", "unattributed_s"),
    "hidden_h2d_s",
)
"""A step's budget: the parts, which sum to its time, and what is hidden under them."""

# What people look for first, and the copies over the host's links.
_LISTED_FIRST = ("exposed_comm_s", "h2d_s", "d2h_s")
_FURTHER = tuple(name for name in BUDGET_COLUMNS if name not in _LISTED_FIRST)

MEASURED = {
    "state": "string",
    "repeats": "Int64",
    "iterations": "Int64",
    "iteration_s": "float64",
    "iteration_s_low": "float64",
    "iteration_s_high": "float64",
    "interval_method": "string",
    "iteration_form": "string",
    "pauses_s": "float64",
    "typical_iteration_s": "float64",
    "samples_per_s": "float64",
    "tokens_per_s": "float64",
    "speedup": "float64",
    "speedup_low": "float64",
    "speedup_high": "float64",
    "parallel_efficiency": "float64",
    "exposed_comm_s": "float64",
    "wire_bytes_per_rank": "Int64",
    "h2d_s": "float64",
    "d2h_s": "float64",
    **dict.fromkeys(_FURTHER, "float64"),
    "profiled_iteration_s": "float64",
    "profiling_overhead_s": "float64",
    "exchange_overhead_s": "float64",
    "exposed_by_difference_s": "float64",
    "exposed_check": "object",
    "skew_s": "float64",
    "noise_floor": "float64",
    "joules_per_sample": "float64",
    "memory_peak_bytes": "Int64",
    "optimizer_state_bytes": "Int64",
    "model_flops": "float64",
    "flops_per_s_per_worker": "float64",
    "mfu": "float64",
    "matrix_flops_per_s": "float64",
    "matrix_size": "string",
    "mfu_data_sheet": "float64",
    "data_sheet_flops_per_s": "float64",
    "epochs": "Int64",
    "train_loss": "float64",
    "train_accuracy": "float64",
    "test_loss": "float64",
    "final_test_accuracy": "float64",
    "bits_per_byte": "float64",
    "num_seeds": "Int64",
    "seed_mean_accuracy": "float64",
    "seed_sd_accuracy": "float64",
    "seconds_to_target": "float64",
    "predicted_s_to_target": "float64",
    "predicted_s_to_target_low": "float64",
    "predicted_s_to_target_high": "float64",
    "prediction_lacks": "string",
    "epochs_to_target": "float64",
    "samples_to_target": "float64",
    "joules_to_target": "float64",
    "target_accuracy": "float64",
    "target_state": "string",
    "noise_scale": "float64",
    "noise_scale_low": "float64",
    "noise_scale_high": "float64",
    "train_s": "float64",
    "hosts": "string",
    "reason": "string",
    "notes": "string",
    "warnings": "object",
    "cell_id": "string",
}
"""What came out, with its type; objects are findings, or tuples of them."""

SPEEDUP = ("speedup", "speedup_low", "speedup_high")

TRANSFER = "transfer"
"""The kind of cells that are copies, messages and collectives alone."""

DEVICE = "device"
"""The kind of cells that are points of an experiment (`scaling.report.device`)."""

KINDS = (*TRAINED, TRANSFER, DEVICE)
PLACEMENTS = ("device", "pinned", "pageable", "loader")
AGGREGATORS = ("none", "no_op", "all_reduce", "ring", "tree", "host_serial", "host_parallel")
"""The orders in which they are shown; others follow, by label."""

CONTROL_ARMS = ("none", "no_op")
"""Aggregators that exchange nothing: a bound for the others, never a candidate."""


SEPARATOR = " | "
"""Between several notes or reasons in one field: prose holds commas and semicolons itself."""

OLDER_CODE = "older_code"
"""The kind of the warning of cells that were measured before the code changed."""


def columns() -> dict[str, str]:
    """The columns of summary.csv in order, with their types: independent variables, then results."""
    return {**column_types(), **MEASURED}


def aggregator_name(label: str) -> str:
    """The name in an aggregator's label: `one_bit(threshold=mean)` -> `one_bit`."""
    return label.partition("(")[0]


def with_local_updates(row: Row) -> str:
    """The aggregator's label, with the outer update of local updates and how often it is taken."""
    if row["outer_update"] is None:
        return str(row["aggregator"])
    every = row["sync_every"]
    return f"{row['aggregator']}, {row['outer_update']} every {f'{every} steps' if every > 1 else 'step'}"


def is_control_arm(row: Row) -> bool:
    """Whether the aggregator with this name exchanges nothing."""
    return aggregator_name(row["aggregator"]) in CONTROL_ARMS


def is_unchanged(row: Row) -> bool:
    """Whether it is no experiment with a user's script: a cell of a study, or the script as it is."""
    return row["arm"] in (None, "baseline")


def has_no_model(row: Mapping[str, Any]) -> bool:
    """Whether this cell, or row, has no model."""
    return kind_of_table(row) not in TRAINED


def shares_gpus(row: Mapping[str, Any]) -> bool:
    """Whether workers of this cell, or row, shared a GPU: its seconds and joules are not meaningful."""
    return (row.get("workers_per_gpu") or 1) > 1


def unit_of_workers(row: Mapping[str, Any]) -> str:
    """What a worker of this row is called: `GPU` where each has one of its own."""
    return "GPU" if row["device"] == "cuda" and not shares_gpus(row) else "worker"


def workers_of(row: Mapping[str, Any]) -> str:
    """`4 GPUs`, `1 worker`: how many workers this row has."""
    return workers(row["world_size"], unit_of_workers(row))


def is_of_older_code(row: Mapping[str, Any]) -> bool:
    """Whether this cell was measured before a code change that affects its time."""
    return any(warning.kind == OLDER_CODE for warning in row.get("warnings") or ())


def is_aa_replicate(row: Row) -> bool:
    """Whether this is the second cell of an A/A pair, measured only for the noise floor."""
    return bool(row["aa_replicate"])


def aggregator_order(label: str) -> tuple[int, str]:
    """A sort key: known aggregators in AGGREGATORS' order, then the others by label."""
    name = aggregator_name(label)
    return (AGGREGATORS.index(name) if name in AGGREGATORS else len(AGGREGATORS), label)


def row_order(row: Row) -> tuple[Any, ...]:
    """A sort key: kind, model, dataset, batch, aggregator, world size, then the other axes."""
    kind = KINDS.index(row["kind"]) if row["kind"] in KINDS else len(KINDS)
    workload: tuple[Any, ...] = (kind, row["kind"], has_no_model(row))
    if not has_no_model(row):
        workload += (row["model"], row["dataset"], row["scaling"], fixed_batch(row))
        workload += aggregator_order(row["aggregator"])
    rest = [_sortable(row[name]) for name in column_types() if name not in ("world_size", "aggregator")]
    return (*workload, row["world_size"], *rest, row["cell_id"])


def _sortable(value: Any) -> tuple[int, float, str]:
    """Missing values first, then numbers by size, then texts."""
    if value is None:
        return (0, 0.0, "")
    if value in PLACEMENTS:
        return (1, float(PLACEMENTS.index(value)), "")
    return (1, float(value), "") if isinstance(value, (int, float)) else (2, 0.0, str(value))


def to_table(rows: Iterable[Row]) -> pd.DataFrame:
    """Rows -> a table of `columns`, with their types; None becomes a missing value."""
    table = pd.DataFrame(list(rows), columns=list(columns()), dtype=object)
    return table.astype(columns())


def to_rows(table: pd.DataFrame) -> list[Row]:
    """A table -> one dict per row, with None for missing values."""
    return [
        {str(name): None if pd.isna(value) else value for name, value in record.items()}
        for record in table.to_dict("records")
    ]

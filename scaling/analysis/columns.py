"""The columns of summary.csv: their names, order and types, and the order of the rows."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping
from typing import Any, TypeVar

import pandas as pd

from scaling.axes import TRAINED, column_types, fixed_batch, kind_of_table, workers
from scaling.files.texts import clean
from scaling.measure.budget import PARTS

Row = dict[str, Any]  # one cell: a value for every column, None where it does not exist
PART_COLUMNS = {name: f"{name}_s" for name in PARTS}  # part of a step (`scaling.measure.budget`)

BUDGET_COLUMNS = (
    *("input_s", "h2d_s", "forward_s", "backward_s", "encode_s", "decode_s", "d2h_s", "reduce_s"),
    *("h2d_result_s", "hidden_comm_s", "exposed_comm_s", "clip_s", "update_s", "wait_s", "unattributed_s"),
    "hidden_h2d_s",
)
"""A step's budget: the parts, which sum to its time, and what is hidden under them."""

_OF_KEYS = {
    "study": "name of the study",
    "kind": "iteration, convergence, transfer or device",
    "model": "network, with its parameters",
    "dataset": "data set, with its parameters",
    "aggregator": "aggregator, with the parameters that differ from its defaults",
    "launcher": "what started the workers",
    "device": "cpu or cuda",
    "scaling": "strong or weak",
    "world_size": "number of workers",
    "local_batch": "samples per worker and step",
    "global_batch": "samples of all workers per step",
    "num_nodes": "number of hosts",
    "aa_replicate": "1: second measurement of an A/A pair",
    "bucket_mb": "size of gradient buckets in MiB, with `step: overlapped` or a layer-by-layer exchange",
    "bucket_sizes_mb": "sizes of DDP's buckets one by one in MiB; the last is repeated",
    "arm": "what was changed in a run of an attached script",
}
_OF_RESULTS = {
    "state": "planned, running, done or failed",
    "repeats": "launches that measured the cell",
    "iterations": "unprofiled steps of all launches",
    "iteration_s": "time of a step: wall clock of the slowest rank over unprofiled steps, launches combined",
    "iteration_s_low": "lower end of its 95% interval",
    "iteration_s_high": "upper end of its 95% interval",
    "interval_method": "how the interval was computed",
    "iteration_form": "wall clock, or mean of steps where starts of steps were not recorded: without gaps; "
    "of device studies the median of steps",
    "pauses_s": "what is left out of iteration_s: pauses in which ranks compare notes, all launches",
    "typical_iteration_s": "median step of the slowest rank, for comparisons with phases",
    "samples_per_s": "global batch / iteration_s; of device studies samples over the mean step",
    "tokens_per_s": "samples_per_s x tokens of a sample, of models of tokens",
    "speedup": "throughput over that of one worker without exchange",
    "speedup_low": "lower end of its 95% interval, by the scatter of both cells",
    "speedup_high": "upper end of its 95% interval",
    "parallel_efficiency": "speedup / world_size; the ends of its interval likewise",
    "exposed_comm_s": "communication that no computation hides",
    "wire_bytes_per_rank": "bytes per step that the busiest rank sends or copies over the host's link",
    "h2d_s": "waiting for the batch's copy to the GPU",
    "d2h_s": "copy of gradients to host memory",
    "input_s": "making the batch",
    "forward_s": "forward pass",
    "backward_s": "backward pass",
    "encode_s": "encoding by the codec",
    "decode_s": "decoding by the codec",
    "reduce_s": "sums and divisions outside messages",
    "h2d_result_s": "copy of results from host memory to the GPU",
    "hidden_comm_s": "communication during the computation",
    "clip_s": "clipping of the gradient",
    "update_s": "optimizer step",
    "wait_s": "waiting for other ranks",
    "unattributed_s": "time in no phase",
    "hidden_h2d_s": "copy of the batch during the computation",
    "profiled_iteration_s": "time of a profiled step; the phases add up to it",
    "profiling_overhead_s": "profiled step less unprofiled step",
    "exchange_overhead_s": "exposed_comm + wait + encode + decode + d2h + reduce + h2d_result",
    "exposed_by_difference_s": "typical_iteration_s less that of the control arm",
    "exposed_check": "whether the two agree, or why not",
    "skew_s": "arrival of the last rank at the exchange after the first",
    "noise_floor": "relative difference of A/A pairs",
    "joules_per_sample": "energy of all GPUs per sample",
    "memory_peak_bytes": "peak of tensor memory on any rank's GPU, with the data set",
    "optimizer_state_bytes": "largest optimizer state of a rank",
    "model_flops": "floating-point operations of a step, all workers",
    "flops_per_s_per_worker": "model_flops / iteration_s / world_size",
    "mfu": "model FLOPs utilization by what was measured: flops_per_s_per_worker / matrix_flops_per_s",
    "matrix_flops_per_s": "operations in products of matrices, measured in this precision: mean of the ranks",
    "matrix_size": "rows and columns of these matrices: the best of several sizes",
    "mfu_data_sheet": "the same by the data sheet, as in papers: over data_sheet_flops_per_s",
    "data_sheet_flops_per_s": "dense peak of the GPU in this precision by its data sheet; empty: not known",
    "epochs": "epochs trained",
    "train_loss": "loss on training samples after the last epoch",
    "train_accuracy": "accuracy on training samples after the last epoch",
    "test_loss": "loss on the test set after the last epoch",
    "final_test_accuracy": "accuracy on the test set after the last epoch",
    "bits_per_byte": "test loss of text in bits per byte",
    "num_seeds": "seeds that were trained",
    "seed_mean_accuracy": "mean accuracy over seeds",
    "seed_sd_accuracy": "standard deviation of the accuracy over seeds",
    "seconds_to_target": "training time to the target",
    "predicted_s_to_target": "the same, predicted as iteration_s x iterations",
    "predicted_s_to_target_low": "lower end of its 95% interval; empty with one training",
    "predicted_s_to_target_high": "upper end of its 95% interval",
    "prediction_lacks": "what the timed step lacks of the training's",
    "epochs_to_target": "epochs to the target",
    "samples_to_target": "samples to the target",
    "joules_to_target": "energy of all GPUs to the target",
    "target_accuracy": "target of the study",
    "target_state": "reached, or why not",
    "noise_scale": "gradient noise scale in samples: tr(Sigma) / |G|^2 over epochs to the target, or all",
    "noise_scale_low": "lower end of its 95% interval; empty: too few looks at gradients, or none",
    "noise_scale_high": "upper end of its 95% interval; empty with a lower end: no upper one",
    "preconditioned_noise_scale": "the same of the gradients as Adam divides them",
    "preconditioned_noise_scale_low": "lower end of its 95% interval; empty likewise, or without Adam",
    "preconditioned_noise_scale_high": "upper end of its 95% interval",
    "train_s": "time of all training steps, without evaluation",
    "hosts": "host and boot of each run",
    "reason": "why the cell failed",
    "notes": "what the run recorded",
    "warnings": "what makes the numbers doubtful",
    "cell_id": "hash of the cell's settings",
}
"""What the columns mean, the results in their order."""

MEANINGS = {**_OF_KEYS, **_OF_RESULTS}  # columns that are keys of a study have the key's meaning

_NO_NUMBERS = {
    "string": (
        *("state", "interval_method", "iteration_form", "matrix_size", "prediction_lacks", "target_state"),
        *("hosts", "reason", "notes", "cell_id"),
    ),
    "Int64": (
        *("repeats", "iterations", "wire_bytes_per_rank", "memory_peak_bytes", "optimizer_state_bytes"),
        *("epochs", "num_seeds"),
    ),
    "object": ("exposed_check", "warnings"),
}
MEASURED = {
    name: next((kind for kind, names in _NO_NUMBERS.items() if name in names), "float64")
    for name in _OF_RESULTS
}
"""What came out, with its type; objects are findings, or tuples of them."""

SPEEDUP = ("speedup", "speedup_low", "speedup_high")

TRANSFER = "transfer"  # the kind of cells that are copies, messages and collectives alone
DEVICE = "device"  # the kind of cells that are points of an experiment (`scaling.report.device`)

KINDS = (*TRAINED, TRANSFER, DEVICE)
PLACEMENTS = ("device", "pinned", "pageable", "loader")
AGGREGATORS = ("none", "no_op", "all_reduce", "ring", "tree", "host_serial", "host_parallel")
"""The orders in which they are shown; others follow, by label."""

CONTROL_ARMS = ("none", "no_op")  # they exchange nothing: a bound for the others, never a candidate


SEPARATOR = " | "  # between several notes or reasons in one field: prose holds commas and semicolons itself
OLDER_CODE = "older_code"  # the kind of the warning of cells that were measured before the code changed


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
    return aggregator_name(row["aggregator"]) in CONTROL_ARMS


def is_unchanged(row: Row) -> bool:
    """Whether it is no experiment with a user's script: a cell of a study, or the script as it is."""
    return row["arm"] in (None, "baseline")


def has_no_model(row: Mapping[str, Any]) -> bool:
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
    return pd.DataFrame(list(rows), columns=list(columns()), dtype=object).astype(columns())


def to_rows(table: pd.DataFrame) -> list[Row]:
    """A table -> one dict per row, with None for missing values."""
    names = [str(name) for name in table]
    # column by column: `DataFrame.where` takes five times as long; pandas-stubs know no None here
    values = [column.to_numpy(object, na_value=None).tolist() for _, column in table.items()]  # type: ignore[call-overload]
    return [dict(zip(names, record, strict=True)) for record in zip(*values, strict=True)]


Item = TypeVar("Item")
Key = TypeVar("Key", bound=Hashable)


def by_key(items: Iterable[Item], key: Callable[[Item], Key]) -> dict[Key, list[Item]]:
    """Key -> its items; keys are in the order of their first items."""
    groups: dict[Key, list[Item]] = {}
    for item in items:
        groups.setdefault(key(item), []).append(item)
    return groups


def pick(row: Mapping[str, Any], *names: str) -> dict[str, Any]:
    return {name: row[name] for name in names}


FORMULA_STARTS = ("=", "+", "-", "@", "\t")


def safe_cell(value: Any) -> Any:
    """A value as a CSV cell; text that begins like a formula, and is no number, gets a leading apostrophe:
    labels may be other people's (OWASP, "CSV Injection")."""
    if not isinstance(value, str):
        return value
    text = clean(value)
    return f"'{text}" if text.lstrip(" ").startswith(FORMULA_STARTS) and not _is_number(text) else text


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True

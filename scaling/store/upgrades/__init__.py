"""Records of older versions, read as those of today.

Version 1 counted one direction of a copy: `wire_bytes_per_rank` of sums in host memory lacked what comes
back. That follows from the aggregator where it moved its whole gradient; else the bytes, and
`messages_per_rank` with any such copy, are dropped, so that no table mixes the two counts. Version 2 and
before called the second cell of an A/A pair `twin`, 3 and before `profiled_iterations` `split_iterations`.
Until 5 a line of samples had `split` for `profiled`, and seconds were of `unsplit` and `split` iterations;
the first folders had `<phase>_s` in place of spans. Since 7 a summary has `block_iterations`, the steps of
each unprofiled block.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

_BYTES, _MESSAGES = "wire_bytes_per_rank", "messages_per_rank"
_VALUE_BYTES = 4  # of version 1 gradients were float32

_Count = Callable[[int, int], int]  # of bytes then and of the gradient, today's


_SUMMED_ON_HOST = ("host_serial", "host_parallel", "torch_cpu", "tensorflow", "mxnet_local")
_BACK_FROM_HOST: dict[str, _Count] = {
    **dict.fromkeys(_SUMMED_ON_HOST, lambda counted, _: 2 * counted),
    "cntk_32bit": lambda counted, gradient_bytes: counted + 2 * gradient_bytes,
}
_BACK_FROM_HOST_TO_GPU: dict[str, _Count] = {
    "mpi": _BACK_FROM_HOST["cntk_32bit"],
    "mpi_one_bit": lambda counted, _: 3 * counted,  # each rank receives as many bytes as it sends
}

_BETWEEN_RANKS = (
    *("none", "no_op", "all_reduce", "ring", "tree", "schedule"),
    *("one_bit", "one_bit_flat", "one_bit_momentum"),
    *("two_bit", "sign", "ef_sign", "qsgd", "top_k", "power_sgd", "fp16", "bf16", "mpi", "mpi_one_bit"),
    *("horovod", "horovod_optimizer", "caffe", "caffe_nccl", "cntk", "mxnet_device", "mxnet_tree"),
    *("tf_replicated", "torch_dpt"),
)  # of version 1, without copies to host memory; the two of MPI where there is no GPU


RENAMED_KEYS = {"twin": "aa_replicate", "split_iterations": "profiled_iterations"}  # of cells and parts


def with_new_keys(values: Mapping[str, Any]) -> dict[str, Any]:
    """A cell or a part of a study under the names of today."""
    return {RENAMED_KEYS.get(key, key): value for key, value in values.items()}


def upgraded(values: Mapping[str, Any], version: int) -> dict[str, Any]:
    """The values of a run's record of that version, as one of today's."""
    cell, summary = values.get("cell"), values.get("summary")
    upgraded_values = {**values, "schema_version": 7}
    if version < 2 and isinstance(summary, dict) and summary.get(_BYTES):
        upgraded_values["summary"] = _both_directions(cell or {}, summary)
    if version < 4 and isinstance(cell, dict):
        upgraded_values["cell"] = with_new_keys(cell)
    summary = upgraded_values.get("summary")
    if version < 6 and isinstance(summary, dict) and isinstance(summary.get("seconds"), dict):
        upgraded_values["summary"] = {**summary, "seconds": _with_new_parts(summary["seconds"], "")}
    return upgraded_values


def _both_directions(cell: Mapping[str, Any], summary: Mapping[str, Any]) -> dict[str, Any]:
    name, counted = str(cell.get("aggregator")), summary[_BYTES]
    count = _BACK_FROM_HOST.get(name)
    if cell.get("device") == "cuda":
        count = _BACK_FROM_HOST_TO_GPU.get(name, count)
    on_device = (cell.get("aggregator_parameters") or {}).get("transport") == "device"
    if not any(counted) or (count is None and name in _BETWEEN_RANKS) or (name == "cntk_32bit" and on_device):
        return dict(summary)
    today = {key: value for key, value in summary.items() if key not in (_BYTES, _MESSAGES)}
    parameters = summary.get("num_parameters")
    if count is not None and parameters is not None:
        today[_BYTES] = [count(num_elements, _VALUE_BYTES * parameters) for num_elements in counted]
    return today


DATA_IN_HOST_MEMORY = "data_in_host_memory"  # in a summary: of each rank, its data set did not fit


def has_data_in_host_memory(summary: Mapping[str, Any], notes: Iterable[str]) -> bool:
    """Whether any rank's data set stayed in host memory; by the notes of a record older than the key."""
    if DATA_IN_HOST_MEMORY in summary:
        return any(summary[DATA_IN_HOST_MEMORY])
    return any(note.startswith("the data set does not fit on the device") for note in notes)


def upgraded_prediction(row: Mapping[str, Any]) -> dict[str, Any]:
    """A row of predictions.json as today's: `transport` was `way`, and notes on computation began with it."""
    today = {"transport" if key == "way" else key: value for key, value in row.items()}
    if "compute_notes" not in today:
        notes = today.get("notes") or []
        today["compute_notes"] = [note for note in notes if str(note).startswith("compute")]
    return today


def kernels_then(recorded: Mapping[str, Any], known: Mapping[str, Any]) -> dict[str, Any]:
    """The parameter `kernels` of a lossy aggregator: torch's, where the record is older than it."""
    return {"kernels": "torch"} if recorded and "kernels" in known.keys() - recorded else {}


_RENAMED_PARTS = {"unsplit": "unprofiled", "split": "profiled"}  # parts of the wall time of a run


def _with_new_parts(seconds: Mapping[str, Any], suffix: str) -> dict[str, Any]:
    new = {f"{old}{suffix}": f"{part}{suffix}" for old, part in _RENAMED_PARTS.items()}
    return {new.get(key, key): value for key, value in seconds.items()}


def upgraded_launch_times(times: Mapping[str, Any]) -> dict[str, Any]:
    if not isinstance(times.get("cells"), list):
        return dict(times)
    cells = [_with_new_parts(cell, "_s") if isinstance(cell, dict) else cell for cell in times["cells"]]
    return {**times, "cells": cells}


def upgraded_lines(lines: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The samples of a rank, changed in place."""
    for line in lines:
        if isinstance(line, dict) and "split" in line:
            line["profiled"] = line.pop("split")
    return lines


def old_spans(line: Mapping[str, Any], phases: Iterable[str]) -> list[tuple[str, tuple[float, float]]]:
    """The phases of one of the first lines, end to end: only their durations were recorded."""
    spans, end_s = [], 0.0
    for name in phases:
        if f"{name}_s" in line:
            start_s, end_s = end_s, end_s + line[f"{name}_s"]
            spans.append((name, (start_s, end_s)))
    return spans

"""The cells of an attached script as cells of a study, and its step on so many workers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from scaling.axes import ATTACHED
from scaling.bucket import DDP_BUCKETS_MB
from scaling.errors import PredictionError
from scaling.store import ResultsFolder, RunRecord
from topologies.errors import TopologyError
from topologies.model import Topology

ARMS = ("baseline", "no_exchange", "one_worker")  # the script's step, with its exchange and without


def is_of_script(folder: ResultsFolder) -> bool:
    return any(part.get("kind") == ATTACHED for part in folder.require().study().get("parts", []))


def as_timed(cell: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The cell of an arm as timed cells of a study; without exchange two: DDP wraps the model, and it is all
    that tells of one worker. How large a sample of its input is, is not known."""
    first_mb, others_mb = DDP_BUCKETS_MB
    bucket_mb = cell.get("bucket_mb") or others_mb
    timed = {
        "aggregator_parameters": {}, **cell, "kind": "iteration", "arm": None, "input_placement": "device",
        "bucket_mb": bucket_mb, "first_bucket_mb": first_mb if bucket_mb == others_mb else None,
    }  # fmt: skip
    if cell.get("exchanges", True):
        return [timed]
    return [{**timed, "aggregator": name, "aggregator_label": name} for name in ("no_op", "none")]


def is_usable(records: Sequence[RunRecord], baseline: RunRecord) -> bool:
    """Whether a step of these runs is one of the script as it is, with its exchange or without."""
    return records[0].cell["arm"] in ARMS and any(
        record.summary.get("signature") == baseline.summary["signature"] for record in records
    )


def baseline_of(records: Sequence[RunRecord], source: str) -> RunRecord:
    """A run of the script as it is; PredictionError if none, or if its step exchanges other than all once."""
    baselines = [record for record in records if record.cell["arm"] == "baseline" and record.state == "done"]
    if not baselines:
        raise PredictionError(f"{source}: the script's baseline was not measured")
    updates = int(baselines[0].summary["signature"]["update"])
    if updates != 1:
        raise PredictionError(
            f"{source}: a step of the script has {updates} steps of optimizers; how often it exchanges which "
            "gradients is not recorded, and nothing is predicted from it"
        )
    return baselines[0]


def cells_of_script(
    folder: ResultsFolder, topology: Topology, world_sizes: Sequence[int] | None
) -> tuple[list[dict[str, Any]], str, list[tuple[int, str]]]:
    """The script's step on so many workers (None: as measured), each with its batch, over the machine's
    links: the cells, its `tensor_shapes`, and sizes that the machine has no place for, and why."""
    records = list(folder.runs())
    record = baseline_of(records, str(folder.path))
    measured = {int(one.cell["world_size"]) for one in records if one.cell["arm"] == "baseline"}
    shapes = str(record.summary.get("tensor_shapes", ""))
    if not shapes:
        raise PredictionError(
            f"{folder.path}: nothing was predicted: how large the model is was not recorded; import its "
            "table again, with --parameters"
        )
    cells, left_out = [], []
    for size in world_sizes or sorted(measured):
        is_strong, (timed,) = record.cell["scaling"] == "strong", as_timed(record.cell)
        batch = int(record.cell["global_batch"]) if is_strong else size * int(record.cell["local_batch"])
        try:
            topology.ranks(size)
        except TopologyError as error:
            left_out.append((size, str(error)))
            continue
        if batch % size:
            left_out.append((size, f"the global batch {batch} does not divide by {size}"))
            continue
        timed["local_batch"] = batch // size
        machine = topology.machine
        may_access = machine.peer_groups or machine.other_peers_unknown or not topology.num_gpus
        timed["peer_access"] = None if may_access else False  # not as it was measured
        cells.append({**timed, "world_size": size, "global_batch": batch})
    return cells, shapes, left_out

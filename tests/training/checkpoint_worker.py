"""One rank of test_checkpoint.py: trains uncut and cut, writes losses and parameters as JSON."""

import hashlib
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar
from unittest import mock

import torch

from scaling.aggregators.state import AggregatorState
from scaling.errors import CheckpointError
from scaling.process_group import TorchGroup
from scaling.registry import trust
from scaling.runtime.workers import Workers
from scaling.store import CheckpointFiles, ResultsFolder
from scaling.study.cell import Cell
from scaling.study.rank import convergence as run_convergence
from scaling.study.rank import prepared_step
from scaling.study.rank.launch import CellRunner
from scaling.study.rank.prepared_step import PreparedStep
from scaling.training.checkpoint import Checkpoint, Target
from tests.made import cell_of
from tests.ranks import as_rank

CPU = torch.device("cpu")
EPOCHS, CUT_AFTER = 3, 2
BASE = cell_of(
    kind="convergence",
    model="checkpoint_models:dropping",
    aggregator="all_reduce",
    local_batch=200,
    global_batch=400,
    seed=3,
    weight_decay=1e-4,
    epochs=EPOCHS,
    learning_rate_rule="linear",
    base_batch=200,
    warmup_epochs=1.0,
    schedule="cosine",
    augmentation="standard",
)
OVERLAPPED = replace(BASE, step="overlapped", bucket_mb=0.01)
ADAMW: dict[str, Any] = {
    "optimizer": "adamw",
    "learning_rate": 0.002,
    "momentum": 0.0,
    "beta1": 0.9,
    "beta2": 0.999,
    "epsilon": 1e-8,
}
CELLS = {
    "all_reduce": BASE,
    "one_bit": replace(BASE, aggregator="one_bit"),
    "host_parallel": replace(BASE, aggregator="host_parallel"),
    "all_reduce, overlapped": replace(BASE, step="overlapped", bucket_mb=25.0),
    "one_bit, overlapped": replace(BASE, step="overlapped", aggregator="one_bit", bucket_mb=0.01),
    "all_reduce, sync": replace(BASE, batch_norm="sync"),
    "qsgd": replace(BASE, aggregator="qsgd"),
    "one_bit_flat, overlapped": replace(OVERLAPPED, aggregator="one_bit_flat"),
    "mxnet_device, overlapped": replace(BASE, step="overlapped", aggregator="mxnet_device"),
    "mxnet_local, overlapped": replace(BASE, step="overlapped", aggregator="mxnet_local", **ADAMW),
    "zero1": replace(BASE, aggregator="zero1", **ADAMW),
    "zero2, overlapped": replace(OVERLAPPED, aggregator="zero2", **ADAMW),
    "zero_redundancy_optimizer": replace(OVERLAPPED, aggregator="zero_redundancy_optimizer", **ADAMW),
    "power_sgd_hook": replace(OVERLAPPED, aggregator="power_sgd_hook"),
    "one_bit_adam": replace(
        BASE, aggregator="one_bit_adam", aggregator_parameters={"warmup_steps": 5}, momentum=0.0
    ),
}


MOVED = {"apart": "module", "moments apart": "update", "of another save": None}
"""Damage -> what of the last checkpoint's step is another."""

DAMAGES = ("flipped", "other model", *MOVED, "both")


class CutError(Exception):
    """What ends a training in the middle."""


class Recorder:
    """Takes samples, and raises behind those of an epoch."""

    def __init__(self, cut_after: int | None = None) -> None:
        self.rows: list[dict[str, Any]] = []
        self._cut_after = cut_after

    def __call__(self, rows) -> None:
        self.rows += rows
        if self._cut_after is not None and self.rows[-1]["epoch"] > self._cut_after:
            raise CutError


class KeptStep(PreparedStep):
    """Shows the step that was trained."""

    last: ClassVar[PreparedStep]

    def __init__(self, *arguments) -> None:
        super().__init__(*arguments)
        KeptStep.last = self


def fingerprint() -> str:
    """Of parameters, buffers, momenta and residuals."""
    digest = hashlib.sha256()

    def add(value: Any) -> None:
        if isinstance(value, dict):
            for key in sorted(value):
                digest.update(str(key).encode())
                add(value[key])
        else:
            digest.update(value.detach().contiguous().numpy().tobytes())

    add(KeptStep.last.step.state_dict())
    return digest.hexdigest()


def trained(cell: Cell, group: TorchGroup, files: CheckpointFiles, cut_after: int | None = None) -> dict:
    runner, recorder = CellRunner(CPU), Recorder(cut_after)
    try:
        summary = runner.run(cell, group, recorder, files)
    except CutError:
        return {"rows": recorder.rows}
    return {"rows": recorder.rows, "notes": summary.notes, "state": fingerprint()}


def damaged(group: TorchGroup, folder: ResultsFolder, rank: int) -> dict[str, dict]:
    """How trainings go on of which checkpoints were damaged after the cut."""
    seen = {}
    for repeat, damage in enumerate(DAMAGES, 1):
        files = folder.checkpoints(BASE.id, repeat, rank)
        trained(BASE, group, files, CUT_AFTER)
        for path, content in files.read():
            assert content is not None
            is_last = path == files._last
            if rank == 1 and (damage == "both" or (damage == "flipped" and is_last)):
                path.write_bytes(content[:-9] + bytes([content[-9] ^ 1]) + content[-8:])
            elif rank == 1 and is_last and damage == "other model":
                path.write_bytes(rewritten(content, group, shapes={"weight": "[3] torch.float32"}))
            elif rank == 1 and is_last and damage in MOVED:
                path.write_bytes(rewritten(content, group, damage))
        seen[damage] = trained(BASE, group, files)
    return seen


def rewritten(content: bytes, group: TorchGroup, damage: str = "", **other: Any) -> bytes:
    """A good checkpoint of other content."""
    target = Target.of(KeptStep.last.step.replica.module, BASE.id, group.rank, group.world_size)
    read = Checkpoint.from_bytes(content, target)
    if part := MOVED.get(damage):
        read.step[part][next(iter(read.step[part]))] += 1e-3
    if damage == "of another save":
        read = replace(read, saved_together="another")
    return read.to_bytes(replace(target, **other))


def restored_wrong(group: TorchGroup, files: CheckpointFiles) -> str:
    """What a training says that does not get back its residuals on one rank."""
    cell = CELLS["one_bit"]
    trained(cell, group, files, CUT_AFTER)
    real = AggregatorState.load_state_dict

    def load(state: AggregatorState, tensors: dict[str, torch.Tensor]) -> None:
        real(state, tensors)
        if group.rank == 1:
            for values in state.checkpoint_tensors().values():
                values.zero_()

    try:
        with mock.patch.object(AggregatorState, "load_state_dict", load):
            trained(cell, group, files)
    except CheckpointError as error:
        return str(error)
    return "nothing"


def seen_by(workers: Workers) -> dict[str, Any]:
    rank, folder = workers.info.rank, ResultsFolder(Path(sys.argv[1]).with_name("results"))
    trust([BASE.model])
    vars(run_convergence)["PreparedStep"] = KeptStep
    run_convergence.LARGEST_WRITING_SHARE = float("inf")  # after every epoch
    vars(prepared_step).update(FIRST_STEPS=1, LATER_STEPS=1)  # are checked, of each of so many trainings
    seen: dict[str, Any] = {}
    for name, cell in CELLS.items():
        group = workers.group(CPU)
        seen[name] = {
            "uncut": trained(cell, group, folder.checkpoints(f"uncut-{cell.id}", 0, rank)),
            "cut": trained(cell, group, folder.checkpoints(cell.id, 0, rank), CUT_AFTER),
        }
        if name == "one_bit" and rank == 1:  # cut off while it wrote: the other has one more
            folder.checkpoints(cell.id, 0, rank)._last.unlink()
        seen[name]["resumed"] = trained(cell, group, folder.checkpoints(cell.id, 0, rank))
    seen["damaged"] = damaged(workers.group(CPU), folder, rank)
    seen["restored wrong"] = restored_wrong(workers.group(CPU), folder.checkpoints("wrong", 0, rank))
    return seen


if __name__ == "__main__":
    as_rank(seen_by)

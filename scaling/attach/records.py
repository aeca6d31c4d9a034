"""An attached script's runs as an ordinary results folder: each arm is a cell, each launch a repeat."""

from __future__ import annotations

import math
import os
import platform
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from scaling.attach.inside.arms import ARMS, row_of
from scaling.attach.launch import Run
from scaling.attach.marks import USUAL, medians_s, steady
from scaling.errors import AttachError
from scaling.files.redaction import redacted_command
from scaling.measure.environment import collect
from scaling.store import ResultsFolder, RunRecord
from scaling.study.cell import digest

CHANGES: dict[str, dict[str, Any]] = {  # arm -> what its cell has other than the baseline's
    "aa": {"arm": "baseline", "aa_replicate": 1},
    **{
        name: {"aggregator": "none", "aggregator_label": "none", "exchanges": False}
        for name, arm in ARMS.items()
        if not arm.exchanges or arm.is_alone
    },
    **{name: {"input_placement": "device"} for name, arm in ARMS.items() if arm.is_cached},
}
MOST_LONGER = 1.1  # one worker's step with the same batch, which has no exchange, to that of several workers


class AttachedFolder:
    """The results folder of an attached script; AttachError where it holds something already."""

    def __init__(self, path: Path, command: Sequence[str], settings: dict[str, Any]) -> None:
        self.folder = ResultsFolder(path)
        if path.exists() and any(path.iterdir()):
            raise AttachError(f"{path} is not empty; use another --out")
        self.command = redacted_command(command)
        self.script = script_name(command)
        self.folder.write_environment(collect(os.environ))
        self.settings = settings
        self.finish([])
        self.first: list[dict[str, Any]] = []  # the records of the first run that was measured
        self.batch = 0

    def finish(self, lines: Sequence[str]) -> None:
        study: dict[str, Any] = {"schema_version": 1, "name": f"attach-{self.script.removesuffix('.py')}"}
        study["parts"] = [{"kind": "attached", "command": self.command, **self.settings}]
        study["notes"] = [f"steps of the user's own script: {self.command}", *lines]
        self.folder.write_study(study)

    def add(self, launch: int, position: int, run: Run) -> None:
        """Writes a launch of the script, each of its arms as a run; the steps of a trace are no samples."""
        for arm in run.arms if not row_of(run.arm).is_traced else ():
            cell = self._cell(run, arm)
            identity = {key: value for key, value in cell.items() if not key.endswith("_label")}
            record = RunRecord(digest({**identity, "command": self.command}), launch, cell)
            where = {"launcher": "attach", "host": platform.node(), "position": position, "num_nodes": 1}
            self.folder.start_run(record, where)
            if run.reason is not None:
                self.folder.fail_run(record, run.reason)
            elif not self._write_steps(record, launch, run, arm):
                self.folder.fail_run(record, "none of its steps is of the usual kind")

    def _write_steps(self, record: RunRecord, launch: int, run: Run, arm: str) -> bool:
        signature, by_rank = steady(run.ranks)
        by_rank = [[step for step in steps if step.arm == arm or len(run.arms) == 1] for steps in by_rank]
        if not all(by_rank):
            return False
        for rank, steps in enumerate(by_rank):
            lines = []
            for at, step in enumerate(steps):
                is_profiled = ARMS[arm].is_settled and at >= len(steps) // 2
                line: dict[str, Any] = {"iteration": step.number, "warmup": False, "profiled": is_profiled}
                line |= {"start_s": step.start_s, "step_s": step.step_s}
                if is_profiled:
                    line["spans"] = [[name, "main", *span] for name, *span in step.spans if name in USUAL]
                lines.append(line)
            self.folder.sample_writer(record.cell_id, launch, rank)(lines)
        shapes = run.ranks[0]["gradients"]
        summary = {
            "num_parameters": sum(map(math.prod, shapes)),
            "tensor_shapes": " ".join("x".join(map(str, shape)) or "1" for shape in shapes),
            "signature": dict(zip(("backward", "input", "evaluation", "update"), signature, strict=True)),
            "command": self.command, "bucket_bytes": run.ranks[0]["bucket_bytes"],
        }  # fmt: skip
        self.folder.finish_run(record, summary)
        return True

    def _cell(self, run: Run, arm: str) -> dict[str, Any]:
        self.first = self.first or run.ranks
        usual = self.first[0] if self.first else {}
        first = run.ranks[0] if run.ranks else usual  # of a run without steps those of the first run
        world_size = first.get("world_size", 1)
        drawn = run.ranks[0]["batches"] if run.ranks else []
        # The samples of rank 0's first batch, times the batches of a step; 0 where none was ever seen.
        batch = (int(drawn[0][0]) * max(steady(run.ranks)[0][1], 1) if drawn else 0) or self.batch
        self.batch = self.batch or batch
        local_batch = batch or 1
        dataset, dataset_label = "script", "script" if batch else "script (batch not seen: counted as 1)"
        if not batch and self._is_other_work(run):
            dataset, dataset_label = "script, one worker", "script (one worker, other work)"
        device = usual.get("device", "cpu")
        is_host_only = device == "cuda" and world_size > 1 and usual.get("host_only", False)
        cell = {
            "kind": "attached", "model": self.script, "dataset": dataset, "aggregator": "all_reduce",
            "step": "overlapped", "device": device, "scaling": "weak",
            "world_size": 1 if ARMS[arm].is_alone else world_size,
            "local_batch": local_batch, "threads": first.get("threads"),
            "peer_access": False if is_host_only else None, "bucket_mb": first.get("bucket_mb"),
            "input_placement": "loader", "arm": arm, "aa_replicate": 0,
            "model_label": self.script, "dataset_label": dataset_label, "aggregator_label": "all_reduce",
            "exchanges": True, "lossy": False, "optimizer": "script", **CHANGES.get(arm, {}),
        }  # fmt: skip
        return {**cell, "global_batch": local_batch * int(cell["world_size"])}

    def _is_other_work(self, run: Run) -> bool:
        """Whether one worker's step is seen to be another one, or longer where batches are not seen."""
        if not row_of(run.arm).is_alone or not run.ranks:
            return False
        (signature, steps), (usual, usual_steps) = steady(run.ranks), steady(self.first)
        return signature != usual or max(medians_s(steps)) > MOST_LONGER * max(medians_s(usual_steps))


def script_name(command: Sequence[str]) -> str:
    for before, word in pairwise(["", *command]):
        is_launcher = word == "accelerate" or word.startswith(("torch.distributed.", "accelerate.commands."))
        if before in ("-m", "--module") and not is_launcher:
            return word
        if word.endswith(".py"):
            return Path(word).name
    return command[-1]

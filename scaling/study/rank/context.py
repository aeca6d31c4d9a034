"""What one rank runs one cell with, and what it says of it then, besides its samples."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch

from launchers.watch.heartbeat import SILENT, Heartbeat
from scaling.process_group import TorchGroup
from scaling.store.run_samples import Appender, CheckpointFiles
from scaling.study.rank.loaded import Loaded


@dataclass
class RunContext:
    group: TorchGroup  # the ranks of the cell
    device: torch.device  # this rank's
    write: Appender  # takes this rank's samples, in order
    saved: CheckpointFiles | None  # where a training's checkpoints are; None: it has none
    loaded: Loaded  # data sets and initial models, kept from cell to cell
    seconds: dict[str, float]  # part of the run (`scaling.study.launches.PARTS`) -> wall time so far
    is_checked: bool = False  # the command has checked the first steps of another repeat of the cell
    heartbeat: Heartbeat = SILENT  # is told of phases and steps, so that a rank that stands still is found
    kept_bytes: int = 0  # of this rank's GPU that earlier cells have left there, besides data sets
    _started: float = field(default_factory=time.perf_counter)
    _peak_bytes: int = 0

    def elapsed_s(self) -> float:
        return time.perf_counter() - self._started

    def memory_peak_bytes(self) -> int | None:
        """The most that the cell's tensors and its data set took on this rank's GPU; None on the CPU."""
        if self.device.type != "cuda":
            return None
        others_bytes = self.kept_bytes + self.loaded.device_bytes(of_others=True)
        return max(self._peak_bytes, torch.cuda.max_memory_allocated(self.device) - others_bytes)

    @contextmanager
    def memory_peak_kept(self) -> Iterator[None]:
        """What is done within is no part of the peak."""
        self._peak_bytes = self.memory_peak_bytes() or 0
        yield
        if self.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self.device)


IN_HOST_MEMORY = (
    "the data set does not fit on the device and is in host memory: a training copies each batch from "
    "there, in its measured time; timed iterations have theirs where input_placement says"
)


@dataclass(frozen=True)
class RankSummary:
    num_parameters: int | None = None  # trainable ones; None where there is no model
    bytes_sent: int | None = None  # bytes_sent, messages_sent: in a step, as metered; None: not countable
    messages_sent: int | None = None
    checksums: dict[str, str] = field(default_factory=dict)  # of the data
    notes: list[str] = field(default_factory=list)  # what was decided at the start
    data_in_host_memory: bool = False  # the data set does not fit on this rank's device
    diverged: bool = False  # a loss was not finite
    not_finite: list[str] = field(default_factory=list)  # what was NaN or infinite after timed steps
    memory_peak_bytes: int | None = None  # of the cell's tensors and its data set on this rank's GPU
    seconds: dict[str, float] = field(default_factory=dict)  # part of the run -> wall time, slowest rank's
    warmup_iterations: int | None = None  # and the next three: see `scaling.training.timing`
    warmup_end: str | None = None
    stop_reason: str | None = None
    block_iterations: list[int] = field(default_factory=list)
    clock_uncertainty_s: float | None = None  # how far `start_s` of the samples may be off
    gpu: dict[str, Any] | None = None  # see `scaling.measure.power`
    host: dict[str, Any] | None = None  # see `scaling.measure.host`
    hosts_before: list[str] = field(default_factory=list)  # where it trained before it was cut off
    tensor_shapes: str = ""  # of trainable parameters (`scaling.bucket.shapes_by_dtype_text`)
    model_flops: int | None = None  # of a step here (`scaling.training.compute`); None: not countable
    matrix_rate: dict[str, Any] | None = None  # `scaling.measure.matrix_rate`, of float32 parameters
    tokens_per_sample: int | None = None  # of the data; None where they are no tokens
    optimizer_state_bytes: int | None = None  # on this rank, on its device or in host memory
    bucket_bytes: list[int] = field(default_factory=list)  # DDP's, in their order, if a hook saw any
    checks: dict[str, Any] = field(default_factory=dict)  # `scaling.training.step_check`'s findings
    changed_state: list[str] = field(default_factory=list)  # in the process (`process_state`)


def notes_of(ranks: Sequence[RankSummary]) -> list[str]:
    """Of a run's record: rank 0's notes, and on how many ranks the data were in host memory."""
    notes = list(ranks[0].notes)
    if count := sum(rank.data_in_host_memory for rank in ranks):
        notes.append(f"{IN_HOST_MEMORY} (on {count} of {len(ranks)} rank{'s' if len(ranks) > 1 else ''})")
    if bad := [rank for rank, summary in enumerate(ranks) if summary.not_finite]:
        what = " and ".join(dict.fromkeys(name for rank in bad for name in ranks[rank].not_finite))
        notes.append(
            f"{what} not finite (NaN or infinite) after the timed iterations on rank"
            f"{'s' if len(bad) > 1 else ''} {', '.join(map(str, bad))}: what was timed is no training; use a "
            "smaller learning_rate"
        )
    if changed := dict.fromkeys(name for rank in ranks for name in rank.changed_state):
        notes.append(
            f"code of this cell changed {', '.join(changed)} of its process while it was measured; it was "
            "put back before the next cell"
        )
    return notes

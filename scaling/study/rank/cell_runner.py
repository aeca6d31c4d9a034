"""Runs cells of any kind on one rank, one after another."""

from __future__ import annotations

import gc

import torch

from launchers.watch.heartbeat import SILENT, UNLIMITED, Heartbeat
from scaling.process_group import TorchGroup
from scaling.study.cell import AnyCell
from scaling.study.kinds import KINDS
from scaling.study.rank.context import RunContext, SavedCheckpoints, WriteSamples
from scaling.study.rank.loaded import Loaded
from scaling.study.rank.summary import RankSummary


class CellRunner:
    """Runs cells on one rank; keeps what it has loaded.

    Args:
        device: this rank's.
        heartbeat: is told what is under way.

    Attributes:
        seconds: part of the last cell -> wall time, as far as it came.
    """

    def __init__(self, device: torch.device, heartbeat: Heartbeat = SILENT) -> None:
        self._device, self.heartbeat = device, heartbeat
        self._loaded = Loaded(device)
        self.seconds: dict[str, float] = {}

    def run(
        self,
        cell: AnyCell,
        group: TorchGroup,
        write: WriteSamples,
        saved: SavedCheckpoints | None = None,
        *,
        is_checked: bool = False,
    ) -> RankSummary:
        """Measures or trains `cell`. Collective.

        Args:
            cell: on this rank's kind of device and of the group's world size.
            group: the ranks of the cell.
            write: takes this rank's samples, in order.
            saved: where a training's checkpoints are; None: it has none.
            is_checked: see `RunContext`.
        """
        configure_torch(cell, self._device)
        self.seconds = {}
        self._loaded.begin_cell()
        context = RunContext(
            group, self._device, write, saved, self._loaded, self.seconds, is_checked, self.heartbeat
        )
        self.heartbeat.phase("the cell", UNLIMITED)  # a kind that says nothing of its steps has any time
        if self._device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self._device)
            context.kept_bytes = torch.cuda.memory_allocated(self._device) - self._loaded.device_bytes()
        try:
            return KINDS[cell.kind].run(cell, context)
        finally:
            group.release_host_buffers()
            gc.collect()
            if self._device.type == "cuda":
                torch._C._cuda_clearCublasWorkspaces()  # one a stream, which the next cell's peak would have
                torch.cuda.empty_cache()


def configure_torch(cell: AnyCell, device: torch.device) -> None:
    """Threads and precision of this process, as the cell has them; float32 means float32 everywhere."""
    torch.set_num_threads(cell.threads)
    if device.type == "cuda":
        torch.backends.cuda.matmul.allow_tf32 = bool(cell.tf32)
        torch.backends.cudnn.allow_tf32 = bool(cell.tf32)

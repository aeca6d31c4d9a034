"""What one rank runs one cell with."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import torch

from launchers.watch.heartbeat import SILENT, Heartbeat
from scaling.process_group import TorchGroup
from scaling.study.rank.loaded import Loaded

WriteSamples = Callable[[Iterable[Mapping[str, Any]]], None]


class SavedCheckpoints(Protocol):
    """Where this rank's checkpoints of one run are stored (`scaling.store.CheckpointFiles`)."""

    def read(self) -> list[tuple[Path, bytes | None]]:
        """The files that there are, at most two, with their contents; None where one cannot be read."""

    def write(self, content: bytes) -> None:
        """A new one; of those before, the last is kept."""

    def clear(self) -> None:
        """Removes them."""


@dataclass
class RunContext:
    """What one rank runs one cell with.

    Attributes:
        group: the ranks of the cell.
        device: this rank's.
        write: takes this rank's samples, in order.
        saved: where a training's checkpoints are; None: it has none.
        loaded: data sets and initial models, kept from cell to cell.
        seconds: part of the run (`scaling.study.launch_times.PARTS`) -> wall time, as far as it came.
        is_checked: the command has checked the first steps of another repeat of the cell.
        heartbeat: is told of phases and steps, so that a rank that stands still is found.
        kept_bytes: of this rank's GPU that earlier cells have left there, besides data sets.
    """

    group: TorchGroup
    device: torch.device
    write: WriteSamples
    saved: SavedCheckpoints | None
    loaded: Loaded
    seconds: dict[str, float]
    is_checked: bool = False
    heartbeat: Heartbeat = SILENT
    kept_bytes: int = 0
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

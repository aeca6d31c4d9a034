"""How batches come to the device: input placement, an axis of timed cells.

- `device`: all samples are there, and each batch is gathered there.
- `pinned`, `pageable`: batches gathered before the first step, so that the cost is the transfer alone; from
  pinned memory the next one is copied while the step runs.
- `loader`: torch's DataLoader with worker processes over single samples, as most training scripts have it.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import cycle
from typing import Literal, NamedTuple, Protocol

import torch
from torch import Tensor
from torch.utils.data import DataLoader, TensorDataset

from scaling.errors import StudyError
from scaling.measure.phases import Marks
from scaling.workloads.base import Split
from scaling.workloads.sampling import Variations, crop_and_flip

InputPlacement = Literal["device", "pinned", "pageable", "loader"]


class Batch(NamedTuple):
    """One rank's share of a global batch: inputs [local_batch, ...], targets [local_batch, ...]."""

    inputs: Tensor
    targets: Tensor


class Feeder(Protocol):
    def next(self, marks: Marks) -> Batch:
        """On the device, until the next call; there is no last one. `marks` takes `input` and `h2d`."""


def feeder_for(
    placement: InputPlacement, split: Split, batches: Tensor, device: torch.device, num_workers: int
) -> Feeder:
    """`split`: all training samples, on the device, or in host memory where they do not fit; `batches`:
    [num_batches, local_batch] indices on the host, taken in turn. StudyError: copies to a CPU are asked for.
    """
    if placement in ("pinned", "pageable") and device.type != "cuda":
        raise StudyError(
            f"input_placement: {placement} is a copy to a GPU; on {device.type} use device or loader"
        )
    if placement == "device":
        if split.inputs.device.type != device.type:
            samples, batches = batches.unique(return_inverse=True)  # type: ignore[no-untyped-call]
            split = Split(split.inputs[samples].to(device), split.targets[samples].to(device))
        return _DeviceFeeder(split, batches.to(device))
    if placement == "loader":
        return _LoaderFeeder(split, batches, device, num_workers)
    ready = [
        Batch(split.inputs[rows].cpu(), split.targets[rows].cpu()) for rows in batches.to(split.inputs.device)
    ]
    return _PinnedFeeder(ready, device) if placement == "pinned" else _PageableFeeder(ready, device)


class AugmentedFeeder:
    """Crops and mirrors images [local_batch, channels, height, width]; variations are drawn before."""

    def __init__(self, feeder: Feeder, batches: Tensor, variations: Variations, device: torch.device) -> None:
        self._feeder, self._batches = feeder, cycle(batches.to(device))
        self._variations = variations.to(device)

    def next(self, marks: Marks) -> Batch:
        batch = self._feeder.next(marks)
        with marks.phase("input"):
            rows = self._variations[next(self._batches)]
            return Batch(crop_and_flip(batch.inputs, rows), batch.targets)


class _DeviceFeeder:
    def __init__(self, split: Split, batches: Tensor) -> None:
        self._split, self._batches = split, cycle(batches)

    def next(self, marks: Marks) -> Batch:
        with marks.phase("input"):
            rows = next(self._batches)
            return Batch(self._split.inputs[rows], self._split.targets[rows])


class _PageableFeeder:
    def __init__(self, ready: list[Batch], device: torch.device) -> None:
        self._ready, self._device = cycle(ready), device

    def next(self, marks: Marks) -> Batch:
        with marks.phase("h2d"):
            batch = next(self._ready)
            return Batch(batch.inputs.to(self._device), batch.targets.to(self._device))


class _PinnedFeeder:
    """Two buffers on the device: the step reads one while the next batch is copied into the other."""

    def __init__(self, ready: list[Batch], device: torch.device) -> None:
        self._ready = cycle([Batch(*(tensor.pin_memory() for tensor in batch)) for batch in ready])
        self._buffers = [Batch(*(torch.empty_like(t, device=device) for t in ready[0])) for _ in range(2)]
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._current = -1

    def next(self, marks: Marks) -> Batch:
        if self._current < 0:
            self._copy(0, marks)
        self._current = (self._current + 1) % 2
        with marks.phase("input"):
            torch.cuda.current_stream().wait_stream(self._stream)
        self._copy((self._current + 1) % 2, marks)
        return self._buffers[self._current]

    def _copy(self, into: int, marks: Marks) -> None:
        """Begins when the step before, which read that buffer, is done."""
        self._stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._stream), marks.on_lane("copy")("h2d"):
            for target, source in zip(self._buffers[into], next(self._ready), strict=True):
                target.copy_(source, non_blocking=True)


class _LoaderFeeder:
    def __init__(self, split: Split, batches: Tensor, device: torch.device, num_workers: int) -> None:
        self._device = device
        self._loader = DataLoader(
            TensorDataset(split.inputs.cpu(), split.targets.cpu()),
            batch_sampler=cycle(batches.tolist()),
            num_workers=num_workers,
            pin_memory=device.type == "cuda",
        )
        self._batches: Iterator[list[Tensor]] = iter(self._loader)

    def next(self, marks: Marks) -> Batch:
        with marks.phase("input"):
            batch = Batch(*next(self._batches))
        if self._device.type != "cuda":
            return batch
        with marks.phase("h2d"):
            return Batch(*(tensor.to(self._device, non_blocking=True) for tensor in batch))

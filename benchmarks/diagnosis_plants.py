"""A network with one planted cause of slowness, for `diagnosis_quality.py`; a study names it as
`diagnosis_plants:planted`.

The causes are real: a rank computes longer, copies, or shares its core with another. On a CPU a rank that
computes longer sleeps, on a GPU its device spins. Two things are simulated in what NVML returns, through the
reader of `scaling.measure.power`: a throttled GPU and another process on it. On a CPU, where no batch is
copied to a device, copies in host memory stand for pageable ones.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn

from scaling.measure import power
from scaling.measure.phases import Marks
from scaling.training import feeding
from scaling.workloads.base import declares

CYCLES_PER_MS = 1_700_000
"""Of an H200's spinning kernel (torch.cuda._sleep), nearly its clock."""

INPUTS, WIDE_INPUTS, CLASSES = 128, 2048, 10
PERIOD = 10
_OWN_CORES = frozenset(os.sched_getaffinity(0))
_OPEN_DEVICE, _NEXT = power.open_device, feeding._DeviceFeeder.next


def _own_rank() -> int:
    return torch.distributed.get_rank() if torch.distributed.is_initialized() else 0


def _lose(milliseconds: float, device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda._sleep(int(milliseconds * CYCLES_PER_MS))  # type: ignore[no-untyped-call]
    else:
        time.sleep(milliseconds / 1e3)


class SlowBackward(torch.autograd.Function):
    """Its inputs; the backward pass loses so many milliseconds there."""

    @staticmethod
    def forward(context: Any, inputs: Tensor, milliseconds: float) -> Tensor:
        context.milliseconds = milliseconds
        return inputs.view_as(inputs)

    @staticmethod
    def backward(context: Any, gradient: Tensor) -> tuple[Tensor, None]:
        _lose(context.milliseconds, gradient.device)
        return gradient, None


class _Place(nn.Module):
    """A place in the network at which one rank loses time: in each forward pass, in each backward pass, or in
    every `PERIOD`-th forward pass."""

    def __init__(self, when: str, rank: int, milliseconds: float) -> None:
        super().__init__()
        self._when, self._rank, self._milliseconds, self._calls = when, rank, milliseconds, 0

    def forward(self, inputs: Tensor) -> Tensor:
        self._calls += self.training
        if not self.training or _own_rank() != self._rank:
            return inputs
        if self._when == "backward" and inputs.requires_grad:
            slowed: Tensor = SlowBackward.apply(inputs, self._milliseconds)  # type: ignore[no-untyped-call]
            return slowed
        if self._when == "forward" or (self._when == "periodic" and self._calls % PERIOD == 0):
            _lose(self._milliseconds, inputs.device)
        return inputs


@declares((INPUTS,), CLASSES)
def planted(
    plant: str = "healthy",
    rank: int = 0,
    milliseconds: float = 0.0,
    clock_mhz: float = 0.0,
    width: int = 128,
    depth: int = 10,
    passes: int = 1,
    number: int = 0,
    inputs: int = INPUTS,
) -> nn.Module:
    """A fully connected network with a planted cause; takes back what the one before it has planted.

    Args:
        plant: which cause (`diagnosis_quality.planted_cells`).
        rank: of which rank.
        milliseconds: that it loses a step; of every `PERIOD`-th step, of a periodic one.
        clock_mhz: of a throttled GPU.
        width, depth: of the hidden layers.
        passes: how often each is applied in a row: computation without a gradient to exchange.
        number: makes cells differ that are the same else.
        inputs: numbers in a sample.
    """
    if torch.distributed.is_initialized():  # not where a study is only planned
        _plant_outside(plant, rank, milliseconds, clock_mhz)
    layers: list[nn.Module] = [nn.Linear(inputs, width), nn.Tanh()]
    for _ in range(depth - 2):
        layers += [nn.Linear(width, width), nn.Tanh()] * passes
    layers.append(nn.Linear(width, CLASSES))
    if plant in _PLACES:
        when, after = _PLACES[plant]
        layers.insert(after(len(layers)), _Place(when, rank, milliseconds))
    return nn.Sequential(*layers)


@declares((WIDE_INPUTS,), CLASSES)
def with_wide_inputs(plant: str = "pageable", width: int = 1024, depth: int = 6) -> nn.Module:
    """The same for samples that take time to copy."""
    return planted(plant, width=width, depth=depth, inputs=WIDE_INPUTS)


def _plant_outside(plant: str, rank: int, milliseconds: float, clock_mhz: float) -> None:
    """Causes outside of the network: its input, its core, its GPU."""
    _replace_next(_NEXT)
    power.open_device = _OPEN_DEVICE
    os.sched_setaffinity(0, {min(_OWN_CORES)} if plant == "oversubscribed" else _OWN_CORES)
    if plant == "slow_input":
        _replace_next(_slow_next("input", rank, milliseconds))
    elif plant == "copies_on_cpu":
        _replace_next(_slow_next("h2d", None, milliseconds))
    elif plant in ("other_process", "throttled"):
        power.open_device = partial(_simulated_gpu, plant, rank, clock_mhz)


_PLACES: dict[str, tuple[str, Callable[[int], int]]] = {
    "slow_forward": ("forward", lambda count: count // 2),
    # The backward pass begins at the end of the network.
    "slow_backward_early": ("backward", lambda count: count - 1),
    "slow_backward_late": ("backward", lambda count: 2),
    "periodic": ("periodic", lambda count: count // 2),
}


def _replace_next(replacement: Callable[[feeding._DeviceFeeder, Marks], feeding.Batch]) -> None:
    feeding._DeviceFeeder.next = replacement  # type: ignore[method-assign, assignment]


def _slow_next(
    phase: str, rank: int | None, milliseconds: float
) -> Callable[[feeding._DeviceFeeder, Marks], feeding.Batch]:
    """`_DeviceFeeder.next` of a rank (None: of all) that takes longer in that phase."""

    def slow_next(feeder: feeding._DeviceFeeder, marks: Marks) -> feeding.Batch:
        batch = _NEXT(feeder, marks)
        if rank in (None, _own_rank()):
            with marks.phase(phase):
                if phase == "h2d":
                    batch = _copied(batch, milliseconds)
                else:
                    _lose(milliseconds, batch.inputs.device)
        return batch

    return slow_next


def _copied(batch: feeding.Batch, milliseconds: float) -> feeding.Batch:
    """The batch, after copies of it for so long."""
    inputs, ends_s = batch.inputs, time.perf_counter() + milliseconds / 1e3
    while time.perf_counter() < ends_s:
        inputs = batch.inputs.clone()
    return feeding.Batch(inputs, batch.targets)


def _simulated_gpu(
    plant: str, rank: int, clock_mhz: float, device: torch.device, own_pids: Any = None
) -> power.GpuReader:
    """The GPU of this rank as NVML would describe it."""
    is_planted = _own_rank() == rank
    throttled, shared = plant == "throttled" and is_planted, plant == "other_process" and is_planted
    processes = [SimpleNamespace(pid=os.getpid(), usedGpuMemory=2**30)]
    if shared:
        processes.append(SimpleNamespace(pid=1, usedGpuMemory=2**34))
    started_s = time.perf_counter()

    def violation(_: Any, policy: int) -> Any:
        held_s = time.perf_counter() - started_s if throttled and policy == 0 else 0.0
        return SimpleNamespace(violationTime=int(1e9 * held_s))

    nvml = SimpleNamespace(
        NVMLError=RuntimeError,
        nvmlDeviceGetClockInfo=lambda _, kind: clock_mhz if throttled and kind == power.CLOCK_SM else 1980,
        nvmlDeviceGetMaxClockInfo=lambda *_: 1980,
        nvmlDeviceGetCurrentClocksEventReasons=lambda _: 0x4 if throttled else 0,
        nvmlDeviceGetViolationStatus=violation,
        nvmlDeviceGetComputeRunningProcesses=lambda _: processes,
    )
    return power.GpuReader(nvml, None, {os.getpid()})

"""What NVML says of a rank's own GPU: energy, clocks, temperature, memory, and who else is on it.

It is read before the measured window and after it, never inside: each query takes the host from microseconds
to 2 ms. All keys of `summary` are always there; a value that is not known is None:

- `energy_j`: of the whole board in between; None for a window of less than 0.5 s; of it `mean_power_w`, and
  `energy_per_sample_j` over this rank's samples.
- `power_after_w`: known for short windows too; `power_limit_w`: the cap in force; `memory_used_bytes`: of all
  processes; all at the later reading.
- `throttle_reasons`: names in force at either reading; `throttled_s`: name of `THROTTLE_POLICIES` -> seconds
  within the window that it held the clocks down.
- `other_processes`: that are not the study's, and their memory; the larger of both readings.

The counter of energy moves in steps, of 0.1 s on an H200, so `energy_j` may be off by 20% in half a second,
by 1% in ten. Reference: NVIDIA, NVML API Reference Guide, "Device Queries", "NvmlClocksEventReasons".
"""

from __future__ import annotations

import os
import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from topologies.detect_nvml import Asker, load

if TYPE_CHECKING:
    import torch

SHORTEST_WINDOW_S = 0.5  # five steps of the counter of energy

THROTTLE_REASONS = {
    0x04: "power cap",
    0x08: "hardware slowdown",
    0x10: "sync boost",
    0x20: "thermal, by the driver",
    0x40: "thermal, by the hardware",
    0x80: "power brake",
}
"""Bits of NVML's clock event reasons; without 0x1, idle, and 0x2 and 0x100, clocks as somebody set them."""

THROTTLE_POLICIES = {0: "power cap", 1: "thermal", 2: "sync boost", 3: "board limit", 5: "reliability"}
"""NVML's performance policies (nvmlPerfPolicyType_t) whose times count the clocks that were held down."""

TEMPERATURE_OF_THE_GPU = 0  # NVML_TEMPERATURE_GPU
CLOCK_SM, CLOCK_MEMORY = 1, 2  # NVML_CLOCK_SM, NVML_CLOCK_MEM

QUERIES: dict[str, tuple[Any, ...]] = {
    "energy_j": ("nvmlDeviceGetTotalEnergyConsumption", 1e-3),
    "power_w": ("nvmlDeviceGetPowerUsage", 1e-3),
    "power_limit_w": ("nvmlDeviceGetEnforcedPowerLimit", 1e-3),
    "sm_clock_hz": ("nvmlDeviceGetClockInfo", 1e6, CLOCK_SM),
    "sm_clock_max_hz": ("nvmlDeviceGetMaxClockInfo", 1e6, CLOCK_SM),
    "memory_clock_hz": ("nvmlDeviceGetClockInfo", 1e6, CLOCK_MEMORY),
    "temperature_c": ("nvmlDeviceGetTemperature", 1, TEMPERATURE_OF_THE_GPU),
}
"""Field of a reading -> NVML's function, its unit, and its arguments."""


@dataclass(frozen=True)
class Reading:
    """What NVML refuses to say is None. `at_s`: time.perf_counter; `energy_j`, `throttled_s`: since the
    driver was loaded; `power_w`: averaged over up to a second."""

    at_s: float
    energy_j: float | None = None
    power_w: float | None = None
    power_limit_w: float | None = None
    sm_clock_hz: float | None = None
    sm_clock_max_hz: float | None = None
    memory_clock_hz: float | None = None
    temperature_c: float | None = None
    throttle_reasons: tuple[str, ...] | None = None
    throttled_s: Mapping[str, float] | None = None
    memory_used_bytes: int | None = None
    other_processes: int | None = None
    other_processes_memory_bytes: int | None = None


class GpuReader:
    """Made by `open_device`. `nvml`: NVML's module, initialized; it stays so until the process ends."""

    def __init__(self, nvml: Any, handle: Any, own_pids: Collection[int]) -> None:
        self._ask = Asker(nvml)
        self._handle = handle
        self._own_pids = frozenset(own_pids)

    def reading(self) -> Reading:
        """What NVML says now. Raises nothing: what it refuses is None."""
        at_s = time.perf_counter()
        values: dict[str, Any] = {}
        for name, (query, unit, *arguments) in QUERIES.items():  # the energy first
            value = self._of_gpu(query, *arguments)
            values[name] = None if value is None else value * unit
        values["other_processes"], values["other_processes_memory_bytes"] = self._others()
        memory = self._of_gpu("nvmlDeviceGetMemoryInfo")
        values["memory_used_bytes"] = None if memory is None else int(memory.used)
        reasons, throttled_s = self._throttle_reasons(), self._throttled_s()
        return Reading(at_s, throttle_reasons=reasons, throttled_s=throttled_s, **values)

    def _of_gpu(self, query: str, *arguments: int) -> Any:
        return self._ask(query, self._handle, *arguments)

    def _throttle_reasons(self) -> tuple[str, ...] | None:
        bits = self._of_gpu("nvmlDeviceGetCurrentClocksEventReasons")
        if bits is None:  # its name up to driver 530
            bits = self._of_gpu("nvmlDeviceGetCurrentClocksThrottleReasons")
        if bits is None:
            return None
        return tuple(name for bit, name in THROTTLE_REASONS.items() if bits & bit)

    def _throttled_s(self) -> dict[str, float] | None:
        answers = {
            name: self._of_gpu("nvmlDeviceGetViolationStatus", policy)
            for policy, name in THROTTLE_POLICIES.items()
        }
        times = {name: answer.violationTime * 1e-9 for name, answer in answers.items() if answer is not None}
        return times or None

    def _others(self) -> tuple[int | None, int | None]:
        """Processes that are not the study's, and their memory. A container may show other process numbers:
        of a list without any of ours, as many as we have may be ours. An empty list says nothing."""
        processes = self._of_gpu("nvmlDeviceGetComputeRunningProcesses")
        if not processes:
            return None, None
        others = [process for process in processes if process.pid not in self._own_pids]
        if len(others) == len(processes):
            count = max(0, len(others) - len(self._own_pids))
            return count, None if count else 0
        used = [process.usedGpuMemory for process in others]
        return len(others), None if None in used else sum(used)


def open_device(device: torch.device, own_pids: Collection[int] | None = None) -> GpuReader | None:
    """None on the CPU, or without the package nvidia-ml-py or a driver. Looked up by its UUID or PCI address,
    since torch counts the GPUs that CUDA_VISIBLE_DEVICES leaves, NVML all. `own_pids`: of the study's
    processes on this machine (a rank may hold memory on another's GPU); None: this one."""
    if device.type != "cuda":
        return None
    nvml = load()
    if nvml is None:
        return None
    handle = _handle_of(device, Asker(nvml))
    return None if handle is None else GpuReader(nvml, handle, own_pids or {os.getpid()})


def _handle_of(device: torch.device, ask: Asker) -> Any:
    import torch

    properties = torch.cuda.get_device_properties(device)
    uuid = getattr(properties, "uuid", None)
    if uuid is not None:
        return ask("nvmlDeviceGetHandleByUUID", f"GPU-{uuid}")
    places = [getattr(properties, f"pci_{part}_id", None) for part in ("domain", "bus", "device")]
    if None in places:
        return None
    domain, bus, slot = places
    return ask("nvmlDeviceGetHandleByPciBusId", f"{domain:08X}:{bus:02X}:{slot:02X}.0")


def summary(before: Reading, after: Reading, num_samples: int) -> dict[str, Any]:
    """What happened between two readings of one GPU, for JSON; the keys are in this module's docstring."""
    window_s = after.at_s - before.at_s
    energy_j = None
    if window_s >= SHORTEST_WINDOW_S and before.energy_j is not None and after.energy_j is not None:
        # Where the counter went backwards the driver was loaded anew.
        energy_j = after.energy_j - before.energy_j if after.energy_j >= before.energy_j else None
    readings = (before.throttle_reasons, after.throttle_reasons)
    known = [names for names in readings if names is not None]
    reasons = list(dict.fromkeys(name for names in known for name in names)) if known else None
    held = None
    if before.throttled_s is not None and after.throttled_s is not None:
        counted = [name for name in before.throttled_s if name in after.throttled_s]
        held = {name: after.throttled_s[name] - before.throttled_s[name] for name in counted}

    def both(name: str, unit: str) -> dict[str, float | None]:
        named = {"before": before, "after": after}.items()
        return {f"{name}_{when}_{unit}": getattr(reading, f"{name}_{unit}") for when, reading in named}

    def larger(name: str) -> int | None:
        values = (getattr(before, name), getattr(after, name))
        return max((value for value in values if value is not None), default=None)

    return {
        "window_s": window_s,
        "energy_j": energy_j,
        "energy_per_sample_j": energy_j / num_samples if energy_j is not None and num_samples else None,
        "mean_power_w": None if energy_j is None else energy_j / window_s,
        "power_after_w": after.power_w,
        "power_limit_w": after.power_limit_w,
        **both("sm_clock", "hz"),
        "sm_clock_max_hz": after.sm_clock_max_hz,
        **both("memory_clock", "hz"),
        **both("temperature", "c"),
        "throttle_reasons": reasons,
        "throttled_s": held,
        "memory_used_bytes": after.memory_used_bytes,
        "other_processes": larger("other_processes"),
        "other_processes_memory_bytes": larger("other_processes_memory_bytes"),
    }

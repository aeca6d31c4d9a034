"""GPUs and their links as NVML tells them (package nvidia-ml-py); nothing else loads it.

What a driver does not support is left out of a GPU's facts: on virtual machines much may be. NVLinks that do
not end at a visible GPU are counted by the type of what they lead to; where the driver does not say, they are
taken to lead to switches.

Reference: NVIDIA, NVML API Reference Guide.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from topologies.detect_host import short_bus_id
from topologies.facts import Gpu, PcieLink

REMOTE_IS_GPU, REMOTE_IS_CPU = 0, 1  # NVML_NVLINK_DEVICE_TYPE_GPU and _IBMNPU, of POWER9
P2P_CAPS_INDEX_READ = 0  # the package's own constant of that name is a tuple in some versions
COMMON_LINK_SPEED = 90  # NVML_FI_DEV_NVLINK_SPEED_MBPS_COMMON, up to the A100
LINK_SPEED = 164  # NVML_FI_DEV_NVLINK_GET_SPEED, of one link, from the H100 on


def load() -> Any | None:
    """NVML, ready to be asked; None where the package or the driver is missing. To be shut down."""
    try:
        import pynvml  # type: ignore[import-not-found, import-untyped, unused-ignore]
    except ImportError:
        return None
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return None
    return pynvml


@dataclass(frozen=True)
class Asker:
    """Asks NVML; what it does not answer is None."""

    nvml: Any

    def __call__(self, name: str, *arguments: Any) -> Any:
        function: Callable[..., Any] | None = getattr(self.nvml, name, None)
        try:
            return None if function is None else function(*arguments)
        except self.nvml.NVMLError:
            return None


def read_gpus(nvml: Any) -> tuple[Gpu, ...]:
    """All GPUs; nvml.NVMLError where they cannot even be counted."""
    ask = Asker(nvml)
    handles = {index: nvml.nvmlDeviceGetHandleByIndex(index) for index in range(nvml.nvmlDeviceGetCount())}
    index_at = {_bus_id(nvml, handle): index for index, handle in handles.items()}
    return tuple(_gpu(ask, index, handles, index_at) for index in handles)


def _gpu(ask: Asker, index: int, handles: Mapping[int, Any], index_at: Mapping[str, int]) -> Gpu:
    handle = handles[index]
    straight, others, speed = _nvlinks(ask, handle, index_at)
    megahertz = ask("nvmlDeviceGetMaxClockInfo", handle, ask.nvml.NVML_CLOCK_MEM)
    return Gpu(
        index=index,
        name=_string(ask("nvmlDeviceGetName", handle)) or "NVIDIA GPU",
        uuid=_string(ask("nvmlDeviceGetUUID", handle)),
        bus_id=_bus_id(ask.nvml, handle),
        pcie=_pcie(ask, handle),
        nvlinks=straight,
        switch_links=others["switch"],
        nvlink_bytes_per_s=speed,
        memory_bits=ask("nvmlDeviceGetMemoryBusWidth", handle) or None,
        memory_hz=megahertz * 1e6 if megahertz else None,
        peers=_peers(ask, index, handles),
        unseen_links=others["unseen"],
        cpu_link_bytes_per_s=others["cpu"] * (speed or 25e9) or None,
    )


def _pcie(ask: Asker, handle: Any) -> PcieLink | None:
    generation = ask("nvmlDeviceGetMaxPcieLinkGeneration", handle)
    width = ask("nvmlDeviceGetMaxPcieLinkWidth", handle)
    if not generation or not width:
        return None
    return PcieLink(
        generation=generation,
        width=width,
        current_generation=ask("nvmlDeviceGetCurrPcieLinkGeneration", handle) or None,
        current_width=ask("nvmlDeviceGetCurrPcieLinkWidth", handle) or None,
    )


def _nvlinks(
    ask: Asker, handle: Any, index_at: Mapping[str, int]
) -> tuple[Counter[int], Counter[str], float | None]:
    """Links to each GPU; to a "switch", to GPUs that are "unseen" and to the "cpu"; the speed of one."""
    straight, others, speed = Counter[int](), Counter[str](), None
    for link in range(getattr(ask.nvml, "NVML_NVLINK_MAX_LINKS", 18)):
        if not ask("nvmlDeviceGetNvLinkState", handle, link):
            continue
        speed = speed or _link_speed(ask, handle, link)
        remote = ask("nvmlDeviceGetNvLinkRemotePciInfo", handle, link)
        index = None if remote is None else index_at.get(short_bus_id(_string(remote.busId)))
        if index is not None:
            straight[index] += 1
        else:
            kind = ask("nvmlDeviceGetNvLinkRemoteDeviceType", handle, link)
            others[{REMOTE_IS_GPU: "unseen", REMOTE_IS_CPU: "cpu"}.get(kind, "switch")] += 1
    return straight, others, speed


def _link_speed(ask: Asker, handle: Any, link: int) -> float | None:
    """Bytes a second of one direction."""
    for fields in ([(LINK_SPEED, link)], [COMMON_LINK_SPEED]):
        values = ask("nvmlDeviceGetFieldValues", handle, fields)
        if values and values[0].nvmlReturn == 0 and values[0].value.uiVal:
            return float(values[0].value.uiVal) * 1e6
    return None


def _peers(ask: Asker, index: int, handles: Mapping[int, Any]) -> frozenset[int] | None:
    status = {
        other: ask("nvmlDeviceGetP2PStatus", handles[index], handles[other], P2P_CAPS_INDEX_READ)
        for other in handles
        if other != index
    }
    if status and all(answer is None for answer in status.values()):
        return None
    return frozenset(other for other, answer in status.items() if answer == 0)


def _bus_id(nvml: Any, handle: Any) -> str:
    return short_bus_id(_string(nvml.nvmlDeviceGetPciInfo(handle).busId))


def _string(value: Any) -> str:
    """Older versions of the package give bytes."""
    return value.decode() if isinstance(value, bytes) else str(value or "")

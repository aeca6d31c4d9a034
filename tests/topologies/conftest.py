"""A module in place of NVML's, with the answers of made-up GPUs."""

import functools
from dataclasses import dataclass, field
from types import SimpleNamespace

import pytest

from topologies.schema import load as load_anew

load = functools.cache(load_anew)


@dataclass
class FakeGpu:
    """What NVML answers of one GPU; None: not supported.

    `links` names the other end of each NVLink, a GPU's bus number or a switch's; None is a link that is down.
    """

    bus: int
    name: str = "NVIDIA H200"
    pcie: tuple[int, int, int, int] | None = (5, 16, 1, 16)
    memory: tuple[int, int] | None = (6144, 3201)
    links: list[int | None] = field(default_factory=list)
    link_mb_per_s: int | None = 26562
    peers: list[int] | None = field(default_factory=list)


class FakeNvmlError(Exception):
    """As NVML's own."""


def bus_id(bus: int) -> bytes:
    return f"00000000:{bus:02X}:00.0".encode()


def fake_nvml_of(gpus: list[FakeGpu]) -> SimpleNamespace:
    """The functions of pynvml that detection calls; a handle is the GPU itself."""

    def told(value):
        if value is None:
            raise FakeNvmlError("Not Supported")
        return value

    def fail(*_):
        raise FakeNvmlError("Unknown Error")

    def link_speed(gpu, fields):
        supported = isinstance(fields[0], tuple) and gpu.link_mb_per_s is not None
        value = SimpleNamespace(uiVal=gpu.link_mb_per_s)
        return [SimpleNamespace(nvmlReturn=0 if supported else 3, value=value)]

    def state(gpu, link):
        return int(told(dict(enumerate(gpu.links)).get(link)) is not None)

    shut_downs: list[int] = []
    of_gpus = {
        **{"Count": lambda: len(gpus), "HandleByIndex": lambda index: gpus[index]},
        **{"Name": lambda gpu: gpu.name.encode(), "UUID": lambda gpu: f"GPU-{gpu.bus:x}"},
        "PciInfo": lambda gpu: SimpleNamespace(busId=bus_id(gpu.bus)),
        "MaxPcieLinkGeneration": lambda gpu: told(gpu.pcie)[0],
        "MaxPcieLinkWidth": lambda gpu: told(gpu.pcie)[1],
        "CurrPcieLinkGeneration": lambda gpu: told(gpu.pcie)[2],
        "CurrPcieLinkWidth": lambda gpu: told(gpu.pcie)[3],
        "MemoryBusWidth": lambda gpu: told(gpu.memory)[0],
        "MaxClockInfo": lambda gpu, clock: told(gpu.memory)[1],
        **{"NvLinkState": state, "FieldValues": link_speed},
        "NvLinkRemotePciInfo": lambda gpu, link: SimpleNamespace(busId=bus_id(gpu.links[link])),
        "NvLinkRemoteDeviceType": lambda gpu, link: {0xC0: 2, 0xC1: 1}.get(gpu.links[link], 0),
        "P2PStatus": lambda gpu, other, index: int(gpus.index(other) not in told(gpu.peers) or index != 0),
    }
    return SimpleNamespace(
        **{"NVMLError": FakeNvmlError, "NVML_CLOCK_MEM": 2, "NVML_NVLINK_MAX_LINKS": 18},
        NVML_P2P_CAPS_INDEX_READ=(0,),  # as some versions of the package have it
        **{"fail": fail, "shut_downs": shut_downs, "nvmlShutdown": lambda: shut_downs.append(1)},
        **{f"nvmlDeviceGet{name}": answer for name, answer in of_gpus.items()},
    )


fake_nvml = pytest.fixture(
    lambda: lambda *gpus: fake_nvml_of([FakeGpu(**gpu) for gpu in gpus]), name="fake_nvml"
)


@pytest.fixture
def imported(tmp_path, call):
    """(exit code, stderr, machine or None) of an import."""

    def run(text, *options):
        given, made = tmp_path / "box.txt", tmp_path / "box.yaml"
        given.write_text(text)
        code, _, said = call("topology", "import", given, "--out", made, *options)
        return code, said, load_anew(str(made)) if made.exists() else None

    return run

"""What NVML answers, read into facts; much of it may be missing."""

import sys
from types import SimpleNamespace

import pytest

from topologies.detect import _untold as untold
from topologies.detect_nvml import load, read_gpus
from topologies.detected_file import machine_file
from topologies.facts import Facts, Host, NumaNode, PcieLink
from topologies.file_text import as_yaml, validated

SWITCH = 0xC0


def test_every_fact_is_read(fake_nvml):
    (gpu,) = read_gpus(fake_nvml({"bus": 0x18}))
    assert (gpu.index, gpu.id, gpu.name, gpu.uuid) == (0, "gpu0", "NVIDIA H200", "GPU-18")
    assert (gpu.bus_id, gpu.pcie) == ("0000:18:00.0", PcieLink(5, 16, current_generation=1, current_width=16))
    assert (gpu.memory_bits, gpu.memory_hz) == (6144, 3201e6)


def test_links_to_switches_and_to_gpus_are_told_apart(fake_nvml):
    first = {"bus": 1, "links": [2, 2, 3, None], "peers": [1, 2]}
    second = {"bus": 2, "links": [1, None, 1, 3], "peers": [0, 2]}
    gpus = read_gpus(fake_nvml(first, second, {"bus": 3, "links": [1, SWITCH, SWITCH, 2], "peers": [0]}))
    assert [gpu.nvlinks for gpu in gpus] == [{1: 2, 2: 1}, {0: 2, 2: 1}, {0: 1, 1: 1}]
    assert [gpu.switch_links for gpu in gpus] == [0, 0, 2]
    assert [gpu.peers for gpu in gpus] == [{1, 2}, {0, 2}, {0}]


def test_links_to_gpus_that_are_not_visible_make_no_switch(fake_nvml):
    gpus = read_gpus(fake_nvml({"bus": 1, "links": [2, 7, 8]}, {"bus": 2, "links": [1, 7, 8]}))
    assert [gpu.nvlinks for gpu in gpus] == [{1: 1}, {0: 1}]
    assert [(gpu.switch_links, gpu.unseen_links) for gpu in gpus] == [(0, 2), (0, 2)]
    assert len(untold(gpus)) == 2


def box(gpus):
    facts = Facts("box", Host("processor", (NumaNode(0, 0, 16),)), gpus)
    return validated(as_yaml(machine_file(facts)), "the test")


def test_two_v100_of_a_dgx1_reach_each_other_by_their_own_link(fake_nvml):
    v100 = {"name": "Tesla V100-SXM2-16GB", "link_mb_per_s": 25781, "pcie": (3, 16, 3, 16)}
    links = [[2, 3, 4, 4, 5, 5], [1, 3, 3, 6, 7, 7]]
    gpus = [{"bus": at + 1, "links": links[at], "peers": [1 - at], **v100} for at in range(2)]
    topology = box(read_gpus(fake_nvml(*gpus)))
    assert not topology.machine.of_kind("nvswitch")
    path = topology.path((0, "gpu0"), (0, "gpu1"))
    assert topology.bandwidth_bytes_per_s(path) == pytest.approx(25.78e9, rel=1e-3)


def test_links_to_the_cpu_of_power9_make_no_switch(fake_nvml):
    cpu = 0xC1
    gpus = read_gpus(fake_nvml({"bus": 1, "links": [2, cpu, cpu]}, {"bus": 2, "links": [1, cpu, cpu]}))
    assert [(gpu.switch_links, gpu.cpu_link_bytes_per_s) for gpu in gpus] == [(0, 2 * 26562e6)] * 2
    machine = box(gpus).machine
    assert not machine.of_kind("nvswitch")
    assert {link.bandwidth_bytes_per_s for link in machine.links if link.first == "cpu0"} >= {2 * 26.56e9}


def test_links_lead_to_switches_where_no_type_is_told_and_gpus_that_cannot_be_counted_are_an_error(fake_nvml):
    nvml = fake_nvml({"bus": 1, "links": [7, 8]})
    nvml.nvmlDeviceGetNvLinkRemoteDeviceType = nvml.fail
    (gpu,) = read_gpus(nvml)
    assert (gpu.switch_links, gpu.unseen_links) == (2, 0)
    nvml.nvmlDeviceGetCount = nvml.fail
    with pytest.raises(nvml.NVMLError):
        read_gpus(nvml)


def test_speed_of_a_link_is_in_bytes_a_second(fake_nvml):
    silent = {"bus": 2, "links": [SWITCH], "link_mb_per_s": None}
    gpus = read_gpus(fake_nvml({"bus": 1, "links": [SWITCH]}, silent))
    assert [gpu.nvlink_bytes_per_s for gpu in gpus] == [26.562e9, None]


def test_what_the_driver_does_not_support_is_none(fake_nvml):
    silent = {"pcie": None, "memory": None, "peers": None}
    for gpu in read_gpus(fake_nvml({"bus": 1, **silent}, {"bus": 2, **silent})):
        assert (gpu.pcie, gpu.memory_bits, gpu.memory_hz, gpu.peers) == (None, None, None, None)
        assert (gpu.nvlinks, gpu.switch_links, gpu.nvlink_bytes_per_s) == ({}, 0, None)


class TestLoad:
    def test_without_the_package_or_the_driver_there_is_none(self, monkeypatch, fake_nvml):
        nvml = fake_nvml()
        for module in (None, SimpleNamespace(NVMLError=nvml.NVMLError, nvmlInit=nvml.fail)):
            monkeypatch.setitem(sys.modules, "pynvml", module)
            assert load() is None

    def test_it_is_initialized(self, monkeypatch, fake_nvml):
        nvml, calls = fake_nvml(), []
        nvml.nvmlInit = lambda: calls.append("init")
        monkeypatch.setitem(sys.modules, "pynvml", nvml)
        assert load() is nvml
        assert calls == ["init"]

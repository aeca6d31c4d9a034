"""NCCL's topology XML becomes a machine file."""

import re

import pytest

from topologies.detected_file import machine_file
from topologies.errors import TopologyError
from topologies.file_text import as_yaml, validated
from topologies.nccl_xml import facts_of

GPU = """
<pci busid="{bus}" class="0x030200" vendor="0x10de" link_speed="32.0 GT/s PCIe" link_width="16">
  <gpu dev="{dev}" sm="90" rank="{dev}" gdr="1">
    <nvlink target="{target}" count="{count}" tclass="{tclass}"/>
  </gpu>
</pci>"""


def system(first, second, bridge=True):
    gpus = first + second
    link = 'link_speed="16.0 GT/s" link_width="16"'
    inside = f'<pci busid="0000:10:00.0" class="0x060400" {link}>{gpus}</pci>'
    cpu = '<cpu numaid="0" affinity="00000000,0000ffff" arch="x86_64" vendor="GenuineIntel">'
    return f'<system version="1">{cpu}{inside if bridge else gpus}</cpu></system>'


def gpu(dev, target, count=18, tclass="0x068000"):
    return GPU.format(bus=f"0000:{20 + dev}:00.0", dev=dev, target=target, count=count, tclass=tclass)


def machine(text):
    return validated(as_yaml(machine_file(facts_of(text, "box")), []), "the test")


def test_gpus_behind_nvswitches_reach_each_other_with_all_their_links():
    topology = machine(system(gpu(0, "0000:05:00.0"), gpu(1, "0000:05:00.0")))
    path = topology.path((0, "gpu0"), (0, "gpu1"))
    assert path.kind == "peer"
    assert topology.bandwidth_bytes_per_s(path) == pytest.approx(18 * 25e9)
    assert topology.machine.of_kind("cpu")[0].cores == 16


def test_direct_nvlinks_join_two_gpus():
    topology = machine(system(gpu(0, "0000:21:00.0", 4, "0x030200"), gpu(1, "0000:20:00.0", 4, "0x030200")))
    assert topology.bandwidth_bytes_per_s(topology.path((0, "gpu0"), (0, "gpu1"))) == pytest.approx(100e9)


def test_pcie_links_have_their_generation_and_bridges_are_switches():
    topology = machine(system(gpu(0, "0000:05:00.0"), gpu(1, "0000:05:00.0")))
    assert len(topology.machine.of_kind("pcie_switch")) == 1
    to_host = topology.path((0, "gpu0"), (0, topology.host(0)[1]))
    assert topology.bandwidth_bytes_per_s(to_host) <= 16e9 / 8 * 16


def test_what_the_file_does_not_say_is_told():
    facts = facts_of(system(gpu(0, "x"), "<pci busid='a'><nic><net/></nic></pci>"), "box")
    assert any("1 NICs" in what for what in facts.missing)


@pytest.mark.parametrize("text", ["no xml", "<graphs/>", "<system/>"])
def test_other_files_are_refused(text):
    with pytest.raises(TopologyError, match="NCCL_TOPO_DUMP_FILE"):
        facts_of(text, "box")


@pytest.mark.parametrize("name", ["numaid", "sm", "count"])
@pytest.mark.parametrize("value", ["x", "1e3", "-2", "9" * 30])
def test_number_that_is_none_is_named(name, value):
    text = re.sub(rf'{name}="\d+"', f'{name}="{value}"', system(gpu(0, "x"), ""), count=1)
    with pytest.raises(TopologyError, match=f"dump.xml: {name} of <.*> is '{value}'; it must be"):
        facts_of(text, "machine", "dump.xml")

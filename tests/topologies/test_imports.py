"""NCCL's topology XML and `nvidia-smi topo -m` become machine files; what would be lost is named."""

import re

import pytest

from scaling.collectives.listing import schedule
from scaling.collectives.simulate import simulate
from tests.topologies.test_public_machines import PCIE5, bus, nvlink, pci, rate
from tests.topologies.test_public_machines import gpu as card
from topologies import smi_matrix
from topologies.detected_file import machine_file
from topologies.errors import TopologyError
from topologies.file_text import as_yaml, validated
from topologies.nccl_xml import facts_of

TO_GPU = "0x030200"


def gpu(dev, links="", sm=90, device="0x2330", place=None, more=""):
    """A GPU; `place`: of its PCI device, where that is not the one that follows from `dev`."""
    return pci(bus(dev if place is None else place), card(dev, links, sm) + more, device=device)


def cpu(inside, host="0x1"):
    words = 'numaid="0" affinity="00000000,0000ffff" arch="x86_64" vendor="GenuineIntel"'
    return f'<cpu {words} host_hash="{host}">{inside}</cpu>'


def system(*devices):
    bridge = '<pci busid="0000:01:00.0" class="0x060400" link_speed="16.0 GT/s" link_width="16">{}</pci>'
    return f'<system version="1">{cpu(bridge.format("".join(devices)))}</system>'


def switched(**keywords):
    return system(*(gpu(dev, nvlink("0000:05:00.0", 18), **keywords) for dev in range(2)))


def pair(**keywords):
    return system(*(gpu(dev, nvlink(bus(1 - dev), 4, TO_GPU), **keywords) for dev in range(2)))


def machine(text, read=facts_of, **keywords):
    return validated(as_yaml(machine_file(read(text, "box", **keywords)), []), "the test")


def test_gpus_behind_nvswitches_have_all_their_links_pcie_its_generation_and_bridges_are_switches():
    topology = machine(switched())
    assert rate(topology) == ("peer", pytest.approx(18 * 25e9))
    assert topology.machine.of_kind("cpu")[0].cores == 16
    assert len(topology.machine.of_kind("pcie_switch")) == 1
    to_host = topology.path((0, "gpu0"), (0, topology.host(0)[1]))
    assert topology.bandwidth_bytes_per_s(to_host) <= 16e9 / 8 * 16


@pytest.mark.parametrize(
    ("sm", "device", "of_one"), [(70, "0x1db1", 25e9), (86, "0x2230", 14.0625e9), (100, "0x2901", 50e9)]
)
def test_direct_nvlinks_have_the_rate_of_their_gpus_and_can_be_simulated(sm, device, of_one):
    topology = machine(pair(sm=sm, device=device))
    assert rate(topology) == ("peer", pytest.approx(4 * of_one, rel=1e-3))
    assert simulate(schedule("ring", 2), topology, 1 << 20).seconds > 0


@pytest.mark.parametrize(
    ("link_of_gpu", "link_of_bridge", "lanes", "said"),
    [
        ("32.0 GT/s PCIe|0", "32.0 GT/s PCIe|16", (5, 16), "PCIe widths of 1 GPUs: 0 in the file"),
        ("32.0 GT/s PCIe|16", "2.5 GT/s PCIe|1", (5, 16), "PCIe gen 1 x1 of 1 bridges"),
        ("32 GT/s|16", "16 GT/s|8", (4, 8), ""),
        ("Unknown speed|255", "|0", None, "PCIe speed 'Unknown speed', width '255': unknown"),
    ],
)
def test_pcie_of_a_gpu_that_is_alone_below_a_bridge(link_of_gpu, link_of_bridge, lanes, said):
    words = (text.split("|") for text in (link_of_gpu, link_of_bridge))
    links = [f'link_speed="{speed}" link_width="{width}"' for speed, width in words]
    below = gpu(0).replace(PCIE5, links[0])
    facts = facts_of(
        f'<system>{cpu(f"""<pci busid="1" class="0x060400" {links[1]}>{below}</pci>""")}</system>', "box"
    )
    found = facts.gpus[0].pcie
    assert (found and (found.generation, found.width)) == lanes
    about = [text for text in facts.missing if "PCIe" in text]
    assert len(about) == bool(said)
    assert "".join(about).startswith(said)


@pytest.mark.parametrize(("mask", "cores"), [("0000000f,ffffffff", 36), ("0-35", 16), ("", 16)])
def test_cores_that_are_assumed_are_named(mask, cores):
    facts = facts_of(switched().replace("00000000,0000ffff", mask), "box")
    assert facts.host.nodes[0].usable_cores == cores
    assert any("16 are assumed" in text for text in facts.missing) == (cores == 16)
    assert machine_file(facts)["device_types"]["cpu"]["source"]["cores"] == "nominal: NCCL's topology XML"


def test_gpus_have_the_numbers_of_the_file_and_those_that_are_used_twice_are_named():
    text = system(gpu(1, place=0), gpu(0, place=1))
    assert [one.bus_id for one in facts_of(text, "box").gpus] == [bus(1), bus(0)]
    facts = facts_of(system(gpu(0), gpu(0, place=1)), "box")
    assert [one.index for one in facts.gpus] == [0, 1]
    assert any("used twice" in what for what in facts.missing)


WITHOUT_GPU = pci("0001:00:00.0")
LOST = {
    "GPUs that have no <gpu>": system(WITHOUT_GPU, WITHOUT_GPU.replace("0001", "0002")),
    "to itself": system(gpu(0, nvlink(bus(0), 4, TO_GPU)), gpu(1)),
    "which is not in the file": system(gpu(0, nvlink("0000:77:00.0", 4, TO_GPU)), gpu(1)),
    "1 more <gpu>": system(gpu(0, more='<gpu dev="1" sm="90"/>')),
}


@pytest.mark.parametrize("what", LOST)
def test_file_that_loses_gpus_or_links_is_refused_unless_that_is_wanted(what):
    with pytest.raises(TopologyError, match=f"{what}.*--allow-missing-links"):
        facts_of(LOST[what], "box")
    facts = facts_of(LOST[what], "box", allow_missing_links=True)
    assert any(what in text for text in facts.missing)
    assert facts.gpus


def test_what_is_not_used_is_named():
    text = system(gpu(0, "<future/>"), gpu(1), "<pci busid='a'><nic><net/></nic></pci>")
    missing = facts_of(text, "box").missing
    for what in ("1 NICs", "<future> (1)", "peer access"):
        assert any(what in text for text in missing), what


def test_name_and_memory_of_a_gpu_come_from_its_pci_id_if_that_fits_its_compute_capability():
    assert facts_of(switched(), "box").gpus[0].name == "NVIDIA H100-SXM"
    facts = facts_of(switched(sm=86), "box")
    assert facts.gpus[0].name == "NVIDIA GPU sm_86"
    assert facts.gpus[0].memory_source.startswith("assumption")
    assert facts_of(switched(sm=86), "box", gpu="nvidia rtx a6000").gpus[0].memory_bytes_per_s == 768e9
    with pytest.raises(TopologyError, match=r"'H300' is not known; known: K80, .*H200"):
        facts_of(switched(), "box", gpu="H300")


@pytest.mark.parametrize(("text", "said"), [
    *((text, "NCCL_TOPO_DUMP_FILE") for text in ("no xml", "<graphs/>", "<system/>")),
    (f"<system>{cpu(gpu(0))}{cpu(gpu(1), host='0x2')}</system>", "2 hosts"),
])  # fmt: skip
def test_other_files_are_refused(text, said):
    with pytest.raises(TopologyError, match=said):
        facts_of(text, "box")


@pytest.mark.parametrize("name", ["numaid", "sm", "count"])
@pytest.mark.parametrize("value", ["x", "1e3", "-2", "9" * 30])
def test_number_that_is_none_is_named(name, value):
    text = re.sub(rf'{name}="\d+"', f'{name}="{value}"', switched(), count=1)
    with pytest.raises(TopologyError, match=f"dump.xml: {name} of <.*> is '{value}'; it must be"):
        facts_of(text, "machine", "dump.xml")


BOARD = """
\tGPU0\tGPU1\tGPU2\tGPU3\tNIC0\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID
GPU0\t X \tNV4\tPHB\tSYS\tPIX\t0-23\t0\tN/A
GPU1\tNV4\t X \tSYS\tSYS\tSYS\t0-23\t0\tN/A
GPU2\tPHB\tSYS\t X \tPXB\tSYS\t24-47,72-95\t1\tN/A
GPU3\tSYS\tSYS\tPXB\t X \tSYS\t24-47,72-95\t1\tN/A
NIC0\tPIX\tSYS\tSYS\tSYS\t X
"""


def test_links_switches_and_cpus_of_the_table_are_read():
    topology = machine(BOARD, smi_matrix.facts_of, gpu="RTX-A6000")
    assert rate(topology) == ("peer", pytest.approx(4 * 14.06e9, rel=1e-3))
    assert topology.path((0, "gpu2"), (0, "gpu3")).kind == "staged"
    assert [cpu.cores for cpu in topology.machine.of_kind("cpu")] == [24, 48]
    (switch,) = topology.machine.of_kind("pcie_switch")
    below = {link.second for link in topology.machine.links if link.first == switch.id}
    assert below == {"gpu2", "gpu3"}


def test_what_the_table_does_not_say_is_named():
    missing = smi_matrix.facts_of(BOARD, "box").missing
    for what in ("1 NICs", "--gpu", "peer access", "PCIe generations"):
        assert any(what in text for text in missing), what


UNDERLINED = BOARD.replace("\tGPU0\tGPU1", "\t\x1b[4mGPU0\tGPU1").replace("GPU NUMA ID", "GPU NUMA ID\x1b[0m")
ONE_WAY = BOARD.replace("GPU0\t X \tNV4", "GPU0\t X \tPHB")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (UNDERLINED, "1 NICs"),  # as it writes to a terminal
        (ONE_WAY, "GPU0 and GPU1: PHB from one, NV4 from the other"),
        ("\tGPU0\tGPU1\tCPU\nGPU0\tX\tNV1\tPHB\nGPU1\tNV1\tX\tPHB\nCPU\tPHB\tPHB\tX\n", ""),
    ],
)
def test_what_the_table_has_beside_links_of_gpus_is_counted(text, said):
    about = [one for one in smi_matrix.facts_of(text, "box").missing if "NICs" in one or "from one" in one]
    assert any(said in one for one in about) == bool(said)


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("GPU0 X NODE NODE 0-31\nGPU1 NODE X NODE 0-31\n", "no line of columns"),
        (
            BOARD.replace("GPU3\tSYS\tSYS\tPXB\t X \tSYS\t24-47,72-95\t1\tN/A", "GPU3\tSYS"),
            "no row of GPU3, or not a whole one",
        ),
        (BOARD.replace("\tGPU2\tGPU3", "\tGPU2"), "no line of columns"),
    ],
)
def test_table_that_is_not_whole_is_refused(text, error):
    with pytest.raises(TopologyError, match=f"{error}.*give all"):
        smi_matrix.facts_of(text, "box")


@pytest.mark.parametrize("text", ["<system/>", "{}", "# GPU0 is slow"])
def test_other_texts_are_no_table(text):
    assert not smi_matrix.is_matrix(text)

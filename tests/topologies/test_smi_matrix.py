"""`nvidia-smi topo -m` becomes a machine file."""

import pytest

from topologies.detected_file import machine_file
from topologies.errors import TopologyError
from topologies.file_text import as_yaml, validated
from topologies.smi_matrix import facts_of, is_matrix

BOARD = """
\tGPU0\tGPU1\tGPU2\tGPU3\tNIC0\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID
GPU0\t X \tNV4\tPHB\tSYS\tPIX\t0-23\t0\tN/A
GPU1\tNV4\t X \tSYS\tSYS\tSYS\t0-23\t0\tN/A
GPU2\tPHB\tSYS\t X \tPXB\tSYS\t24-47,72-95\t1\tN/A
GPU3\tSYS\tSYS\tPXB\t X \tSYS\t24-47,72-95\t1\tN/A
NIC0\tPIX\tSYS\tSYS\tSYS\t X
"""


def machine(text, **keywords):
    return validated(as_yaml(machine_file(facts_of(text, "box", **keywords)), []), "the test")


def test_links_switches_and_cpus_of_the_table_are_read():
    topology = machine(BOARD, gpu="RTX-A6000")
    path = topology.path((0, "gpu0"), (0, "gpu1"))
    assert (path.kind, topology.bandwidth_bytes_per_s(path)) == ("peer", pytest.approx(4 * 14.06e9, rel=1e-3))
    assert topology.path((0, "gpu2"), (0, "gpu3")).kind == "staged"
    assert [cpu.cores for cpu in topology.machine.of_kind("cpu")] == [24, 48]
    (switch,) = topology.machine.of_kind("pcie_switch")
    below = {link.second for link in topology.machine.links if link.first == switch.id}
    assert below == {"gpu2", "gpu3"}


def test_what_the_table_does_not_say_is_named():
    missing = facts_of(BOARD, "box").missing
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
    about = [one for one in facts_of(text, "box").missing if "NICs" in one or "from one" in one]
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
        facts_of(text, "box")


@pytest.mark.parametrize("text", ["<system/>", "{}", "# GPU0 is slow"])
def test_other_texts_are_no_table(text):
    assert not is_matrix(text)

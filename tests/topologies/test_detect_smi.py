"""What nvidia-smi prints, as published in issues of open projects, read into facts."""

import pytest

from topologies import detect_smi
from topologies.detect_smi import parse_gpu, parse_matrix, read_gpus, with_links
from topologies.facts import PcieLink

QUERY = """0, GPU-aa, 00000000:18:00.0, 5, 16, 1, 16, NVIDIA H200
1, GPU-bb, 00000000:2A:00.0, 5, 16, 5, 8, NVIDIA H200
"""
SWITCHED = """	\x1b[4mGPU0	GPU1	GPU2	NIC0	CPU Affinity	NUMA Affinity	GPU NUMA ID\x1b[0m
GPU0	 X 	NV18	NV18	PIX	0-47,96-143	0		N/A
GPU1	NV18	 X 	NV18	SYS	0-47,96-143	0		N/A
GPU2	NV18	NV18	 X 	SYS	48-95,144-191	1		N/A
NIC0	PIX	SYS	SYS	 X

Legend:

  X    = Self
  SYS  = Connection traversing PCIe as well as the SMP interconnect between NUMA nodes (e.g., QPI/UPI)
  NV#  = Connection traversing a bonded set of # NVLinks
"""
# Four H100 with six links between every two: no switch.
DIRECT = """        GPU0    GPU1    GPU2    GPU3    CPU Affinity    NUMA Affinity   GPU NUMA ID
GPU0     X      NV6     NV6     NV6     6,14,22,30      3               N/A
GPU1    NV6      X      NV6     NV6     4,12,20,28      1               N/A
GPU2    NV6     NV6      X      NV6     7,15,23,31      7               N/A
GPU3    NV6     NV6     NV6      X      5,13,21,29      5               N/A
"""
ACCESS = """ 	GPU0	GPU1	GPU2
 GPU0	X	OK	GNS
 GPU1	OK	X	OK
 GPU2	GNS	OK	X

Legend:

  X    = Self
  OK   = Status Ok
  GNS  = GPU not supported
"""
SPEEDS = "GPU 0: Tesla V100-SXM2-32GB (UUID: GPU-aa)\n" + "".join(
    f"\t Link {link}: {'<inactive>' if link == 3 else '25.781 GB/s'}\n" for link in range(6)
)


def three_gpus(count=3):
    line = "{0}, GPU-{0}, 00000000:{0}8:00.0, 5, 16, 1, 16, NVIDIA H100"
    return tuple(parse_gpu(line.format(number)) for number in range(count))


def asking(**answers):
    """Answers by the first word that is in the question."""
    return lambda *words: next((text for word, text in answers.items() if word in " ".join(words)), "")


def test_gpus_are_asked_for_by_an_exact_command():
    asked = []

    def ask(*words):
        asked.append(words)
        return QUERY if words[0].startswith("--query") else ""

    gpus = read_gpus(ask)
    assert asked[0] == (f"--query-gpu={','.join(detect_smi.FIELDS)}", "--format=csv,noheader,nounits")
    assert [gpu.bus_id for gpu in gpus] == ["0000:18:00.0", "0000:2a:00.0"]
    assert [gpu.uuid for gpu in gpus] == ["GPU-aa", "GPU-bb"]
    assert gpus[1].pcie == PcieLink(5, 16, current_generation=5, current_width=8)
    assert asked[1:] == [("topo", "-m"), ("topo", "-p2p", "r"), ("nvlink", "-s")]


def test_name_may_hold_a_comma_figures_may_be_missing_and_domains_have_more_than_four_digits():
    gpu = parse_gpu("0, GPU-aa, 00010000:18:00.0, [N/A], [N/A], [N/A], [N/A], Some GPU, 80GB")
    assert (gpu.name, gpu.pcie, gpu.bus_id) == ("Some GPU, 80GB", None, "10000:18:00.0")


def test_matrix_is_read_without_nics_and_legend_and_inactive_links_do_not_count():
    assert parse_matrix(SWITCHED) == {(a, b): "NV18" for a in range(3) for b in range(3) if a != b}
    assert (parse_matrix(ACCESS)[0, 2], parse_matrix("")) == ("GNS", {})
    assert detect_smi.parse_link_speeds(SPEEDS) == {0: [25.781e9] * 5}


def test_links_between_every_two_are_direct_where_a_gpu_has_as_many_and_else_lead_to_a_switch():
    direct = with_links(three_gpus(4), asking(m=DIRECT))
    assert (direct[1].nvlinks, direct[1].switch_links) == ({0: 6, 2: 6, 3: 6}, 0)
    switched = with_links(three_gpus(), asking(m=SWITCHED))
    assert [(gpu.nvlinks, gpu.switch_links) for gpu in switched] == [({}, 18)] * 3


def test_active_links_decide_between_direct_and_switched():
    two = "\tGPU0\tGPU1\tGPU2\nGPU0\tX\tNV4\tNV4\nGPU1\tNV4\tX\tNV4\nGPU2\tNV4\tNV4\tX\n"
    speeds = "".join(f"GPU {i}: X (UUID: GPU-{i})\n" + 4 * "\t Link 0: 25 GB/s\n" for i in range(3))
    gpus = with_links(three_gpus(), asking(**{"-m": two, "nvlink": speeds}))
    assert [(gpu.switch_links, gpu.nvlink_bytes_per_s) for gpu in gpus] == [(4, 25e9)] * 3


def test_peer_access_is_read_from_its_matrix():
    gpus = with_links(three_gpus(), asking(p2p=ACCESS))
    assert [gpu.peers for gpu in gpus] == [{1}, {0, 2}, {1}]
    assert [gpu.peers for gpu in with_links(three_gpus(), asking())] == [None] * 3


@pytest.mark.parametrize("program", ["/bin/false", "/no/such/program", None])
def test_program_that_fails_or_is_missing_says_nothing(monkeypatch, program):
    monkeypatch.setattr("topologies.detect_smi.shutil.which", lambda name: program)
    assert (detect_smi.nvidia_smi("topo", "-m"), read_gpus()) == ("", ())

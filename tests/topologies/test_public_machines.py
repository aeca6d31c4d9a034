"""Files of the shapes that people publish, through `scaling topology import`: the right value, or why not."""

import json
from collections import Counter

import pytest

PCIE4, PCIE5 = ('link_speed="16.0 GT/s PCIe" link_width="16"', 'link_speed="32.0 GT/s PCIe" link_width="16"')
CPU = '<cpu numaid="{}" affinity="ffff" arch="x86_64" vendor="GenuineIntel">{}</cpu>'


def rate(topology, a="gpu0", b="gpu1"):
    path = topology.path((0, a), (0, b))
    return path.kind, topology.bandwidth_bytes_per_s(path)


def system(*cpus):
    return f'<system version="1">{"".join(CPU.format(at, inside) for at, inside in enumerate(cpus))}</system>'


def pci(bus, inside="", kind="0x030200", vendor="0x10de", device="0x2330", link=PCIE5):
    words = f'busid="{bus}" class="{kind}" vendor="{vendor}" device="{device}" {link}'
    return f"<pci {words}>{inside}</pci>"


def gpu(number, links="", sm=90, more=""):
    return f'<gpu dev="{number}" sm="{sm}" rank="{number}" gdr="1" {more}>{links}</gpu>'


def nvlink(target, count, leads_to="0x068000", tag="nvlink"):
    return f'<{tag} target="{target}" count="{count}" tclass="{leads_to}"/>'


def bus(number):
    return f"0000:{number + 16:02x}:00.0"


# Azure's NDv4 (Azure/azhpc-images, topology/ndv4-topo.xml); AWS' P4d has the same form.
def test_clouds_file_with_devices_and_no_gpu_is_refused_and_its_nics_count(imported):
    devices = "".join(pci(bus(at)) for at in range(2)) + pci(bus(2), kind="0x020700")
    text = system(pci("ffff:ff:01.0", devices, "0x060400", link=PCIE4))
    code, said, machine = imported(text)
    assert (code, machine) == (2, None)
    assert "links of 2 GPUs that have no <gpu>" in said
    code, said, machine = imported(text, "--allow-missing-links", "--gpu", "A100-SXM4-40GB")
    assert code == 0
    assert "left out: links of 2 GPUs" in said
    assert "1 NICs: left out" in said
    assert rate(machine)[0] == "staged"
    assert {one.name for one in machine.machine.of_kind("gpu")} == {"NVIDIA A100-SXM4-40GB"}


def test_elements_and_attributes_that_nothing_reads_are_named(imported):
    devices = pci(bus(0), gpu(0, "<fabric/>", more='partition="1"')) + pci(bus(1), gpu(1))
    code, said, _ = imported(system(devices))
    assert code == 0
    assert "<fabric> (1): not used" in said
    assert "attributes not used: gdr, partition, rank\n" in said


# ROCm/rccl, tools/topo_expl/models/topo_8p_940.xml: eight MI300X, one xGMI link a pair.
def test_eight_mi300x_have_seven_links_each(imported):
    cards = hive(8, 1, "", "0x74a1", 'gcn="gfx942"', 304, "0x120000")
    _, _, machine = imported(system("".join(cards[:4]), "".join(cards[4:])))
    assert {key: n for key, n in links(machine).items() if key[0] == "xgmi"} == {("xgmi", 64.0): 28}
    assert {one.name for one in machine.machine.of_kind("gpu")} == {"AMD MI300X"}


# ROCm/rccl, tools/topo_expl/models/topo_8p1h.xml: MI250X under the early name 910, 1 to 4 links a pair.
def test_early_name_of_the_mi250x_has_its_rate(imported):
    ends = {0: {1: 4, 2: 1}, 1: {0: 4}, 2: {0: 1}}
    cards = [
        pci(bus(at), gpu(at, "".join(nvlink(bus(to), n, "0x038000", "xgmi") for to, n in links.items()), 104,
                         'gcn="910"'), "0x038000", "0x1002", "0x740c")
        for at, links in ends.items()
    ]  # fmt: skip
    _, said, machine = imported(system("".join(cards)))
    assert (rate(machine)[1], rate(machine, "gpu0", "gpu2")[1]) == (200e9, 50e9)
    assert "--gpu" not in said
    bare = "".join(pci(bus(at), "", "0x038000", "0x1002", "0x740c") for at in range(2))
    assert "links of 2 GPUs that have no <gpu>" in imported(system(bare))[1]


# ROCm/rccl issue 1185: a DCU of another maker, whose dumps are those of RCCL.
def test_gpu_of_another_maker_is_not_called_amds(imported):
    text = system("".join(pci(bus(at), gpu(at, more='gcn="21943"'), "0x038000", "0x1d94") for at in range(2)))
    _, said, machine = imported(text)
    assert {one.name for one in machine.machine.of_kind("gpu")} == {"vendor 0x1d94 GPU gfx21943"}
    assert "names of gpu0, gpu1: the PCI ids do not tell" in said


# NVIDIA/nccl issue 507: V100s of which one shows fewer switches than its neighbour.
# NVIDIA/nccl issue 1182: in a virtual machine the switch has no address.
def test_each_gpu_has_its_own_number_of_links_to_switches(imported):
    switches = [nvlink(f"0000:6{at}:00.0", 1) for at in range(6)]
    cards = [
        pci(bus(0), gpu(0, "".join(switches), 70), device="0x1db8"),
        pci(bus(1), gpu(1, "".join(switches[:5]), 70), device="0x1db8"),
        pci(bus(2), gpu(2, nvlink("fffffff:ffff:ff", 6), 70), device="0x1db8"),
    ]
    _, _, machine = imported(system("".join(cards)))
    assert (rate(machine), rate(machine, "gpu0", "gpu2")) == (("peer", 5 * 25e9), ("peer", 6 * 25e9))


def pair(ends, devices=("0x2230", "0x2230"), sm=(86, 86)):
    inside = [gpu(at, links, sm[at]) for at, links in enumerate(ends)]
    cards = [pci(bus(at), one, device=devices[at], link=PCIE4) for at, one in enumerate(inside)]
    return system("".join(cards))


def test_link_that_one_end_alone_names_is_used_and_said(imported):
    _, said, machine = imported(pair(["", nvlink(bus(0), 4, "0x030200")]))
    assert rate(machine) == ("peer", pytest.approx(56.25e9, rel=1e-3))
    assert "links of gpu0 and gpu1: 0 from one end, 4 from the other" in said


def test_links_of_different_gpus_have_their_own_rates(imported):
    text = pair([nvlink("0000:05:00.0", 12), nvlink("0000:05:00.0", 18)], ("0x20b2", "0x2901"), (80, 100))
    machine = imported(text)[2]
    links = [link for link in machine.machine.links if "switch" in link.second]
    to_switch = {link.first: link.bandwidth_bytes_per_s for link in links}
    assert to_switch == {"gpu0": 12 * 25e9, "gpu1": 18 * 50e9}


# A desk-side GB10: the link to the CPU counts, not its PCIe of generation 1.
def test_gb10_reaches_its_cpu_by_the_chip_to_chip_link(imported):
    card = pci("000f:01:00.0", gpu(0, '<c2c bw="43125" count="8"/>', 121), device="0x2e12")
    _, said, machine = imported(system(card + pci("0000:01:00.0", "<nic><net/></nic>", "0x020700")))
    (link,) = (link for link in machine.machine.links if "gpu0" in (link.first, link.second))
    assert link.bandwidth_bytes_per_s == pytest.approx(345e9)
    assert "1 NICs" in said
    assert machine.machine.of_kind("gpu")[0].name == "NVIDIA GB10"


# NVIDIA/nccl issue 1505: a DGX A100, GPUs in pairs below two levels of switches.
def test_switches_below_switches_are_said_to_count_as_one(imported):
    def below(name, devices):
        return pci(name, devices, "0x060400", link=PCIE4)

    pairs = [below(f"0000:a{at}:00.0", pci(bus(2 * at), gpu(2 * at)) + pci(bus(2 * at + 1), gpu(2 * at + 1)))
             for at in range(2)]  # fmt: skip
    _, said, machine = imported(system(below("0000:b0:00.0", below("0000:b1:00.0", "".join(pairs)))))
    assert len(machine.machine.of_kind("pcie_switch")) == 1
    assert "2 PCIe switches below others: each tree of switches counts as one" in said


def table(words, columns="", ends="\t0-23,48-71", start=""):
    names = [f"GPU{at}" for at in range(len(words))]
    head = "\t" + "\t".join(names) + columns + "\tCPU Affinity"
    rows = ["\t".join([name, *row.split()]) + ends for name, row in zip(names, words, strict=True)]
    return "\n".join([start + head, *rows]) + "\n"


DGX1 = [
    "X NV1 NV1 NV2 NV2 SYS SYS SYS", "NV1 X NV2 NV1 SYS NV2 SYS SYS",
    "NV1 NV2 X NV2 SYS SYS NV1 SYS", "NV2 NV1 NV2 X SYS SYS SYS NV1",
    "NV2 SYS SYS SYS X NV1 NV1 NV2", "SYS NV2 SYS SYS NV1 X NV2 NV1",
    "SYS SYS NV1 SYS NV1 NV2 X NV2", "SYS SYS SYS NV1 NV2 NV1 NV2 X",
]  # fmt: skip


def test_dgx1_has_its_cube_of_links(imported):
    machine = imported(table(DGX1), "--gpu", "V100-SXM2")[2]
    assert not machine.machine.of_kind("nvswitch")
    rates = Counter(link.bandwidth_bytes_per_s for link in machine.machine.links if link.kind == "nvlink")
    assert (rates, rate(machine, "gpu0", "gpu5")[0]) == ({25e9: 8, 50e9: 8}, "staged")


NO_WORD = "between GPUs: no word of `nvidia-smi topo -m`"


@pytest.mark.parametrize(("text", "why"), [
    # AWS' G5 (aws/aws-ofi-nccl, topology/g5.48xl-topo.xml) was taken for a machine without GPUs.
    (system('<pci busid="0000:00:16.0"/>', '<pci busid="0000:00:1a.0"/>'), "all GPUs: the file has none"),
    # Written by hand in many guides: a <gpu> outside of any <pci>.
    (system(gpu(0) + gpu(1), pci(bus(0), gpu(2))), "2 <gpu> outside of a <pci>"),
    ("\n".join(table(DGX1).splitlines()[:3]), "no row of GPU2, GPU3, GPU4, GPU5, GPU6, GPU7"),
    # `nvidia-smi topo -p2p r` and `rocm-smi --showtopo` look like it, and were read as without links.
    (table(["X OK", "OK X"], ends=""), f"OK {NO_WORD}"),
    (table(["0 XGMI", "XGMI 0"], ends=""), f"XGMI {NO_WORD}"),
], ids=["addresses", "outside", "part", "p2p", "rocm"])  # fmt: skip
def test_file_that_loses_gpus_or_links_is_refused(imported, text, why):
    code, said, machine = imported(text)
    assert (code, machine) == (2, None)
    assert why in said


# NVIDIA/nccl-tests issue 78: V100s behind switches, six links each, NICs by their names.
def test_three_gpus_of_a_switched_board_have_no_more_links_than_they_own(imported):
    text = table(["X NV6 NV6", "NV6 X NV6", "NV6 NV6 X"], "\tmlx5_0\tbond0", "\tPIX\tPXB\t0-23", "\x1b[4m")
    _, said, machine = imported(text, "--gpu", "V100-SXM3")
    assert len(machine.machine.of_kind("nvswitch")) == 1
    assert "2 NICs: left out" in said
    assert "whether NVLinks lead to a switch" in imported(text)[1]


# A GH200 prints one row: it was taken for a machine without GPUs.
def test_table_of_one_gpu_has_it(imported):
    machine = imported(table(["X"], "\tNIC0", "\tSYS\t0-71"), "--gpu", "GH200")[2]
    assert [one.id for one in machine.machine.of_kind("gpu")] == ["gpu0"]


# NVIDIA/nccl issue 1439: pairs below a switch on two sockets.
def test_pairs_below_a_switch_share_it_and_sets_of_cpus_are_said_to_be_sockets(imported):
    words = ["X PIX SYS SYS", "PIX X SYS SYS", "SYS SYS X PIX", "SYS SYS PIX X"]
    lines = table(words).splitlines()
    lines[3:] = [line.replace("0-23,48-71", "24-47,72-95") for line in lines[3:]]
    _, said, machine = imported("\n".join(lines))
    assert (len(machine.machine.of_kind("pcie_switch")), len(machine.machine.of_kind("cpu"))) == (2, 2)
    assert "each of the 2 sets of CPUs is taken for one" in said


TO_GPU, POWER9, AMDS = "0x030200", "0x068001", "0x038000"


def links(machine):
    """(kind, GB/s) of every link, counted, but for those to memory and between sockets."""
    found = Counter((link.kind, link.bandwidth_bytes_per_s / 1e9) for link in machine.machine.links)
    return {key: number for key, number in found.items() if key[0] not in ("memory", "inter-socket")}


def hive(number, count, kind, device, more="", sm=90, amd=AMDS):
    """GPUs of which every two are joined by so many links."""
    tag, target = ("xgmi", amd) if "gcn" in more else ("nvlink", TO_GPU)
    names = {"kind": amd, "vendor": "0x1002"} if "gcn" in more else {}
    cards = []
    for at in range(number):
        links = "".join(nvlink(bus(to), count, target, tag) for to in range(number) if to != at)
        cards.append(pci(bus(at), gpu(at, links + kind, sm, more), device=device, **names))
    return cards


def test_quad_gh200_has_its_chip_to_chip_links_and_six_nvlinks_a_pair(imported):
    _, said, machine = imported(system(*hive(4, 6, '<c2c bw="45000" count="10"/>', "0x2342")))
    assert links(machine) == {("nvlink", 150.0): 6, ("nvlink-c2c", 450.0): 4}
    assert said.count("its link to the CPU is used") == 4


def test_power9_with_pairs_of_v100_has_nvlinks_to_its_processors(imported):
    sockets = [["0004:04:00.0", "0004:05:00.0"], ["0035:03:00.0", "0035:04:00.0"]]
    cards = ["", ""]
    for number in range(4):
        pair = sockets[number // 2]
        ends = nvlink(pair[1 - number % 2], 3, TO_GPU) + nvlink(pair[0][:7], 3, POWER9)
        cards[number // 2] += pci(pair[number % 2], gpu(number, ends, 70), device="0x1db5")
    _, _, machine = imported(system(*cards))
    assert links(machine) == {("nvlink", 75.0): 2, ("nvlink-c2c", 75.0): 4}
    assert not machine.machine.of_kind("nvswitch")


@pytest.mark.parametrize(
    ("number", "count", "device", "more", "of_a_pair", "name"),
    [(4, 1, "0x738c", 'gcn="908"', 46.0, "AMD MI100"), (2, 3, "0x740f", 'gcn="gfx90a"', 150.0, "AMD MI210")],
)
def test_hives_of_amds_cards_have_their_bridges(imported, number, count, device, more, of_a_pair, name):
    _, _, machine = imported(system(*hive(number, count, "", device, more, 104)))
    assert links(machine)["xgmi", of_a_pair] == number * (number - 1) // 2
    assert {one.name for one in machine.machine.of_kind("gpu")} == {name}


def test_eight_b200_reach_their_switch_with_18_links_of_50_gb_a_second(imported):
    cards = [pci(bus(at), gpu(at, nvlink("fffffff:ffff:ff", 18), 100), device="0x2901") for at in range(8)]
    assert links(imported(system("".join(cards)))[2])["nvlink", 900.0] == 8


def test_numbers_of_devices_are_not_the_order_of_the_file(imported):
    text = system(pci(bus(3), gpu(0)) + pci(bus(1), gpu(2), device="0x20b2"), pci(bus(0), gpu(1)))
    machine = imported(text)[2].machine
    near = {one.id: machine.nearest(one.id, "cpu") for one in machine.of_kind("gpu")}
    assert near["gpu0"] == near["gpu2"] != near["gpu1"]


def every(word, number=8):
    return [" ".join("X" if at == to else word(at, to) for to in range(number)) for at in range(number)]


def test_table_of_a_board_of_h100_has_its_switch_sockets_and_nics(imported):
    text = table(every(lambda *_: "NV18"), "\tNIC0", "\tPIX\t0-47,96-143")
    legend = "NIC0\tPIX" + 7 * "\tSYS" + "\t X \n\nLegend:\n\n  X    = Self\n  NV#  = bonded\n"
    _, said, machine = imported(text + legend, "--gpu", "H100-SXM")
    assert (links(machine)["nvlink", 450.0], len(machine.machine.of_kind("nvswitch"))) == (8, 1)
    assert machine.machine.of_kind("cpu")[0].cores == 96
    assert "1 NICs" in said


def test_table_of_pairs_with_bridges_or_without_nvlink_says_what_is_assumed_of_their_access(imported):
    words = every(lambda at, to: "NV12" if at // 2 == to // 2 else "SYS", 4)
    _, said, machine = imported(table(words), "--gpu", "A100-PCIE-80GB")
    assert links(machine)["nvlink", 300.0] == 2
    reached = [machine.machine.peer_access(f"gpu{at}", f"gpu{at + 1}") for at in (0, 1)]
    assert (reached, machine.machine.other_peers_unknown) == ([True, False], True)
    assert "of others it is unknown, and they are priced without" in said
    words = every(lambda at, to: "NODE" if at // 4 == to // 4 else "SYS")
    _, said, machine = imported(table(words), "--gpu", "L40S")
    assert (machine.machine.peer_groups, machine.machine.other_peers_unknown) == ((), True)
    assert "peer access: the table does not say" in said
    assert "PCIe generations and widths" in said


def test_prediction_of_unknown_peer_access_is_the_slower_one_and_says_so(imported, call):
    imported(table(every(lambda at, to: "PIX" if at // 2 == to // 2 else "NODE", 4)), "--gpu", "L40S")
    words = ("predict", "mnist", "--topology", "box.yaml", "--world-sizes", "4", "device=cuda", "--json")
    found = {}
    for changes in ((), ("--what-if", "peer_access=on"), ("--what-if", "peer_access=off")):
        rows = json.loads(call.printed(*words, *changes))
        found[changes[1:]] = {row["aggregator"]: row["exchange_s"] for row in rows}
        noted = {row["aggregator"] for row in rows if "is unknown" in " ".join(row["notes"])}
        assert noted == (set() if changes else {"all_reduce", "ring", "tree", "one_bit"})
    assert found[()] == found[("peer_access=off",)]
    assert found[()]["all_reduce"] > found[("peer_access=on",)]["all_reduce"]

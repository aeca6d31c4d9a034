"""Boards and clouds of other shapes, through `scaling topology import`: the kind and rate of every link."""

from collections import Counter

import pytest

from tests.topologies.test_public_machines import bus, gpu, nvlink, pci, system, table

TO_GPU, POWER9, AMDS = "0x030200", "0x068001", "0x038000"


def links(machine):
    """(kind, GB/s) of every link, counted, but for those to memory and between sockets."""
    found = Counter((link.kind, link.bandwidth_bytes_per_s / 1e9) for link in machine.machine.links)
    return {key: number for key, number in found.items() if key[0] not in ("memory", "inter-socket")}


def hive(number, count, kind, device, more="", sm=90):
    """GPUs of which every two are joined by so many links."""
    tag, target = ("xgmi", AMDS) if "gcn" in more else ("nvlink", TO_GPU)
    names = {"kind": AMDS, "vendor": "0x1002"} if "gcn" in more else {}
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


def test_table_of_pairs_with_bridges_has_two_groups_that_reach_each_other(imported):
    words = every(lambda at, to: "NV12" if at // 2 == to // 2 else "SYS", 4)
    _, said, machine = imported(table(words), "--gpu", "A100-PCIE-80GB")
    assert links(machine)["nvlink", 300.0] == 2
    assert machine.machine.peer_access("gpu0", "gpu1")
    assert not machine.machine.peer_access("gpu1", "gpu2")
    assert "others are taken to have none: change peer_access if they do" in said


def test_table_of_cards_without_nvlink_says_what_is_assumed_of_their_access(imported):
    words = every(lambda at, to: "NODE" if at // 4 == to // 4 else "SYS")
    _, said, machine = imported(table(words), "--gpu", "L40S")
    assert not machine.machine.peer_groups
    assert "peer access: the table does not say" in said
    assert "PCIe generations and widths" in said

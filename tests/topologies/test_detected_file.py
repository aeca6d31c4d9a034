"""A detected machine becomes a machine file that loads, draws, and says where each figure comes from."""

import math
import re
from dataclasses import replace

import pytest
import yaml

from scaling.report.machine_pictures import draw
from topologies.describe import describe
from topologies.detected_file import machine_file, peer_access
from topologies.facts import Facts, Gpu, Host, NumaNode, PcieLink, PciePlace
from topologies.file_text import as_yaml, engineering, validated

ONE_NODE = Host("A CPU", (NumaNode(0, 0, 64, 2**40),))
TWO_SOCKETS = Host("AMD EPYC", tuple(NumaNode(at, at // 2, 16, 2**38) for at in range(4)))


def gpus(number, **more):
    known = {"pcie": PcieLink(5, 16, 1, 16), "memory_bits": 6144, "memory_hz": 3201e6}

    def one(index):
        own = known | {"peers": frozenset(set(range(number)) - {index})} | more
        return Gpu(index, "NVIDIA H200", f"GPU-{index}", f"0000:{index}8:00.0", **own)

    return tuple(map(one, range(number)))


def loaded(facts):
    return validated(as_yaml(machine_file(facts)), "my-box.yaml")


SWITCHED = Facts("my-box", ONE_NODE, gpus(4, switch_links=18, nvlink_bytes_per_s=26.562e9))
PLACES = {f"0000:{i}8:00.0": PciePlace(i // 2 * 2, (f"0000:{i // 2}0:00.0", "up")) for i in range(4)}
BRIDGES = {"0000:00:00.0": PcieLink(4, 16)}
ON_SWITCHES = Facts("my-box", TWO_SOCKETS, gpus(4), places=PLACES, bridges=BRIDGES)
BARE = Facts("my box!", Host("A CPU", (NumaNode(0, 0, 0),)), gpus(2, pcie=None, memory_bits=None, peers=None))
NO_GPU = Facts("-", ONE_NODE)


@pytest.mark.parametrize(
    ("facts", "name"),
    [(SWITCHED, "my-box"), (ON_SWITCHES, "my-box"), (BARE, "my-box"), (NO_GPU, "this-machine")],
    ids=["switched", "pcie", "bare", "cpu"],
)
def test_it_loads_is_drawn_and_says_that_a_figure_is_nominal_assumed_or_whose_it_is(facts, name):
    topology = loaded(facts)
    assert (topology.name, len(topology.machine.of_kind("gpu"))) == (name, len(facts.gpus))
    assert describe(topology)
    assert draw(topology).startswith("<svg")
    for figure, text in topology.sources.items():
        assert re.match(r"(nominal|assumption|detected|NCCL, src)", text), (figure, text)


def test_nominal_figures_follow_from_the_links():
    topology = loaded(SWITCHED)
    links = {link.id: link for link in topology.machine.links}
    assert math.isclose(links["cpu0-gpu0"].bandwidth_bytes_per_s, 63.0e9, rel_tol=1e-3)
    assert topology.sources["pcie5-x16.bandwidth_bytes_per_s"] == "nominal: PCIe gen 5 x16, 63.0 GB/s raw"
    assert links["gpu0-nvswitch0"].count == 18
    assert math.isclose(links["gpu0-nvswitch0"].bandwidth_bytes_per_s, 18 * 26.56e9)
    h200 = topology.machine.by_id["gpu0"]
    assert math.isclose(h200.bandwidth_bytes_per_s, 4.917e12)  # the datasheet says 4.8 TB/s
    assert math.isclose(h200.reduce_bytes_per_s, 4.917e12 / 3, rel_tol=1e-3)
    assert topology.machine.peer_access("gpu0", "gpu3")
    assert topology.path((0, "gpu0"), (0, "gpu3")).kind == "peer"


def test_narrow_slot_counts_with_the_lanes_in_use():
    topology = loaded(replace(SWITCHED, gpus=gpus(1, pcie=PcieLink(4, 16, 1, 8))))
    (text,) = [text for name, text in topology.sources.items() if name == "pcie4-x8.bandwidth_bytes_per_s"]
    assert text == "nominal: PCIe gen 4 x8 (of x16 that both ends can), 15.8 GB/s raw"


def test_direct_links_join_pairs_and_give_peer_access_where_nobody_says():
    one, two, three = gpus(3, peers=None)
    pair = (replace(one, nvlinks={1: 4}), replace(two, nvlinks={0: 4}), three)
    topology = loaded(Facts("my-box", ONE_NODE, pair))
    (link,) = [link for link in topology.machine.links if link.kind == "nvlink"]
    assert (link.first, link.second, link.count) == ("gpu0", "gpu1", 4)
    assert topology.sources["nvlink.bandwidth_bytes_per_s"].startswith("assumption: 25 GB/s a link")
    assert topology.machine.peer_access("gpu0", "gpu1")
    assert not topology.machine.peer_access("gpu1", "gpu2")


def test_gpus_below_one_root_port_share_a_switch_of_their_socket():
    topology = loaded(ON_SWITCHES)
    route = [link.id for link, _ in topology.machine.route("gpu2", "host2")]
    assert route == ["switch1-gpu2", "cpu2-switch1", "cpu2-host2"]
    uplinks = {link.id: link.type for link in topology.machine.links}
    assert (uplinks["cpu0-switch0"], uplinks["cpu2-switch1"]) == ("pcie4-x16", "pcie5-x16")
    assert [link.id for link in topology.machine.links if link.kind == "inter-socket"] == ["cpu1-cpu2"]
    assert topology.sources["inter-socket.bandwidth_bytes_per_s"].endswith("AMD_BW")


@pytest.mark.parametrize(("pairs", "said"), [
    ([], "none"), ([("a", "b"), ("b", "c"), ("c", "a")], "all"),
    ([("b", "a"), ("b", "c")], [["a", "b"], ["b", "c"]]),
    ([("a", "c")], [["a", "c"]]),
])  # fmt: skip
def test_peer_access_is_told_in_the_fewest_groups(pairs, said):
    assert peer_access(["a", "b", "c"], pairs) == said
    of_others = {"none": "unknown", "all": "all"}[said] if isinstance(said, str) else [*said, "unknown"]
    assert peer_access(["a", "b", "c"], pairs, "unknown") == of_others


class TestText:
    def test_comments_stand_at_the_head_and_content_is_unchanged(self):
        file = machine_file(SWITCHED)
        text = as_yaml(file, ["first", "", "second"])
        assert text.startswith("# first\n#\n# second\nname: my-box\n")
        assert "  - {id: gpu3, type: h200}\n" in text
        again = yaml.safe_load(text)
        assert (again.keys(), again["devices"]) == (file.keys(), file["devices"])
        assert again["links"] == file["links"]
        assert math.isclose(again["link_types"]["pcie5-x16"]["latency_s"], 0.25e-6)

    @pytest.mark.parametrize(("value", "text"), [
        (55.4e9, "55.4e+9"), (63015384615.4, "63.02e+9"), (4.17e12, "4.17e+12"), (0.25e-6, "0.25e-6"),
        (1e-9, "0.001e-6"), (0.0, "0.0"), (12.5, "12.5"), (192e9, "192.0e+9"),
    ])  # fmt: skip
    def test_numbers_are_short_and_yaml_reads_them_back(self, value, text):
        assert engineering(value) == text
        assert math.isclose(yaml.safe_load(text), value, rel_tol=1e-3)

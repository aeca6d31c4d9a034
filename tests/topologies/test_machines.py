"""The shipped machines: each loads, each figure has a source, and what is known of them holds."""

import re
from itertools import permutations

import pytest
import yaml

from tests.topologies.conftest import load
from topologies.gpus import MODELS, compute_capability
from topologies.schema import shipped

NAMES = list(shipped())
FIGURES = ("bandwidth_bytes_per_s", "back_bytes_per_s", "latency_s", "cores", "reduce_bytes_per_s")


def gpus(topology):
    return [gpu.id for gpu in topology.machine.of_kind("gpu")]


def all_at_once(topology, paths):
    """Bytes a second of each of several equal messages at once, where all have their fair share."""
    uses = {}
    for path in paths:
        for resource, times in path.resources.items():
            uses[resource] = uses.get(resource, 0) + times
    return min(topology.capacity_bytes_per_s(resource) / times for resource, times in uses.items())


@pytest.mark.parametrize("name", NAMES)
class TestEveryMachine:
    def test_file_has_the_name_of_its_machine_whose_devices_can_sum(self, name):
        topology = load(name)
        assert topology.name == name
        assert topology.description
        summing = [device for device in topology.machine.devices if device.kind in ("gpu", "cpu")]
        assert all(device.reduce_bytes_per_s for device in summing)

    def test_every_figure_has_a_source_that_is_public_or_says_what_it_is(self, name):
        topology = load(name)
        for thing in (*topology.machine.devices, *topology.machine.links):
            given = [figure for figure in FIGURES if getattr(thing, figure, None) is not None]
            for key in [f"{thing.type}.{figure}" for figure in given] or [thing.type]:
                assert topology.sources[key].strip(), key
        for kind in topology.machine.message_latency_s:
            assert topology.sources[f"message_latency_s.{kind}"]
        if topology.network is not None:
            assert topology.sources["network.bandwidth_bytes_per_s"]
            assert topology.sources["network.latency_s"]
        texts = [*topology.sources.values(), shipped()[name]]
        assert not re.search(r"(^|[\s(])/(work|home|tmp|root)\b|[Rr]eference notes", "\n".join(texts))

    def test_routes_exist_between_all_pairs_and_their_kinds_have_a_software_latency(self, name):
        topology, kinds = load(name), {"host"}
        places = [(0, device) for device in gpus(topology)]
        places += [(0, memory.id) for memory in topology.machine.of_kind("host_memory")]
        if topology.num_nodes > 1:
            places += [(topology.num_nodes - 1, device) for device in gpus(topology)]
        for source, target in permutations(places, 2):
            for peer_access in (True, False):
                path = topology.path(source, target, peer_access=peer_access)
                kinds.add(path.kind)
                assert 0 < topology.bandwidth_bytes_per_s(path) < 1e12
                assert 0 < path.latency_s < 1e-4
        assert kinds <= set(topology.machine.message_latency_s)


def test_the_machines_that_users_ask_for_are_there():
    clusters = {f"hgx-h200-x{n}-{network}" for n in (2, 16) for network in ("infiniband", "10gbe", "100gbe")}
    assert {"dual-k80", "dgx1-v100", "pcie-8", "pcie-8-no-peer-access", "dgx-a100", "hgx-h100"} <= set(NAMES)
    assert {"hgx-h200", "hgx-h200-4", "cpu-2"} | clusters <= set(NAMES)
    assert load("cpu-2").ranks(2) == [(0, "host0"), (0, "host0")]


class TestDualK80:
    k80 = load("dual-k80")

    def test_peers_are_those_of_a_board(self):
        boards = {gpu.id: gpu.board for gpu in self.k80.machine.of_kind("gpu")}
        for a, b in permutations(boards, 2):
            assert self.k80.machine.peer_access(a, b) is (boards[a] == boards[b])

    def test_a_board_exchanges_inside_its_switch_and_shares_its_link_to_host_memory_and_boards(self):
        inside, between = (self.k80.path((0, "gpu0"), (0, to)) for to in ("gpu1", "gpu2"))
        board = {"node0/switch0-gpu0<", "node0/switch0-gpu1>"}
        assert (inside.kind, set(inside.resources)) == ("peer", board)
        assert (between.kind, between.resources["node0/host0"]) == ("staged", 2)
        assert {"node0/cpu0-switch0<", "node0/cpu1-switch1>"} <= set(between.resources)
        both = [self.k80.path((0, gpu), (0, "host0")) for gpu in ("gpu0", "gpu1")]
        assert all_at_once(self.k80, both) == 4e9


class TestDgx1:
    dgx1 = load("dgx1-v100")
    # Number of NVLinks, as nvidia-smi topo -m shows them.
    NVLINKS = (
        (0, 1, 1, 2, 2, 0, 0, 0), (1, 0, 2, 1, 0, 2, 0, 0), (1, 2, 0, 2, 0, 0, 1, 0),
        (2, 1, 2, 0, 0, 0, 0, 1), (2, 0, 0, 0, 0, 1, 1, 2), (0, 2, 0, 0, 1, 0, 2, 1),
        (0, 0, 1, 0, 1, 2, 0, 2), (0, 0, 0, 1, 2, 1, 2, 0),
    )  # fmt: skip

    def test_nvlinks_are_those_of_the_hybrid_cube_mesh_and_pairs_without_one_are_staged(self):
        counts = [[0] * 8 for _ in range(8)]
        for link in self.dgx1.machine.links:
            if link.kind == "nvlink":
                a, b = int(link.first[3:]), int(link.second[3:])
                counts[a][b] = counts[b][a] = link.count
        assert (tuple(map(tuple, counts)), {sum(row) for row in counts}) == (self.NVLINKS, {6})
        for a, b in permutations(range(8), 2):
            path = self.dgx1.path((0, f"gpu{a}"), (0, f"gpu{b}"))
            assert path.kind == ("peer" if counts[a][b] else "staged")
            if counts[a][b]:
                assert self.dgx1.bandwidth_bytes_per_s(path) == 20e9 * counts[a][b]


def test_without_peer_access_all_is_staged_over_the_same_links():
    with_access, without = load("pcie-8"), load("pcie-8-no-peer-access")
    assert with_access.machine.links == without.machine.links
    assert with_access.path((0, "gpu0"), (0, "gpu7")).kind == "peer"
    assert without.path((0, "gpu0"), (0, "gpu1")).kind == "staged"


class TestHgxH200:
    four = load("hgx-h200-4")

    @pytest.mark.parametrize(("number", "there", "gigabytes_per_s"), [
        (1, False, 55.4), (1, True, 55.3), (4, False, 41.0), (4, True, 33.8),
    ])  # fmt: skip
    def test_copies_of_one_gpu_and_of_all_four_at_once_are_as_measured(self, number, there, gigabytes_per_s):
        ends = [((0, gpu), (0, "host0"))[:: 1 if there else -1] for gpu in gpus(self.four)[:number]]
        rate = all_at_once(self.four, [self.four.path(*pair) for pair in ends])
        assert rate == pytest.approx(gigabytes_per_s * 1e9)

    @pytest.mark.parametrize(("name", "peer_access", "rate"), [
        ("hgx-h200-4", False, 24e9), ("hgx-h200", True, 18 * 20.6e9),
    ])  # fmt: skip
    def test_ring_through_the_host_is_as_measured_and_nvswitch_never_blocks(self, name, peer_access, rate):
        own, n = load(name), len(gpus(load(name)))
        ring = [((0, f"gpu{i}"), (0, f"gpu{(i + 1) % n}")) for i in range(n)]
        paths = [own.path(*pair, peer_access=peer_access) for pair in ring]
        assert all_at_once(own, paths) == pytest.approx(rate)

    def test_every_gpu_has_its_own_nic_past_host_memory_on_infiniband_and_shares_one_on_ethernet(self):
        infiniband, ethernet = load("hgx-h200-x2-infiniband"), load("hgx-h200-x2-10gbe")
        assert [infiniband.machine.nic(gpu) for gpu in gpus(infiniband)] == [f"nic{i}" for i in range(8)]
        assert {ethernet.machine.nic(gpu) for gpu in gpus(ethernet)} == {"nic0"}
        for cluster, stops in ((infiniband, False), (load("hgx-h200-x2-100gbe"), True)):
            path = cluster.path((0, "gpu0"), (1, "gpu5"))
            assert ("node0/host0" in path.resources) is stops


def test_files_are_read_from_the_package_and_are_yaml():
    for text in shipped().values():
        assert text.startswith("# ")
        assert yaml.safe_load(text)["name"]


@pytest.mark.parametrize(("name", "capability"), [
    ("NVIDIA GK210, half a Tesla K80", 3.7), ("Tesla P40", 6.1), ("NVIDIA TITAN V", 7.0),
    ("Quadro RTX 6000", 7.5), ("NVIDIA RTX 6000 Ada Generation", 8.9), ("NVIDIA RTX A6000", 8.6),
    ("NVIDIA GeForce RTX 4090", 8.9), ("NVIDIA H100 80GB HBM3", 9.0),
    ("NVIDIA RTX PRO 6000 Blackwell Server Edition", 12.0),
    ("AMD Instinct MI300X", None), ("", None),
])  # fmt: skip
def test_names_of_drivers_tell_the_compute_capability(name, capability):
    assert compute_capability(name) == capability


def test_every_known_product_and_gpu_of_a_shipped_machine_has_its_compute_capability():
    for model in MODELS:
        expected = int(model.architecture[3:]) / 10 if model.vendor == "NVIDIA" else None
        assert compute_capability(f"{model.vendor} {model.name}") == expected
    shipped_gpus = {gpu.name for name in NAMES for gpu in load(name).machine.of_kind("gpu")}
    assert [name for name in shipped_gpus if compute_capability(name) is None] == []

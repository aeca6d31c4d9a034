"""Routes, paths and what a byte passes on them, on small machines that can be read at a glance."""

import math

import pytest

from topologies.errors import TopologyError
from topologies.model import Device, Link, Machine, Network, Topology

MEMORY = Device("host0", "host_memory", bandwidth_bytes_per_s=60e9)
CPU = Device("cpu0", "cpu", cores=4)
SWITCH = Device("switch0", "pcie_switch")
GPUS = tuple(Device(f"gpu{i}", "gpu") for i in range(3))
LINKS = (
    Link("bus", "cpu0", "host0", "memory", 60e9, 1e-7, duplex=False),
    Link("up", "cpu0", "switch0", "pcie", 10e9, 2e-7),
    Link("a", "switch0", "gpu0", "pcie", 10e9, 3e-7),
    Link("b", "switch0", "gpu1", "pcie", 10e9, 3e-7),
    Link("c", "cpu0", "gpu2", "pcie", 10e9, 3e-7),
)
ENDS, FROM_2 = ((0, "gpu0"), (0, "gpu1")), ((0, "gpu2"), (0, "host0"))


def machine(**changes):
    values = {
        **{"name": "small", "devices": (MEMORY, CPU, SWITCH, *GPUS), "links": LINKS},
        **{"peer_groups": (frozenset({"gpu0", "gpu1"}),)},
        "message_latency_s": {"peer": 1e-6, "staged": 2e-6, "host": 3e-6, "network": 4e-6},
    }
    return Machine(**{**values, **changes})


def topology(**changes):
    return Topology("small", machine(**changes))


def clustered(nics=("nic0",), *, gpudirect=False, num_nodes=2):
    devices = tuple(Device(name, "nic", gpudirect=gpudirect) for name in nics)
    links = tuple(Link(f"switch0-{name}", "switch0", name, "pcie", 10e9, 1e-7) for name in nics)
    node = machine(devices=(MEMORY, CPU, SWITCH, *GPUS, *devices), links=(*LINKS, *links))
    return Topology("cluster", node, num_nodes, Network("10 GbE", 1e9, 5e-6))


def passed(path):
    """Kind, and resource -> how often it is passed."""
    return path.kind, dict(path.resources)


STAGED = {"node0/a<": 1, "node0/up<": 1, "node0/bus": 2, "node0/host0": 2, "node0/c>": 1}
ON_THE_BUS = {"node0/a<": 1, "node0/up<": 1, "node0/bus": 2, "node0/host0": 2, "node0/up>": 1, "node0/b>": 1}
TO_HOST = {"node0/c<": 1, "node0/bus": 1, "node0/host0": 1}


class TestRoutes:
    @pytest.mark.parametrize(("ends", "peer_access", "expected", "latency_s"), [
        (ENDS, True, ("peer", {"node0/a<": 1, "node0/b>": 1}), 1e-6 + 6e-7),
        (((0, "gpu0"), (0, "gpu2")), True, ("staged", STAGED), 2e-6 + 3e-7 + 2e-7 + 1e-7 + 1e-7 + 3e-7),
        (ENDS, False, ("staged", ON_THE_BUS), 2e-6 + 2 * 6e-7),  # over the links of their switch
        (((0, "gpu2"), (0, "host0")), True, ("host", TO_HOST), 3e-6 + 4e-7),
        (((0, "host0"), (0, "gpu2")), True,
         ("host", {name.replace("<", ">"): n for name, n in TO_HOST.items()}), 3e-6 + 4e-7),
    ])  # fmt: skip
    def test_peers_pass_their_switch_and_others_memory_twice(self, ends, peer_access, expected, latency_s):
        path = topology().path(*ends, peer_access=peer_access)
        assert (passed(path), path.latency_s) == (expected, pytest.approx(latency_s))

    def test_the_faster_of_two_links_is_taken(self):
        fast = Link("nvlink", "gpu0", "gpu1", "nvlink", 40e9, 1e-7)
        assert topology(links=(*LINKS, fast)).path(*ENDS).resources == {"node0/nvlink>": 1}
        slow = Link("slow", "switch0", "gpu0", "pcie", 1e9, 0.0)
        assert "node0/slow<" not in topology(links=(*LINKS, slow)).path(*ENDS).resources

    def test_gpus_are_ends_of_routes_and_lie_on_none(self):
        over = [Link(name, name, "gpu2", "nvlink", 1e12, 0.0) for name in ("gpu0", "gpu1")]
        assert set(topology(links=(*LINKS, *over)).path(*ENDS).resources) == {"node0/a<", "node0/b>"}

    @pytest.mark.parametrize(("ask", "said"), [
        (lambda: topology(links=LINKS[:-1]).path(*FROM_2), "no route from 'gpu2' to 'host0'; check 'links'"),
        (lambda: Topology("two", machine(), 2).path((0, "gpu0"), (1, "gpu0")), "2 nodes without 'network'"),
        (lambda: topology().ranks(4), "4 ranks, but 3 places on 1 node;"),
    ])  # fmt: skip
    def test_what_there_is_not_is_an_error_that_says_what_to_check(self, ask, said):
        with pytest.raises(TopologyError, match=said):
            ask()


class TestCapacities:
    def test_directions_have_a_bandwidth_each_and_a_shared_link_and_host_memory_are_one_resource(self):
        two_ways = Link("bus", "cpu0", "host0", "memory", 30e9, 0.0, back_bytes_per_s=40e9)
        small = topology(links=(two_ways, *LINKS[1:]))
        assert [small.capacity_bytes_per_s(f"node0/bus{way}") for way in "><"] == [30e9, 40e9]
        assert [topology().capacity_bytes_per_s(f"node0/{name}") for name in ("bus", "host0")] == [60e9] * 2

    def test_a_message_alone_is_limited_by_what_it_passes_most(self):
        slow = Device("host0", "host_memory", bandwidth_bytes_per_s=12e9)
        small = topology(devices=(slow, CPU, SWITCH, *GPUS))
        rates = [small.bandwidth_bytes_per_s(small.path((0, "gpu0"), (0, f"gpu{to}"))) for to in (0, 1, 2)]
        assert rates == [math.inf, 10e9, 6e9]  # to itself it passes nothing


class TestClusters:
    def test_gpus_without_gpudirect_stop_in_host_memory_on_both_nodes(self):
        path = clustered().path((0, "gpu0"), (1, "gpu2"))
        assert path.kind == "network"
        assert path.resources["node0/host0"] == path.resources["node1/host0"] == 2
        assert path.resources["node0/nic0/network>"] == path.resources["node1/nic0/network<"] == 1

    def test_gpudirect_goes_past_host_memory_unless_host_only_forbids_it(self):
        cluster, ends = clustered(gpudirect=True), ((0, "gpu0"), (1, "gpu1"))
        path = cluster.path(*ends)
        there = ["node0/a<", "node0/switch0-nic0>", "node0/nic0/network>"]
        assert set(path.resources) == {*there, "node1/nic0/network<", "node1/switch0-nic0<", "node1/b>"}
        assert path.latency_s == pytest.approx(4e-6 + 5e-6 + 2 * (3e-7 + 1e-7))
        assert cluster.path(*ends, peer_access=False).resources["node0/host0"] == 2

    def test_gpus_with_the_same_nearest_nics_take_them_in_turn(self):
        node = clustered(("nic0", "nic1")).machine
        assert [node.nic(name) for name in ("gpu0", "gpu1", "host0")] == ["nic0", "nic1", "nic0"]

    def test_network_is_a_resource_of_each_nic_and_direction(self):
        cluster = clustered()
        assert cluster.capacity_bytes_per_s("node1/nic0/network>") == 1e9
        assert cluster.bandwidth_bytes_per_s(cluster.path((0, "gpu0"), (1, "gpu0"))) == 1e9


def test_ranks_fill_node_after_node_and_on_a_machine_without_gpu_every_core_of_its_first_memory():
    assert clustered().ranks(5) == [(0, "gpu0"), (0, "gpu1"), (0, "gpu2"), (1, "gpu0"), (1, "gpu1")]
    assert topology(devices=(MEMORY, CPU), links=LINKS[:1]).ranks(4) == [(0, "host0")] * 4
    assert clustered().host(1) == (1, "host0")

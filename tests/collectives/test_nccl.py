from dataclasses import replace

import pytest

from scaling.collectives.nccl import best_rings, nccl_price
from scaling.prediction.predict import Predictor
from scaling.prediction.strategy import Machinery
from scaling.prediction.what_if import what_if
from tests.prediction.conftest import cell, machine, strategy
from topologies.schema import load


def time(topology, world_size, num_bytes, peer_access=True):
    return nccl_price(topology, topology.ranks(world_size), num_bytes, peer_access=peer_access)


def test_large_buffers_take_a_ring_of_whole_lines_at_the_links_rate():
    found = time(machine(), 4, 1e9)
    assert found.choice == "ring, Simple"
    assert found.flow_s == pytest.approx(1.5 * 1e9 / 200e9)


def test_small_buffers_take_the_protocol_of_least_latency():
    found = time(machine(), 4, 1024)
    assert "LL" in found.choice
    assert found.latency_s == pytest.approx(6.6e-6 + 6 * 0.6e-6)


def test_latency_grows_with_ranks_and_through_the_host():
    assert time(machine(8), 8, 1024).seconds > time(machine(8), 4, 1024).seconds
    assert time(machine(), 4, 1024, peer_access=False).seconds > time(machine(), 4, 1024).seconds


def test_several_nodes_are_bound_by_the_network():
    found = time(machine(nodes=4), 16, 1e9)
    assert found.flow_s == pytest.approx(2 * 15 / 16 * 1e9 / 20e9)
    assert "network" in found.busiest


def test_many_nodes_take_the_tree_for_small_buffers():
    assert time(machine(nodes=64), 256, 4096).choice.startswith("tree")


def test_ring_between_nodes_crosses_the_network_once_a_node_each_way():
    by_nodes = {nodes: time(machine(nodes=nodes), 4 * nodes, 2**33) for nodes in (4, 8)}
    assert {price.choice for price in by_nodes.values()} == {"ring, Simple"}
    hops = {nodes: (2 * (4 * nodes - nodes), 2 * (nodes - 1)) for nodes in by_nodes}
    for nodes, (inside, across) in hops.items():
        expected = 1.4 * (8.4e-6 + inside * 3.4e-6 + across * 14e-6)
        assert by_nodes[nodes].latency_s == pytest.approx(expected)


@pytest.mark.parametrize(
    ("name", "factor"),
    [("Tesla P40", 1.9), ("NVIDIA GeForce RTX 2080 Ti", 1.9), ("NVIDIA L40S", 1.4), ("NVIDIA H200", 1.4)],
)
def test_rings_between_nodes_of_gpus_older_than_ampere_wait_longer(name, factor):
    expected = factor * (8.4e-6 + 2 * (16 - 4) * 3.4e-6 + 2 * 3 * 14e-6)
    assert time(of_gpus(name, 4), 16, 2**33).latency_s == pytest.approx(expected)


def of_gpus(name, nodes=1):
    known = machine(nodes=nodes)
    devices = tuple(
        replace(device, name=name) if device.kind == "gpu" else device for device in known.machine.devices
    )
    return replace(known, machine=replace(known.machine, devices=devices))


def test_low_latency_moves_as_much_between_l4_as_between_those_of_ampere():
    prices = [time(of_gpus(name), 4, 2**16) for name in ("NVIDIA L4", "NVIDIA A100", "NVIDIA H200")]
    assert prices[0] == prices[1] != prices[2]


@pytest.mark.parametrize(("name", "is_said"), [("NVIDIA L4", False), ("A GPU", True)])
def test_gpus_of_unknown_age_are_said(name, is_said):
    found = Predictor(Machinery(of_gpus(name))).predict(strategy(cell(4, "all_reduce")))
    assert any("compute capability of 'A GPU' not known" in note for note in found.notes) == is_said


def test_two_nodes_take_a_tree_that_passes_each_byte_once_each_way():
    found = time(machine(nodes=2), 8, 2**33)
    assert found.choice == "tree, Simple"
    assert found.flow_s == pytest.approx(2 * 2**33 / (0.92 * 2 * 20e9))


def test_trees_between_nodes_are_slow_at_medium_sizes():
    rates = [2**k / time(machine(nodes=64), 256, 2**k).flow_s for k in (17, 20, 23, 30)]
    assert rates == sorted(rates)


def test_reduce_scatter_is_half_a_ring_whatever_its_size():
    topology = machine(nodes=4)
    whole, half = (
        nccl_price(topology, topology.ranks(16), 2**33, peer_access=True, halves=halves) for halves in (2, 1)
    )
    assert half.flow_s == pytest.approx(whole.flow_s / 2)
    small = nccl_price(topology, topology.ranks(16), 4096, peer_access=True, halves=1)
    assert small.choice.startswith("ring")


def test_4096_gpus_take_a_tree_until_the_hops_of_a_ring_count_for_little():
    topology = what_if(load("hgx-h200-x16-infiniband"), ["nodes=512"])
    prices = [time(topology, 4096, num_bytes) for num_bytes in (2**20, 2**27, 2**34, 2**38)]
    assert [price.choice for price in prices] == ["tree, LL128"] * 2 + ["tree, Simple", "ring, Simple"]
    assert prices[-1].flow_s == pytest.approx(2 * 4095 / 4096 * 2**38 / 371e9, rel=0.01)
    assert prices[2].latency_s < prices[-1].latency_s / 100


def test_one_rank_takes_nothing():
    assert time(machine(), 1, 1e9).seconds == 0


def bus_gb_per_s(name, world_size, num_bytes=1e9):
    seconds = time(load(name), world_size, num_bytes).seconds
    return 2 * (world_size - 1) / world_size * num_bytes / seconds / 1e9


def test_cube_mesh_has_rings_that_share_no_link_and_leave_none_free():
    topology = load("dgx1-v100")
    gpus = [gpu.id for gpu in topology.machine.of_kind("gpu")]
    rings = best_rings(topology, gpus, peer_access=True)
    left = {
        frozenset((link.first, link.second)): 0.0 for link in topology.machine.links if link.kind == "nvlink"
    }
    for order, bytes_per_s in rings.orders:
        for a, b in zip(order, (*order[1:], order[0]), strict=True):
            left[frozenset((gpus[a], gpus[b]))] += bytes_per_s
    capacity = {frozenset((x.first, x.second)): 2 * x.bandwidth_bytes_per_s for x in topology.machine.links}
    assert left == pytest.approx({pair: capacity[pair] for pair in left})


@pytest.mark.parametrize(("gpus", "expected"), [(2, 20), (3, 40), (4, 80), (8, 120)])
def test_gpus_of_a_cube_mesh_reach_their_links_together(gpus, expected):
    assert bus_gb_per_s("dgx1-v100", gpus) == pytest.approx(expected, rel=0.02)


# Sources: docs/background/prediction.md, of nccl-tests' bus bandwidth.
@pytest.mark.parametrize(("name", "gpus", "num_bytes", "published", "within"), [
    ("dgx-a100", 8, 2**30, 230.8, 0.06), ("hgx-h100", 8, 2**30, 370, 0.06), ("pcie-8", 2, 10**7, 11.28, 0.06),
    ("dgx-a100-x16-infiniband", 32, 2**33, 192, 0.06), ("hgx-h200-x16-infiniband", 32, 2**34, 365.84, 0.06),
    ("dgx1-v100", 8, 2**30, 135.5, 0.12), ("dgx1-v100", 8, 2**27, 129.1, 0.10),
    ("pcie-8-no-peer-access", 8, 2**27, 2.46, 0.23),
    ("hgx-h200-x2-10gbe", 16, 2**30, 2, 0.08), ("hgx-h200-x16-10gbe", 64, 2**29, 1.17, 0.07),
    ("hgx-h200-x16-100gbe", 32, 2**27, 5, 0.02),
])  # fmt: skip
def test_bus_bandwidth_is_near_what_nccl_tests_published(name, gpus, num_bytes, published, within):
    assert bus_gb_per_s(name, gpus, num_bytes) == pytest.approx(published, rel=within)


def test_the_interval_of_four_k80_holds_a_published_result_only_without_access_or_behind_one_link():
    published_s = 1.5 * (num_bytes := 2**30) / 2.55e9
    inside = {}
    for name, peer_access in (("dual-k80", True), ("dual-k80", False), ("dual-k80-one-link", True)):
        of_cell = cell(4, "all_reduce", peer_access=peer_access)
        exchange = Predictor(Machinery(load(name))).predict(strategy(of_cell)).exchange
        low, high = (end / exchange.value for end in exchange.interval)
        topology = load(name)
        seconds = time(topology, 4, num_bytes, peer_access).seconds
        inside[name, peer_access] = low * seconds <= published_s <= high * seconds
    assert inside == {("dual-k80", True): False, ("dual-k80", False): True, ("dual-k80-one-link", True): True}


@pytest.mark.parametrize(("kind", "gb_per_s", "is_said"), [
    ("100 GbE", 12.5, True), ("100 GbE, RoCE", 12.5, False), ("InfiniBand", 12.5, False),
    ("25 GbE", 3.1, False),
])  # fmt: skip
def test_networks_over_tcp_that_are_faster_than_sockets_are_said_and_uncertain(kind, gb_per_s, is_said):
    topology = load("hgx-h200-x16-100gbe")
    network = replace(topology.network, kind=kind, bandwidth_bytes_per_s=1e9 * gb_per_s)
    predicted = Predictor(Machinery(replace(topology, network=network))).predict(
        strategy(cell(32, "all_reduce"))
    )
    assert any("4 to 6 GB/s a NIC" in note for note in predicted.notes) is is_said
    assert (predicted.exchange.relative_sd > 0.7) is is_said


def test_pairs_without_access_are_passed_once_each_way():
    rings = best_rings(load("dual-k80"), ["gpu0", "gpu2", "gpu1", "gpu3"], peer_access=True)
    ((order, bytes_per_s),) = rings.orders
    assert bytes_per_s == pytest.approx(8e9)
    assert {order.index(0) - order.index(2), order.index(1) - order.index(3)} <= {-3, -1, 1, 3}


def test_orders_of_many_gpus_on_pcie_are_not_searched_and_that_is_said():
    topology = what_if(load("pcie-8"), ["gpus=2x"])
    assert "not searched among more than 8 GPUs" in time(topology, 16, 1e9).note
    few, many = (
        Predictor(Machinery(topology)).predict(strategy(cell(size, "all_reduce"))).exchange
        for size in (8, 16)
    )
    assert many.relative_sd > few.relative_sd + 0.1

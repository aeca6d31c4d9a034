"""What the exchanges of NCCL take; which algorithm an MPI library runs, and what its processes take."""

from dataclasses import replace

import pytest

from scaling.collectives.halving_doubling import halving_doubling, recursive_doubling
from scaling.collectives.host_staging import host_serial
from scaling.collectives.mpi_library import (
    MESSAGE_S,
    MpiLibrary,
    by_processes,
    mpi_all_reduce,
    process_places,
    segmented_ring,
)
from scaling.collectives.nccl import best_rings, nccl_price
from scaling.collectives.ring import ring
from scaling.collectives.schedule import Schedule
from scaling.collectives.verify import verify
from scaling.errors import ScheduleError
from scaling.prediction.predict import Predictor
from scaling.prediction.strategy import Machinery
from scaling.prediction.what_if import what_if
from tests.prediction.conftest import cell, machine, strategy
from topologies.errors import TopologyError
from topologies.schema import load


def time(topology, world_size, num_bytes, peer_access=True):
    return nccl_price(topology, topology.ranks(world_size), num_bytes, peer_access=peer_access)


def test_large_buffers_take_a_ring_of_whole_lines_and_small_ones_the_protocol_of_least_latency():
    found = time(machine(), 4, 1e9)
    assert (found.choice, found.flow_s) == ("ring, Simple", pytest.approx(1.5 * 1e9 / 200e9))
    found = time(machine(), 4, 1024)
    assert "LL" in found.choice
    assert found.latency_s == pytest.approx(6.6e-6 + 6 * 0.6e-6)


def test_latency_grows_with_ranks_and_through_the_host_and_one_rank_takes_nothing():
    assert time(machine(8), 8, 1024).seconds > time(machine(8), 4, 1024).seconds
    assert time(machine(), 4, 1024, peer_access=False).seconds > time(machine(), 4, 1024).seconds
    assert time(machine(), 1, 1e9).seconds == 0


def test_several_nodes_are_bound_by_the_network_and_many_take_the_tree_for_small_buffers():
    found = time(machine(nodes=4), 16, 1e9)
    assert found.flow_s == pytest.approx(2 * 15 / 16 * 1e9 / 20e9)
    assert "network" in found.busiest
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


def test_gpus_of_unknown_age_are_said():
    for name, is_said in (("NVIDIA L4", False), ("A GPU", True)):
        found = Predictor(Machinery(of_gpus(name))).predict(strategy(cell(4, "all_reduce")))
        assert any("compute capability of 'A GPU' not known" in note for note in found.notes) == is_said


def test_two_nodes_take_a_tree_that_passes_each_byte_once_each_way():
    found = time(machine(nodes=2), 8, 2**33)
    assert found.choice == "tree, Simple"
    assert found.flow_s == pytest.approx(2 * 2**33 / (0.92 * 2 * 20e9))
    rates = [2**k / time(machine(nodes=64), 256, 2**k).flow_s for k in (17, 20, 23, 30)]
    assert rates == sorted(rates), "slow at medium sizes"


def test_reduce_scatter_is_half_a_ring_whatever_its_size():
    def priced(num_bytes, halves):
        topology = machine(nodes=4)
        return nccl_price(topology, topology.ranks(16), num_bytes, peer_access=True, halves=halves)

    assert priced(2**33, 1).flow_s == pytest.approx(priced(2**33, 2).flow_s / 2)
    assert priced(4096, 1).choice.startswith("ring")


def test_4096_gpus_take_a_tree_until_the_hops_of_a_ring_count_for_little():
    topology = what_if(load("hgx-h200-x16-infiniband"), ["nodes=512"])
    prices = [time(topology, 4096, num_bytes) for num_bytes in (2**20, 2**27, 2**34, 2**38)]
    assert [price.choice for price in prices] == ["tree, LL128"] * 2 + ["tree, Simple", "ring, Simple"]
    assert prices[-1].flow_s == pytest.approx(2 * 4095 / 4096 * 2**38 / 371e9, rel=0.01)
    assert prices[2].latency_s < prices[-1].latency_s / 100


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


# Sources: docs/background/prediction.md, of nccl-tests' bus bandwidth.
@pytest.mark.parametrize(("name", "gpus", "num_bytes", "published", "within"), [
    ("dgx-a100", 8, 2**30, 230.8, 0.06), ("hgx-h100", 8, 2**30, 370, 0.06), ("pcie-8", 2, 10**7, 11.28, 0.06),
    ("dgx-a100-x16-infiniband", 32, 2**33, 192, 0.06), ("hgx-h200-x16-infiniband", 32, 2**34, 365.84, 0.06),
    ("dgx1-v100", 8, 2**30, 135.5, 0.12), ("dgx1-v100", 8, 2**27, 129.1, 0.10),
    ("pcie-8-no-peer-access", 8, 2**27, 2.46, 0.23),
    ("hgx-h200-x2-10gbe", 16, 2**30, 2, 0.08), ("hgx-h200-x16-10gbe", 64, 2**29, 1.17, 0.07),
    ("hgx-h200-x16-100gbe", 32, 2**27, 5, 0.02),
    # GPUs of a cube mesh reach their links together.
    *(("dgx1-v100", gpus, 1e9, rate, 0.02) for gpus, rate in ((2, 20), (3, 40), (4, 80), (8, 120))),
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


OPEN_MPI = MpiLibrary("Open MPI", (5, 0, 11))
OLD_OPEN_MPI = MpiLibrary("Open MPI", (4, 0, 7))
MPICH = MpiLibrary("MPICH", (5, 0, 2))
MIB = 1 << 20


@pytest.mark.parametrize(("words", "expected"), [
    ("Open MPI v5.0.11", OPEN_MPI),
    ("Open MPI v4.1.4rc1", MpiLibrary("Open MPI", (4, 1, 4))),
    ("MPICH Version: 5.0.2", MPICH), ("Intel(R) MPI Library 2021.11", None), ("", None),
])  # fmt: skip
def test_library_is_read_from_its_own_words(words, expected):
    assert MpiLibrary.of(words) == expected


@pytest.mark.parametrize(("library", "world_size", "num_bytes", "expected"), [
    *((OPEN_MPI, *case) for case in (
        (2, 4, "ring"), (2, 4095, "recursive doubling"), (2, 4096, "ring"), (2, 8192, "recursive doubling"),
        (3, 16384, "ring"), (3, 262143, "ring"), (3, 262144, "reduce-scatter and all-gather"),
        (4, 8191, "recursive doubling"), (4, 8192, "reduce-scatter and all-gather"), (7, 15, "ring"),
        (8, 15, "recursive doubling"), (31, 4096, "reduce-scatter and all-gather"),
        (64, 262143, "recursive doubling"), (128, 131071, "reduce and broadcast"),
        (300, 4096, "reduce-scatter and all-gather"), (1024, 2047, "reduce and broadcast"),
        (5000, 8192, "ring"), (5000, 56 * MIB, "reduce-scatter and all-gather"),
    )),
    # Before 4.1 it has one threshold, and segments.
    (OLD_OPEN_MPI, 4, 9_999, "recursive doubling"), (OLD_OPEN_MPI, 4, 4 * MIB, "ring"),
    (OLD_OPEN_MPI, 4, 4 * MIB + 4, "segmented ring"),
    # MPICH doubles only what is short, and three elements for four ranks.
    (MPICH, 4, 8, "recursive doubling"), (MPICH, 4, 12, "recursive doubling"),
    (MPICH, 4, 16, "reduce-scatter and all-gather"),
    (MpiLibrary("MPICH", (3, 3, 2)), 4, 2048, "recursive doubling"),
    (MpiLibrary("MPICH", (3, 3, 2)), 4, 2052, "reduce-scatter and all-gather"),
], ids=str)  # fmt: skip
def test_a_library_chooses_by_its_table(library, world_size, num_bytes, expected):
    assert library.algorithm(world_size, num_bytes) == expected


@pytest.mark.sampled(4)
@pytest.mark.parametrize("num_bytes", [4, 1024, 5000, 10_000, 100_000, 3 * MIB, 64 * MIB])
@pytest.mark.parametrize("library", [OPEN_MPI, OLD_OPEN_MPI, MPICH], ids=str)
@pytest.mark.parametrize(("world_size", "num_nodes"), [(2, 1), (3, 1), (8, 1), (8, 2), (12, 3), (150, 1)])
def test_every_choice_is_an_all_reduce(library, world_size, num_nodes, num_bytes):
    words, schedule = mpi_all_reduce(library, world_size, num_bytes, num_nodes)
    assert schedule.world_size == world_size
    verify(schedule)
    assert words


def test_mpich_crosses_between_nodes_with_one_rank_each():
    words, schedule = mpi_all_reduce(MPICH, 8, 64 * MIB, num_nodes=2)
    crossing = {
        (t.source, t.target) for step in schedule.steps for t in step if t.source // 4 != t.target // 4
    }
    assert crossing == {(0, 4), (4, 0)}
    assert words == "reduce, reduce-scatter and all-gather between nodes, broadcast"


def test_segments_change_the_steps_and_not_the_bytes_and_large_buffers_send_no_more_than_a_ring_does():
    once, often = verify(segmented_ring(4, 1)), verify(segmented_ring(4, 8))
    assert once.sent_ratio_per_rank == often.sent_ratio_per_rank
    assert often.num_steps == 3 * 9 > once.num_steps
    _, schedule = mpi_all_reduce(OPEN_MPI, 8, 64 * MIB)
    assert max(verify(schedule).sent_ratio_per_rank) == pytest.approx(2 * 7 / 8)


def test_one_rank_does_nothing_none_is_refused_and_what_is_not_modelled_is_said_on_several_nodes_alone():
    assert mpi_all_reduce(OPEN_MPI, 1, MIB)[1] == Schedule("nothing", 1, 1, ())
    with pytest.raises(ScheduleError, match="1 and more"):
        mpi_all_reduce(OPEN_MPI, 0, MIB)
    assert "coll/han" in OPEN_MPI.not_modelled(2)
    assert (OPEN_MPI.not_modelled(1), OLD_OPEN_MPI.not_modelled(2)) == (None, None)


CORE = 3 * 5e9  # bytes a second that a core of `machine` reads and writes
SIZE = 1e8


def test_two_ranks_copy_in_and_out_and_add_half_each():
    price = by_processes(halving_doubling(2), machine(2), SIZE)
    # Half the buffer out and half in, twice, at two bytes moved each; half is added at three.
    assert price.flow_s == pytest.approx((2 * 2 * SIZE + 1.5 * SIZE) / CORE)
    assert price.latency_s == pytest.approx(2 * MESSAGE_S)
    assert price.busiest == "node0/core"


def test_swapping_whole_buffers_takes_longer_than_halving_and_links_between_gpus_change_nothing():
    doubled, halved = (
        by_processes(one(4), machine(), SIZE) for one in (recursive_doubling, halving_doubling)
    )
    assert doubled.flow_s > halved.flow_s
    slow = machine(4, nvlink=1e9)
    assert by_processes(ring(4), slow, SIZE) == by_processes(ring(4), machine(4), SIZE)


def test_many_ranks_are_held_up_by_the_memory_that_they_share():
    prices = [by_processes(ring(size), machine(size), SIZE) for size in (8, 64)]
    assert [price.busiest for price in prices] == ["node0/core", "node0/host0"]


def test_the_network_bounds_what_crosses_it_and_sums_follow():
    inside = by_processes(ring(8), machine(8), SIZE)
    across = by_processes(ring(8), machine(1, nodes=8), SIZE)
    assert across.latency_s > inside.latency_s
    assert "network" in across.busiest
    chunk = SIZE / 8
    assert across.flow_s == pytest.approx(14 * chunk / 20e9 + 7 * 3 * chunk / CORE)


def test_latency_does_not_grow_with_bytes_and_flow_does_in_proportion():
    small, large = (by_processes(halving_doubling(4), machine(), size) for size in (SIZE, 3 * SIZE))
    assert large.latency_s == small.latency_s
    assert large.flow_s == pytest.approx(3 * small.flow_s)


def test_buffers_are_in_the_memory_beside_each_gpu_and_hosts_beside_the_ranks_are_refused():
    assert process_places(machine(2), 2) == [(0, "host0"), (0, "host0")]
    with pytest.raises(TopologyError, match="5 ranks"):
        process_places(machine(4), 5)
    with pytest.raises(ScheduleError, match="host memories"):
        by_processes(host_serial(2), machine(2), SIZE)

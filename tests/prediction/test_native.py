import pytest

from scaling.prediction.native import nccl_all_reduce
from scaling.prediction.transports import without_latency
from tests.prediction.conftest import machine


def time(topology, world_size, num_bytes, peer_access=True):
    return nccl_all_reduce(
        topology, without_latency(topology), world_size, num_bytes, peer_access=peer_access
    )


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


def test_one_rank_takes_nothing():
    assert time(machine(), 1, 1e9).seconds == 0

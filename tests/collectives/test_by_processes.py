"""Schedules between processes that copy and add with a core each."""

import pytest

from scaling.collectives.halving_doubling import halving_doubling, recursive_doubling
from scaling.collectives.host_staging import host_serial
from scaling.collectives.mpi_price import MESSAGE_S, by_processes, process_places
from scaling.collectives.ring import ring
from scaling.errors import ScheduleError
from tests.prediction.conftest import machine
from topologies.errors import TopologyError

CORE = 3 * 5e9  # bytes a second that a core of `machine` reads and writes
SIZE = 1e8


def test_two_ranks_copy_in_and_out_and_add_half_each():
    price = by_processes(halving_doubling(2), machine(2), SIZE)
    # Half the buffer out and half in, twice, at two bytes moved each; half is added at three.
    assert price.flow_s == pytest.approx((2 * 2 * SIZE + 1.5 * SIZE) / CORE)
    assert price.latency_s == pytest.approx(2 * MESSAGE_S)
    assert price.busiest == "node0/core"


def test_swapping_whole_buffers_takes_longer_than_halving():
    assert (
        by_processes(recursive_doubling(4), machine(), SIZE).flow_s
        > by_processes(halving_doubling(4), machine(), SIZE).flow_s
    )


def test_access_between_gpus_and_their_links_change_nothing():
    slow = machine(4, nvlink=1e9)
    assert by_processes(ring(4), slow, SIZE) == by_processes(ring(4), machine(4), SIZE)


def test_many_ranks_are_held_up_by_the_memory_that_they_share():
    price = by_processes(ring(8), machine(8), SIZE)
    assert price.busiest == "node0/core"
    many = by_processes(ring(64), machine(64), SIZE)
    assert many.busiest == "node0/host0"


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


def test_buffers_are_in_the_memory_beside_each_gpu():
    assert process_places(machine(2), 2) == [(0, "host0"), (0, "host0")]
    with pytest.raises(TopologyError, match="5 ranks"):
        process_places(machine(4), 5)


def test_schedules_with_a_host_beside_the_ranks_are_refused():
    with pytest.raises(ScheduleError, match="host memories"):
        by_processes(host_serial(2), machine(2), SIZE)

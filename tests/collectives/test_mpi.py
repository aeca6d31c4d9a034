"""Which algorithm an MPI library runs, and what its processes take in host memory."""

import pytest

from scaling.collectives.halving_doubling import halving_doubling, recursive_doubling
from scaling.collectives.host_staging import host_serial
from scaling.collectives.mpi_library import MpiLibrary, mpi_all_reduce, segmented_ring
from scaling.collectives.mpi_price import MESSAGE_S, by_processes, process_places
from scaling.collectives.ring import ring
from scaling.collectives.schedule import Schedule
from scaling.collectives.verify import verify
from scaling.errors import ScheduleError
from tests.prediction.conftest import machine
from topologies.errors import TopologyError

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


@pytest.mark.parametrize(("world_size", "num_bytes", "expected"), [
    (2, 4, "ring"), (2, 4095, "recursive doubling"), (2, 4096, "ring"), (2, 8192, "recursive doubling"),
    (3, 16384, "ring"), (3, 262143, "ring"), (3, 262144, "reduce-scatter and all-gather"),
    (4, 8191, "recursive doubling"), (4, 8192, "reduce-scatter and all-gather"), (7, 15, "ring"),
    (8, 15, "recursive doubling"), (31, 4096, "reduce-scatter and all-gather"),
    (64, 262143, "recursive doubling"), (128, 131071, "reduce and broadcast"),
    (300, 4096, "reduce-scatter and all-gather"), (1024, 2047, "reduce and broadcast"),
    (5000, 8192, "ring"),
    (5000, 56 * MIB, "reduce-scatter and all-gather"),
])  # fmt: skip
def test_open_mpi_follows_its_table(world_size, num_bytes, expected):
    assert OPEN_MPI.algorithm(world_size, num_bytes) == expected


@pytest.mark.parametrize(
    ("num_bytes", "expected"),
    [(9_999, "recursive doubling"), (4 * MIB, "ring"), (4 * MIB + 4, "segmented ring")],
)
def test_open_mpi_before_4_1_has_one_threshold_and_segments(num_bytes, expected):
    assert OLD_OPEN_MPI.algorithm(4, num_bytes) == expected


@pytest.mark.parametrize(("version", "num_bytes", "expected"), [
    ((5, 0, 2), 8, "recursive doubling"),
    ((5, 0, 2), 12, "recursive doubling"),  # three elements for four ranks
    ((5, 0, 2), 16, "reduce-scatter and all-gather"),
    ((3, 3, 2), 2048, "recursive doubling"),
    ((3, 3, 2), 2052, "reduce-scatter and all-gather"),
])  # fmt: skip
def test_mpich_doubles_only_what_is_short(version, num_bytes, expected):
    assert MpiLibrary("MPICH", version).algorithm(4, num_bytes) == expected


@pytest.mark.sampled(4)
@pytest.mark.parametrize("num_bytes", [4, 1024, 5000, 10_000, 100_000, 3 * MIB, 64 * MIB])
@pytest.mark.parametrize("library", [OPEN_MPI, OLD_OPEN_MPI, MPICH], ids=str)
@pytest.mark.parametrize(("world_size", "num_nodes"), [(2, 1), (3, 1), (8, 1), (8, 2), (12, 3), (150, 1)])
def test_every_choice_is_an_all_reduce(library, world_size, num_nodes, num_bytes):
    words, schedule = mpi_all_reduce(library, world_size, num_bytes, num_nodes)
    assert schedule.world_size == world_size
    verify(schedule)
    assert words


def test_large_buffers_send_no_more_than_a_ring_does():
    _, schedule = mpi_all_reduce(OPEN_MPI, 8, 64 * MIB)
    assert max(verify(schedule).sent_ratio_per_rank) == pytest.approx(2 * 7 / 8)


def test_mpich_crosses_between_nodes_with_one_rank_each():
    words, schedule = mpi_all_reduce(MPICH, 8, 64 * MIB, num_nodes=2)
    crossing = {
        (t.source, t.target) for step in schedule.steps for t in step if t.source // 4 != t.target // 4
    }
    assert crossing == {(0, 4), (4, 0)}
    assert words == "reduce, reduce-scatter and all-gather between nodes, broadcast"


def test_segments_change_the_steps_and_not_the_bytes():
    once, often = verify(segmented_ring(4, 1)), verify(segmented_ring(4, 8))
    assert once.sent_ratio_per_rank == often.sent_ratio_per_rank
    assert often.num_steps == 3 * 9 > once.num_steps


def test_what_is_not_modelled_is_said_on_several_nodes_alone():
    assert "coll/han" in OPEN_MPI.not_modelled(2)
    assert OPEN_MPI.not_modelled(1) is None
    assert OLD_OPEN_MPI.not_modelled(2) is None


def test_one_rank_does_nothing_and_none_is_refused():
    assert mpi_all_reduce(OPEN_MPI, 1, MIB)[1] == Schedule("nothing", 1, 1, ())
    with pytest.raises(ScheduleError, match="1 and more"):
        mpi_all_reduce(OPEN_MPI, 0, MIB)


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

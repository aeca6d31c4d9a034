"""What Open MPI and MPICH choose, row by row of their sources, and that the schedules are all-reduces."""

import pytest

from scaling.collectives.mpi_library import MpiLibrary, mpi_all_reduce, segmented_ring
from scaling.collectives.schedule import Schedule
from scaling.collectives.verify import verify
from scaling.errors import ScheduleError

OPEN_MPI = MpiLibrary("Open MPI", (5, 0, 11))
OLD_OPEN_MPI = MpiLibrary("Open MPI", (4, 0, 7))
MPICH = MpiLibrary("MPICH", (5, 0, 2))
MIB = 1 << 20


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("Open MPI v5.0.11", OPEN_MPI),
        ("Open MPI v4.1.4rc1", MpiLibrary("Open MPI", (4, 1, 4))),
        ("MPICH Version: 5.0.2", MPICH),
        ("Intel(R) MPI Library 2021.11", None),
        ("", None),
    ],
)
def test_library_is_read_from_its_own_words(words, expected):
    assert MpiLibrary.of(words) == expected


@pytest.mark.parametrize(
    ("world_size", "num_bytes", "expected"),
    [
        (2, 4, "ring"),
        (2, 4095, "recursive doubling"),
        (2, 4096, "ring"),
        (2, 8192, "recursive doubling"),
        (3, 16384, "ring"),
        (3, 262143, "ring"),
        (3, 262144, "reduce-scatter and all-gather"),
        (4, 8191, "recursive doubling"),
        (4, 8192, "reduce-scatter and all-gather"),
        (7, 15, "ring"),
        (8, 15, "recursive doubling"),
        (31, 4096, "reduce-scatter and all-gather"),
        (64, 262143, "recursive doubling"),
        (128, 131071, "reduce and broadcast"),
        (300, 4096, "reduce-scatter and all-gather"),
        (1024, 2047, "reduce and broadcast"),
        (5000, 8192, "ring"),
        (5000, 56 * MIB, "reduce-scatter and all-gather"),
    ],
)
def test_open_mpi_follows_its_table(world_size, num_bytes, expected):
    assert OPEN_MPI.algorithm(world_size, num_bytes) == expected


@pytest.mark.parametrize(
    ("num_bytes", "expected"),
    [(9_999, "recursive doubling"), (4 * MIB, "ring"), (4 * MIB + 4, "segmented ring")],
)
def test_open_mpi_before_4_1_has_one_threshold_and_segments(num_bytes, expected):
    assert OLD_OPEN_MPI.algorithm(4, num_bytes) == expected


@pytest.mark.parametrize(
    ("version", "num_bytes", "expected"),
    [
        ((5, 0, 2), 8, "recursive doubling"),
        ((5, 0, 2), 12, "recursive doubling"),  # three elements for four ranks
        ((5, 0, 2), 16, "reduce-scatter and all-gather"),
        ((3, 3, 2), 2048, "recursive doubling"),
        ((3, 3, 2), 2052, "reduce-scatter and all-gather"),
    ],
)
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

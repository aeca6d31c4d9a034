"""Sums inside machines, across them, and back."""

from fractions import Fraction

import pytest

from scaling.collectives.hierarchical import hierarchical
from scaling.collectives.ring import ring
from scaling.collectives.verify import verify
from scaling.errors import ScheduleError

SHAPES = [(1, 1), (1, 4), (4, 1), (2, 2), (2, 3), (3, 4), (5, 3), (2, 8)]


def sent_across(schedule, g):
    """Chunks that leave their machine, by rank."""
    chunks = [0] * schedule.world_size
    for step in schedule.steps:
        for t in step:
            if t.source // g != t.target // g:
                chunks[t.source] += t.stop - t.start
    return [Fraction(c, schedule.num_chunks) for c in chunks]


@pytest.mark.parametrize(("num_hosts", "g"), SHAPES)
def test_rings_counts_are_those_of_the_docstring(num_hosts, g):
    n = num_hosts * g
    schedule = hierarchical(n, g)
    verification = verify(schedule)
    assert verification.num_steps == 2 * (g - 1) + 2 * (num_hosts - 1)
    assert verification.messages_per_rank == [2 * (g - 1) + 2 * (num_hosts - 1)] * n
    assert verification.sent_ratio_per_rank == [Fraction(2 * (n - 1), n)] * n
    assert sent_across(schedule, g) == [Fraction(2 * (num_hosts - 1), n)] * n


@pytest.mark.parametrize(("num_hosts", "g"), SHAPES)
def test_leaders_counts_are_those_of_the_docstring(num_hosts, g):
    n, levels = num_hosts * g, (g - 1).bit_length()
    schedule = hierarchical(n, g, "leader")
    verification = verify(schedule)
    assert verification.num_steps == 2 * levels + 2 * (num_hosts - 1)
    across = Fraction(2 * (num_hosts - 1), num_hosts)
    assert verification.sent_ratio_per_rank[::g] == [across + levels] * num_hosts
    assert sum(verification.sent_ratio_per_rank) == num_hosts * (across + 2 * (g - 1))
    assert sent_across(schedule, g) == [across if r % g == 0 else 0 for r in range(n)]


def test_one_rank_a_machine_is_the_flat_ring():
    assert hierarchical(5, 1).steps == ring(5).steps


@pytest.mark.parametrize("g", [0, 4])
def test_machines_must_be_full(g):
    with pytest.raises(ScheduleError, match=f"6 ranks do not fill machines of {g}"):
        hierarchical(6, g)


def test_another_way_inside_is_refused():
    with pytest.raises(ScheduleError, match="intra 'star'; allowed are ring and leader"):
        hierarchical(4, 2, "star")

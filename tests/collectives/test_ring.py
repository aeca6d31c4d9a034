"""The ring and its sub-rings."""

from collections import Counter
from fractions import Fraction

import pytest

from scaling.aggregators.registry import create
from scaling.bucket import BucketLayout
from scaling.collectives.ring import ring
from scaling.collectives.schedule import Transfer
from scaling.collectives.verify import verify
from scaling.errors import ScheduleError


@pytest.mark.parametrize("name", ["ring", "xring"])
def test_counts_are_those_of_the_docstring(name, verified):
    for n in range(1, 65):
        verification = verified(name, n)
        assert verification.num_steps == 2 * (n - 1)
        assert verification.messages_per_rank == [2 * (n - 1)] * n
        assert verification.sent_ratio_per_rank == [Fraction(2 * (n - 1), n)] * n


def test_every_rank_sends_to_its_successor_only():
    for step in ring(5, subrings=2).steps:
        assert all(transfer.target == (transfer.source + 1) % 5 for transfer in step)


def test_rank_r_adds_chunk_r_minus_t_in_step_t():
    for t in range(3):
        expected = [Transfer(r, (r + 1) % 4, (r - t) % 4, (r - t) % 4 + 1, "add") for r in range(4)]
        assert list(ring(4).steps[t]) == expected


def test_rank_r_copies_chunk_r_plus_one_minus_t_in_step_t_of_the_all_gather():
    for t in range(3):
        expected = [Transfer(r, (r + 1) % 4, (r + 1 - t) % 4, (r + 1 - t) % 4 + 1, "copy") for r in range(4)]
        assert list(ring(4).steps[3 + t]) == expected


@pytest.mark.parametrize("n", [1, 2, 3, 5, 8, 12])
def test_every_number_of_subrings_up_to_the_ranks_delivers_the_sum(n):
    for k in range(1, n + 1):
        verification = verify(ring(n, subrings=k))
        assert verification.sent_ratio_per_rank == [Fraction(2 * (n - 1), n)] * n
        assert verification.messages_per_rank == [2 * (n - 1)] * n


def test_subrings_start_n_over_k_ranks_apart():
    # TensorFlow rotates the order of the GPUs by int(n / k) from one sub-ring to the next.
    first_chunks = [t.start for t in ring(8, subrings=2).steps[0] if t.start % 2 == 1]
    assert first_chunks == [(r - 4) % 8 * 2 + 1 for r in range(8)]


@pytest.mark.parametrize("n", [3, 4, 7])
def test_two_directions_give_each_link_half_of_the_bytes_each_way(n):
    schedule = ring(n, directions=2)
    sent = Counter()
    for step in schedule.steps:
        assert {(t.target - t.source) % n for t in step} == {1, n - 1}, "both ways in every step"
        for transfer in step:
            sent[transfer.source, transfer.target] += transfer.stop - transfer.start
    one_way = 2 * (n - 1) * Fraction(schedule.num_chunks, n) / 2
    neighbours = [(rank, (rank + way) % n) for rank in range(n) for way in (1, -1)]
    assert sent == dict.fromkeys(neighbours, one_way)


def test_two_directions_deliver_the_sum_and_are_the_ring_on_one_or_two_ranks():
    for n in (1, 2, 3, 5, 8):
        verification = verify(ring(n, directions=2))
        assert verification.sent_ratio_per_rank == [Fraction(2 * (n - 1), n)] * n


@pytest.mark.parametrize("directions", [0, 3])
def test_number_of_directions_is_checked(directions):
    with pytest.raises(ScheduleError, match=f"{directions} directions; allowed are 1 and 2"):
        ring(4, directions=directions)


@pytest.mark.parametrize("directions", [1, 2])
def test_aggregator_goes_round_in_as_many_directions_as_it_is_told(directions):
    layout = BucketLayout(("weight",), ((8,),), (0,))
    schedule = create("ring", {"directions": directions}).schedule(4, layout)
    assert len({(t.target - t.source) % 4 for step in schedule.steps for t in step}) == directions


@pytest.mark.parametrize("k", [0, 5])
def test_number_of_subrings_is_checked(k):
    with pytest.raises(ScheduleError, match=f"{k} sub-rings of 4 ranks; allowed are 1 to 4"):
        ring(4, subrings=k)

"""The collectives of the catalogue: what their docstrings count, and who sends what when."""

from collections import Counter
from dataclasses import replace
from fractions import Fraction

import pytest

from scaling.aggregators.registry import create
from scaling.bucket import BucketLayout
from scaling.collectives.halving_doubling import (
    folding,
    halving_doubling,
    power_of_two_below,
    recursive_doubling,
)
from scaling.collectives.hierarchical import GCP_V100_PAIRS, hierarchical, tf_hierarchical_copy
from scaling.collectives.host_staging import host_parallel, host_serial
from scaling.collectives.listing import COLLECTIVES, FCN_R_TENSORS, schedule
from scaling.collectives.owners import assign_owners, sharded_owners, star, stripes
from scaling.collectives.ring import ring
from scaling.collectives.schedule import Transfer
from scaling.collectives.simulate import simulate
from scaling.collectives.verify import verify
from scaling.errors import ScheduleError
from topologies.schema import load


@pytest.mark.parametrize("name", COLLECTIVES)
def test_one_rank_alone_sends_to_no_other_rank(name):
    steps = schedule(name, 1).steps
    assert all({transfer.source, transfer.target} == {0, 1} for step in steps for transfer in step)


@pytest.mark.parametrize("name", COLLECTIVES)
def test_description_is_one_short_line(name):
    description = COLLECTIVES[name].description
    assert description
    assert len(description) < 80
    assert "\n" not in description


def test_unknown_name_lists_the_known_ones():
    with pytest.raises(ScheduleError, match=r"unknown collective 'rign'; known: ring, ring_both_ways, xring"):
        schedule("rign", 4)


def test_world_size_below_one_is_refused():
    with pytest.raises(ScheduleError, match="ring: 0 ranks"):
        schedule("ring", 0)


def test_one_rank_at_a_time_in_rank_order():
    assert star(3).steps == (
        (Transfer(1, 0, 0, 1, "add"),),
        (Transfer(2, 0, 0, 1, "add"),),
        (Transfer(0, 1, 0, 1, "copy"),),
        (Transfer(0, 2, 0, 1, "copy"),),
    )


def test_every_pair_of_ranks_exchanges_in_both_steps():
    for step in stripes(5).steps:
        assert {(t.source, t.target) for t in step} == {(a, b) for a in range(5) for b in range(5) if a != b}


def test_owner_adds_the_others_in_rank_order():
    assert [t.source for t in stripes(4).steps[0] if t.target == 2] == [0, 1, 3]


NUM_ELEMENTS = 14_205_962


def loads(tensor_elements, n):
    owners = assign_owners(tensor_elements, n)
    return [sum(e for e, o in zip(tensor_elements, owners, strict=True) if o == rank) for rank in range(n)]


def test_fcn_r_has_the_papers_number_of_parameters():
    assert sum(FCN_R_TENSORS) == NUM_ELEMENTS


@pytest.mark.parametrize("n", [2, 4, 8])
def test_owner_of_fcn_rs_largest_matrix_has_59_percent_of_all_elements(n):
    largest = max(loads(FCN_R_TENSORS, n))
    assert largest == 2048 * 4096
    assert round(100 * largest / NUM_ELEMENTS, 2) == 59.05


def test_largest_tensors_are_placed_first():
    assert assign_owners([1, 5, 3, 4], 2) == [0, 0, 1, 1]


def test_ties_go_to_the_first_tensor_and_the_lowest_rank():
    assert assign_owners([2, 2, 2, 2, 2], 3) == [0, 1, 2, 0, 1]


def test_chunks_are_the_tensors_in_the_order_of_the_buffer():
    schedule = sharded_owners(2, [3, 9, 1])
    assert schedule.num_chunks == 3
    assert schedule.chunk_elements == (3, 9, 1)
    assert schedule.bounds(13) == [0, 3, 12, 13]
    assert verify(schedule).sent_ratio_per_rank == [1, 1]


def test_owner_adds_the_others_in_rank_order_of_sharded_owners():
    gather = sharded_owners(4, [5]).steps[0]
    assert [(t.source, t.target) for t in gather] == [(1, 0), (2, 0), (3, 0)]


def test_a_step_is_symmetric_swaps_of_adds():
    for step in recursive_doubling(8).steps:
        assert {(t.source, t.target) for t in step} == {(t.target, t.source) for t in step}
        assert all(t.operation == "add" for t in step)


def test_partners_are_one_then_two_then_four_apart():
    assert [abs(step[0].source - step[0].target) for step in recursive_doubling(8).steps] == [1, 2, 4]


def test_extra_ranks_fold_into_the_first_ones():
    assert folding(6, num_chunks=4) == [(Transfer(4, 0, 0, 4, "add"), Transfer(5, 1, 0, 4, "add"))]
    assert folding(8, num_chunks=4) == []


def test_power_of_two_below():
    assert [power_of_two_below(n) for n in (1, 2, 3, 4, 7, 8, 9)] == [1, 2, 2, 4, 4, 8, 8]


def test_treatments_are_the_same_for_powers_of_two():
    for n in (1, 2, 4, 8, 16):
        assert halving_doubling(n, "binary_blocks") == halving_doubling(n, "fold")


def test_first_step_swaps_halves_with_the_neighbour():
    first = halving_doubling(8).steps[0]
    assert all(t.source ^ t.target == 1 and t.stop - t.start == 4 for t in first)


def test_another_treatment_is_refused():
    with pytest.raises(ScheduleError, match="treatment 'pad'; allowed are fold and binary_blocks"):
        halving_doubling(3, "pad")


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


def test_tensor_i_uses_the_mains_i_and_i_plus_half():
    cross = tf_hierarchical_copy(8).steps[1]
    assert [(t.start, t.target, t.source) for t in cross] == [(i, i, (i + 4) % 8) for i in range(8)]


def test_mains_gather_their_own_half():
    first = [t for t in tf_hierarchical_copy(4).steps[0] if t.start == 2]
    assert first == [Transfer(1, 0, 2, 3, "add"), Transfer(3, 2, 2, 3, "add")]


def test_gcp_pairs():
    schedule = tf_hierarchical_copy(8, GCP_V100_PAIRS)
    assert schedule.num_chunks == 4
    verification = verify(schedule)
    assert sum(verification.sent_ratio_per_rank) == 14
    crossing = {
        (t.source, t.target) for step in schedule.steps for t in step if t.source // 4 != t.target // 4
    }
    assert crossing == {(0, 5), (5, 0), (2, 7), (7, 2)}


@pytest.mark.parametrize("pair", [(0, 3), (4, 7), (0, 8), (-1, 4)])
def test_mains_must_be_in_different_halves(pair):
    with pytest.raises(ScheduleError, match="one must be a rank below 4, the other one of 4 to 7"):
        tf_hierarchical_copy(8, [pair])


def test_no_pairs_are_refused():
    with pytest.raises(ScheduleError, match="no pair of mains"):
        tf_hierarchical_copy(8, [])


BOTH = pytest.mark.parametrize("collective", [host_serial, host_parallel])


def test_serial_adds_the_whole_buffer_rank_by_rank():
    gather = host_serial(4).steps[0]
    assert [(t.source, t.target, t.start, t.stop) for t in gather] == [(r, 4, 0, 1) for r in range(4)]


def test_parallel_adds_every_piece_in_rank_order():
    schedule = host_parallel(4)
    assert schedule.num_chunks == 4
    for piece in range(4):
        assert [t.source for t in schedule.steps[0] if t.start == piece] == [0, 1, 2, 3]


def test_hosts_hold_only_their_own_ranks_sums_before_the_exchange():
    gather = host_serial(5, ranks_per_host=2).steps[0]
    assert [t.target for t in gather] == [5, 5, 6, 6, 7]


@BOTH
def test_no_ranks_per_host_are_refused(collective):
    with pytest.raises(ScheduleError, match="0 ranks per host"):
        collective(4, 0)


@BOTH
@pytest.mark.parametrize("num_chunks", [1, 2, 5])
def test_steps_of_one_kind_take_as_long_as_when_each_is_priced(collective, num_chunks):
    schedule, machine = collective(4, num_chunks=num_chunks), load("hgx-h200-4")
    alike = simulate(schedule, machine, 1e6)
    each = simulate(replace(schedule, steps=tuple(schedule.steps)), machine, 1e6)
    assert alike.step_seconds == each.step_seconds
    assert len(alike.step_seconds) == num_chunks + 1

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
from scaling.collectives.simulate import simulate
from scaling.collectives.verify import verify
from scaling.errors import ScheduleError
from tests.collectives.conftest import add, copy
from topologies.schema import load


def pairs_of(steps):
    return [[(t.source, t.target) for t in step] for step in steps]


@pytest.mark.parametrize("name", COLLECTIVES)
def test_one_rank_alone_sends_to_no_other_rank_and_a_description_is_one_short_line(name):
    assert all({*pair} == {0, 1} for step in pairs_of(schedule(name, 1).steps) for pair in step)
    description = COLLECTIVES[name].description
    assert 0 < len(description) < 80
    assert "\n" not in description


MAINS = "one must be a rank below 4, the other one of 4 to 7"


@pytest.mark.parametrize(
    ("make", "arguments", "message"),
    [
        (schedule, ("rign", 4), "unknown collective 'rign'; known: ring, ring_both_ways, xring"),
        (schedule, ("ring", 0), "ring: 0 ranks"),
        (halving_doubling, (3, "pad"), "treatment 'pad'; allowed are fold and binary_blocks"),
        *((ring, (4, 1, count), f"{count} directions; allowed are 1 and 2") for count in (0, 3)),
        *((ring, (4, count), f"{count} sub-rings of 4 ranks; allowed are 1 to 4") for count in (0, 5)),
        *((hierarchical, (6, g), f"6 ranks do not fill machines of {g}") for g in (0, 4)),
        (hierarchical, (4, 2, "star"), "intra 'star'; allowed are ring and leader"),
        *((tf_hierarchical_copy, (8, [pair]), MAINS) for pair in ((0, 3), (4, 7), (0, 8), (-1, 4))),
        (tf_hierarchical_copy, (8, []), "no pair of mains"),
        *((collective, (4, 0), "0 ranks per host") for collective in (host_serial, host_parallel)),
    ],
)  # fmt: skip
def test_what_cannot_be_is_refused_with_what_is_allowed(make, arguments, message):
    with pytest.raises(ScheduleError, match=message):
        make(*arguments)


class TestOwners:
    def test_star_takes_one_rank_at_a_time_in_rank_order(self):
        assert star(3).steps == ((add(1, 0),), (add(2, 0),), (copy(0, 1),), (copy(0, 2),))

    def test_every_pair_of_ranks_exchanges_in_both_steps_of_stripes(self):
        for pairs in pairs_of(stripes(5).steps):
            assert set(pairs) == {(a, b) for a in range(5) for b in range(5) if a != b}

    def test_owner_adds_the_others_in_rank_order(self):
        assert [t.source for t in stripes(4).steps[0] if t.target == 2] == [0, 1, 3]
        assert pairs_of(sharded_owners(4, [5]).steps)[0] == [(1, 0), (2, 0), (3, 0)]

    @pytest.mark.parametrize("n", [2, 4, 8])
    def test_owner_of_fcn_rs_largest_matrix_has_59_percent_of_all_elements(self, n):
        owned = Counter()
        for owner, size in zip(assign_owners(FCN_R_TENSORS, n), FCN_R_TENSORS, strict=True):
            owned[owner] += size
        assert (max(owned.values()), sum(FCN_R_TENSORS)) == (2048 * 4096, 14_205_962)
        assert round(100 * 2048 * 4096 / sum(FCN_R_TENSORS), 2) == 59.05

    def test_largest_tensors_come_first_and_ties_go_to_the_first_tensor_and_the_lowest_rank(self):
        assert assign_owners([1, 5, 3, 4], 2) == [0, 0, 1, 1]
        assert assign_owners([2, 2, 2, 2, 2], 3) == [0, 1, 2, 0, 1]

    def test_chunks_are_the_tensors_in_the_order_of_the_buffer(self):
        schedule = sharded_owners(2, [3, 9, 1])
        assert (schedule.num_chunks, schedule.chunk_elements) == (3, (3, 9, 1))
        assert schedule.bounds(13) == [0, 3, 12, 13]
        assert verify(schedule).sent_ratio_per_rank == [1, 1]


class TestHalvingAndDoubling:
    def test_a_step_is_swaps_of_adds_between_partners_one_two_and_four_apart(self):
        steps = recursive_doubling(8).steps
        for step, apart in zip(steps, (1, 2, 4), strict=True):
            assert {*step} == {add(rank, rank ^ apart) for rank in range(8)}

    def test_extra_ranks_fold_into_the_first_ones(self):
        assert folding(6, num_chunks=4) == [(add(4, 0, 0, 4), add(5, 1, 0, 4))]
        assert folding(8, num_chunks=4) == []
        assert [power_of_two_below(n) for n in (1, 2, 3, 4, 7, 8, 9)] == [1, 2, 2, 4, 4, 8, 8]

    def test_first_step_swaps_halves_with_the_neighbour_by_either_treatment_of_powers_of_two(self):
        first = halving_doubling(8).steps[0]
        assert all(t.source ^ t.target == 1 and t.stop - t.start == 4 for t in first)
        for n in (1, 2, 4, 8, 16):
            assert halving_doubling(n, "binary_blocks") == halving_doubling(n, "fold")


class TestRing:
    def test_in_step_t_rank_r_adds_chunk_r_minus_t_and_then_copies_the_chunk_behind_it(self):
        chunks = [(first - t) % 4 for first in (0, 1) for t in range(3)]
        assert [list(step) for step in ring(4).steps] == [
            [(add, copy)[i > 2](r, (r + 1) % 4, (r + c) % 4, (r + c) % 4 + 1) for r in range(4)]
            for i, c in enumerate(chunks)
        ]

    @pytest.mark.parametrize("n", [1, 2, 3, 5, 8, 12])
    def test_every_number_of_subrings_up_to_the_ranks_and_two_directions_deliver_the_sum(self, n):
        for k in range(1, n + 1):
            verification = verify(ring(n, subrings=k))
            assert verification.sent_ratio_per_rank == [Fraction(2 * (n - 1), n)] * n
            assert verification.messages_per_rank == [2 * (n - 1)] * n
        assert verify(ring(n, directions=2)).sent_ratio_per_rank == [Fraction(2 * (n - 1), n)] * n

    def test_subrings_go_to_the_successor_and_start_n_over_k_ranks_apart(self):
        # TensorFlow rotates the order of the GPUs by int(n / k) from one sub-ring to the next.
        schedule = ring(8, subrings=2)
        assert [t.start for t in schedule.steps[0] if t.start % 2] == [(r - 4) % 8 * 2 + 1 for r in range(8)]
        assert all((t.target - t.source) % 8 == 1 for step in schedule.steps for t in step)

    @pytest.mark.parametrize("n", [3, 4, 7])
    def test_two_directions_give_each_link_half_of_the_bytes_each_way(self, n):
        schedule = ring(n, directions=2)
        sent = Counter()
        for step in schedule.steps:
            assert {(t.target - t.source) % n for t in step} == {1, n - 1}, "both ways in every step"
            for transfer in step:
                sent[transfer.source, transfer.target] += transfer.stop - transfer.start
        one_way = 2 * (n - 1) * Fraction(schedule.num_chunks, n) / 2
        neighbours = [(rank, (rank + way) % n) for rank in range(n) for way in (1, -1)]
        assert sent == dict.fromkeys(neighbours, one_way)

    @pytest.mark.parametrize("directions", [1, 2])
    def test_aggregator_goes_round_in_as_many_directions_as_it_is_told(self, directions):
        layout = BucketLayout(("weight",), ((8,),), (0,))
        schedule = create("ring", {"directions": directions}).schedule(4, layout)
        assert len({(t.target - t.source) % 4 for step in schedule.steps for t in step}) == directions


SHAPES = [(1, 1), (1, 4), (4, 1), (2, 2), (2, 3), (3, 4), (5, 3), (2, 8)]


def sent_across(schedule, g):
    """Chunks that leave their machine, by rank."""
    chunks = Counter()
    for t in (t for step in schedule.steps for t in step if t.source // g != t.target // g):
        chunks[t.source] += t.stop - t.start
    return [Fraction(chunks[rank], schedule.num_chunks) for rank in range(schedule.world_size)]


class TestHierarchical:
    @pytest.mark.parametrize(("num_hosts", "g"), SHAPES)
    def test_rings_counts_are_those_of_the_docstring(self, num_hosts, g):
        n, num_steps = num_hosts * g, 2 * (g - 1) + 2 * (num_hosts - 1)
        verification = verify(schedule := hierarchical(n, g))
        assert (verification.num_steps, verification.messages_per_rank) == (num_steps, [num_steps] * n)
        assert verification.sent_ratio_per_rank == [Fraction(2 * (n - 1), n)] * n
        assert sent_across(schedule, g) == [Fraction(2 * (num_hosts - 1), n)] * n
        assert hierarchical(n, 1).steps == ring(n).steps

    @pytest.mark.parametrize(("num_hosts", "g"), SHAPES)
    def test_leaders_counts_are_those_of_the_docstring(self, num_hosts, g):
        n, levels = num_hosts * g, (g - 1).bit_length()
        verification = verify(schedule := hierarchical(n, g, "leader"))
        across = Fraction(2 * (num_hosts - 1), num_hosts)
        assert verification.num_steps == 2 * levels + 2 * (num_hosts - 1)
        assert verification.sent_ratio_per_rank[::g] == [across + levels] * num_hosts
        assert sum(verification.sent_ratio_per_rank) == num_hosts * (across + 2 * (g - 1))
        assert sent_across(schedule, g) == [across if r % g == 0 else 0 for r in range(n)]

    def test_mains_gather_their_own_half_and_tensor_i_uses_the_mains_i_and_i_plus_half(self):
        assert [t for t in tf_hierarchical_copy(4).steps[0] if t.start == 2] == [
            add(1, 0, 2, 3), add(3, 2, 2, 3),
        ]  # fmt: skip
        cross = tf_hierarchical_copy(8).steps[1]
        assert [(t.start, t.target, t.source) for t in cross] == [(i, i, (i + 4) % 8) for i in range(8)]

    def test_gcp_pairs(self):
        schedule = tf_hierarchical_copy(8, GCP_V100_PAIRS)
        assert (schedule.num_chunks, sum(verify(schedule).sent_ratio_per_rank)) == (4, 14)
        crossing = {(a, b) for step in pairs_of(schedule.steps) for a, b in step if a // 4 != b // 4}
        assert crossing == {(0, 5), (5, 0), (2, 7), (7, 2)}


class TestHosts:
    def test_serial_adds_the_whole_buffer_and_parallel_every_piece_in_rank_order(self):
        assert list(host_serial(4).steps[0]) == [add(rank, 4) for rank in range(4)]
        schedule = host_parallel(4)
        assert schedule.num_chunks == 4
        for piece in range(4):
            assert [t.source for t in schedule.steps[0] if t.start == piece] == [0, 1, 2, 3]

    def test_hosts_hold_only_their_own_ranks_sums_before_the_exchange(self):
        assert [t.target for t in host_serial(5, ranks_per_host=2).steps[0]] == [5, 5, 6, 6, 7]

    @pytest.mark.parametrize("collective", [host_serial, host_parallel])
    @pytest.mark.parametrize("num_chunks", [1, 2, 5])
    def test_steps_of_one_kind_take_as_long_as_when_each_is_priced(self, collective, num_chunks):
        schedule, machine = collective(4, num_chunks=num_chunks), load("hgx-h200-4")
        alike = simulate(schedule, machine, 1e6)
        each = simulate(replace(schedule, steps=tuple(schedule.steps)), machine, 1e6)
        assert alike.step_seconds == each.step_seconds
        assert len(alike.step_seconds) == num_chunks + 1

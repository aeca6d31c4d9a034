"""Steps built out of steps."""

from itertools import pairwise

import pytest
import torch

from scaling.collectives.composition import (
    BufferPart,
    mirrored,
    of_parts,
    pipelined,
    placed,
    side_by_side,
    split_at_reduction,
)
from scaling.collectives.halving_doubling import halving_doubling
from scaling.collectives.listing import schedule
from scaling.collectives.owners import assign_owners, sharded_owners, shuffle, star, stripes
from scaling.collectives.ring import ring
from scaling.collectives.schedule import Schedule, Transfer
from scaling.collectives.tree import tree
from scaling.collectives.verify import verify
from scaling.errors import ScheduleError
from tests.collectives.run_on_tensors import run_on_tensors

UP = [(Transfer(1, 0, 0, 1, "add"), Transfer(3, 2, 0, 1, "add")), (Transfer(2, 0, 0, 1, "add"),)]


def test_mirror_goes_back_in_reverse_as_copies():
    assert mirrored(UP) == [
        (Transfer(0, 2, 0, 1, "copy"),),
        (Transfer(0, 1, 0, 1, "copy"), Transfer(2, 3, 0, 1, "copy")),
    ]


def test_pipeline_runs_level_d_of_chunk_c_in_step_d_plus_c():
    steps = pipelined(UP, 3)
    assert len(steps) == 4
    assert [sorted((t.source, t.start) for t in step) for step in steps] == [
        [(1, 0), (3, 0)],
        [(1, 1), (2, 0), (3, 1)],
        [(1, 2), (2, 1), (3, 2)],
        [(2, 2)],
    ]


def test_pipeline_of_nothing_is_nothing():
    assert pipelined([], 5) == []


def test_side_by_side_lasts_as_long_as_the_longest():
    assert side_by_side([UP, UP[:1]]) == [UP[0] + UP[0], UP[1]]


def test_placed_renames_nodes_and_widens_chunks():
    assert placed(UP[1:], [7, 8, 9], first_chunk=4, width=2) == [(Transfer(9, 7, 4, 6, "add"),)]


WORLD_SIZES = range(1, 9)
SIZES = (13, 0, 1, 7, 64)


def mixed(world_size, sizes=SIZES):
    kinds = [ring, tree, star, lambda n: shuffle(n, [n - 1]), halving_doubling]
    return of_parts(
        "mixed", world_size, [BufferPart(s, kind(world_size)) for s, kind in zip(sizes, kinds, strict=True)]
    )


@pytest.mark.parametrize("world_size", WORLD_SIZES)
class TestParts:
    def test_every_part_gets_its_sum(self, world_size):
        verification = verify(mixed(world_size))
        assert verification.num_steps == 2 * (world_size - 1)

    def test_result_is_that_of_each_collective_alone(self, world_size):
        generator = torch.Generator().manual_seed(world_size)
        buffers = [torch.randn(sum(SIZES), generator=generator) for _ in range(world_size)]
        results = run_on_tensors(mixed(world_size), buffers)
        ends = torch.tensor(SIZES).cumsum(0).tolist()
        alone = run_on_tensors(ring(world_size), [buffer[: SIZES[0]] for buffer in buffers])
        last = [buffer[ends[-2] :] for buffer in buffers]
        for rank, result in enumerate(results):
            assert torch.equal(result[: SIZES[0]], alone[rank])
            assert torch.equal(result[ends[-2] :], run_on_tensors(halving_doubling(world_size), last)[rank])

    def test_bytes_are_those_of_the_parts(self, world_size):
        sent = verify(mixed(world_size)).sent_ratio_per_rank
        expected = [0] * world_size
        for step in mixed(world_size).steps:
            for source, _, start, stop, _ in step:
                expected[source] += sum(mixed(world_size).chunk_elements[start:stop])
        assert [ratio * sum(SIZES) for ratio in sent] == expected

    def test_empty_parts_alone_do_no_harm(self, world_size):
        schedule = mixed(world_size, (0,) * 5)
        verify(schedule)
        assert all(not r.numel() for r in run_on_tensors(schedule, [torch.empty(0)] * world_size))

    def test_part_without_a_collective_is_left_as_it_is(self, world_size):
        schedule = of_parts("partly", world_size, [BufferPart(3, None), BufferPart(5, ring(world_size))])
        buffers = [torch.full((8,), float(rank + 1)) for rank in range(world_size)]
        for rank, result in enumerate(run_on_tensors(schedule, buffers)):
            assert result[:3].tolist() == [rank + 1] * 3
            assert result[3:].tolist() == [world_size * (world_size + 1) / 2] * 5

    def test_sums_with_one_owner_each_can_be_stepped_there(self, world_size):
        parts = [BufferPart(5, shuffle(world_size, [i % world_size])) for i in range(4)]
        _, _, owners = split_at_reduction(of_parts("owners", world_size, parts))
        assert owners == tuple(i % world_size for i in range(4))


@pytest.mark.parametrize("world_size", WORLD_SIZES)
class TestShuffle:
    def test_every_choice_of_owners_delivers_the_sum(self, world_size):
        for owners in ([0], [world_size - 1], [0] * 3, list(range(world_size))):
            verify(shuffle(world_size, owners))

    def test_all_ranks_as_owners_are_stripes(self, world_size):
        ours, stripe = shuffle(world_size, range(world_size)), stripes(world_size)
        assert [set(step) for step in ours.steps] == [set(step) for step in stripe.steps]

    def test_one_owner_sends_to_all_and_the_others_to_it(self, world_size):
        sent = verify(shuffle(world_size, [0])).sent_ratio_per_rank
        assert sent == ([world_size - 1] + [1] * (world_size - 1) if world_size > 1 else [0])


WORLD_SIZES_SPLIT_AT_REDUCTION = [1, 2, 3, 4, 5, 7, 8, 12]
AT_ROOT = ["tree", "star", "caffe_tree"]
AT_OWNERS = ["ring", "xring", "stripes", "halving_doubling", "mxnet_tree", "hierarchical"]


def integers(world_size, num_elements):
    return list(torch.arange(world_size * num_elements).view(world_size, num_elements) ** 2)


@pytest.mark.parametrize("world_size", WORLD_SIZES_SPLIT_AT_REDUCTION)
@pytest.mark.parametrize("name", [*AT_ROOT, *AT_OWNERS])
class TestCut:
    def test_first_half_leaves_each_chunks_sum_at_its_owner(self, name, world_size):
        plan = schedule(name, world_size)
        reduction, _, owners = split_at_reduction(plan)
        inputs = integers(world_size, 3 * plan.num_chunks)
        bounds, total = plan.bounds(3 * plan.num_chunks), torch.stack(inputs).sum(dim=0)
        results = run_on_tensors(reduction, inputs)
        for chunk, owner in enumerate(owners):
            span = slice(bounds[chunk], bounds[chunk + 1])
            assert torch.equal(results[owner][span], total[span]), (chunk, owner)

    def test_second_half_brings_what_owners_hold_to_all_ranks(self, name, world_size):
        plan = schedule(name, world_size)
        _, distribution, owners = split_at_reduction(plan)
        inputs = integers(world_size, 3 * plan.num_chunks)
        bounds = plan.bounds(3 * plan.num_chunks)
        spans = [slice(a, b) for a, b in pairwise(bounds)]
        expected = torch.cat([inputs[owner][span] for owner, span in zip(owners, spans, strict=True)])
        assert all(torch.equal(result, expected) for result in run_on_tensors(distribution, inputs))

    def test_halves_together_are_the_schedule(self, name, world_size):
        plan = schedule(name, world_size)
        reduction, distribution, owners = split_at_reduction(plan)
        assert [*reduction.steps, *distribution.steps] == list(plan.steps)
        assert not [t for step in distribution.steps for t in step if t.operation == "add"]
        assert len(owners) == plan.num_chunks
        for half in (reduction, distribution):
            assert (half.world_size, half.num_chunks) == (world_size, plan.num_chunks)


@pytest.mark.parametrize("world_size", WORLD_SIZES_SPLIT_AT_REDUCTION)
@pytest.mark.parametrize("name", AT_ROOT)
def test_trees_and_stars_end_at_rank_0(name, world_size):
    assert set(split_at_reduction(schedule(name, world_size)).owners) == {0}


def test_owners_are_those_of_the_tensors():
    sizes = (5, 1, 7, 0, 3)
    for world_size in WORLD_SIZES_SPLIT_AT_REDUCTION:
        plan = sharded_owners(world_size, sizes)
        assert split_at_reduction(plan).owners == tuple(assign_owners(sizes, world_size))
        assert split_at_reduction(plan).distribution.chunk_elements == sizes


def test_every_rank_of_a_ring_owns_a_chunk():
    assert sorted(split_at_reduction(ring(5)).owners) == [0, 1, 2, 3, 4]


def test_host_memory_can_be_the_owner():
    assert split_at_reduction(schedule("host_serial", 3)).owners == (3,)


def test_copies_between_adds_stay_in_the_first_half():
    steps = (
        (Transfer(0, 1, 0, 1, "add"),),
        (Transfer(1, 0, 0, 1, "copy"),),
        (Transfer(2, 1, 0, 1, "add"),),
        (Transfer(1, 0, 0, 1, "copy"), Transfer(1, 2, 0, 1, "copy")),
    )
    reduction, distribution, owners = split_at_reduction(Schedule("made up", 3, 1, steps))
    assert (len(reduction.steps), len(distribution.steps), owners) == (3, 1, (1,))


@pytest.mark.parametrize("world_size", [2, 4, 8])
def test_sums_complete_in_several_places_are_refused_with_the_places(world_size):
    message = "recursive_doubling: after the last add the sum of chunk 0 is complete at rank 0, rank 1"
    with pytest.raises(ScheduleError, match=rf"{message}.*; .* it must be in one place"):
        split_at_reduction(schedule("recursive_doubling", world_size))


def test_sum_that_is_complete_nowhere_is_refused():
    cut_short = Schedule("made up", 3, 1, tuple(list(star(3).steps)[:1]))
    with pytest.raises(ScheduleError, match=r"made up: .* sum of chunk 0 is complete nowhere; "):
        split_at_reduction(cut_short)

"""A schedule cut where the sums are complete: what owners hold, and what reaches all afterwards."""

from itertools import pairwise

import pytest
import torch

from scaling.collectives.composition import split_at_reduction
from scaling.collectives.listing import schedule
from scaling.collectives.owners import assign_owners, sharded_owners, star
from scaling.collectives.ring import ring
from scaling.collectives.schedule import Schedule, Transfer
from scaling.errors import ScheduleError
from tests.collectives.run_on_tensors import run_on_tensors

WORLD_SIZES = [1, 2, 3, 4, 5, 7, 8, 12]
AT_ROOT = ["tree", "star", "caffe_tree"]
AT_OWNERS = ["ring", "xring", "stripes", "halving_doubling", "mxnet_tree", "hierarchical"]


def integers(world_size, num_elements):
    return list(torch.arange(world_size * num_elements).view(world_size, num_elements) ** 2)


@pytest.mark.parametrize("world_size", WORLD_SIZES)
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


@pytest.mark.parametrize("world_size", WORLD_SIZES)
@pytest.mark.parametrize("name", AT_ROOT)
def test_trees_and_stars_end_at_rank_0(name, world_size):
    assert set(split_at_reduction(schedule(name, world_size)).owners) == {0}


def test_owners_are_those_of_the_tensors():
    sizes = (5, 1, 7, 0, 3)
    for world_size in WORLD_SIZES:
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

"""The schedules of TensorFlow's tiers."""

import pytest

from scaling.bucket import BucketLayout
from scaling.collectives.tf_spec import (
    parse_spec,
    schedule_between_ranks,
    schedule_in_host_memory,
    tensors_of_tiers,
)
from scaling.collectives.verify import verify

LAYOUT = BucketLayout.of(
    [("a", (5, 3)), ("b", ()), ("c", (0, 4)), ("d", (301,)), ("e", (7,)), ("f", (2, 64))]
)


def tiers_of(spec, layout=LAYOUT):
    return tensors_of_tiers(parse_spec(spec), layout)


def test_tensors_are_divided_by_their_elements_and_empty_ones_left_out():
    assert [one.spans for one in tiers_of("pscpu:7:xring:128:nccl")] == [
        ((15, 16), (317, 324)), ((0, 15), (324, 452)), ((16, 317),),
    ]  # fmt: skip


class TestBetweenRanks:
    @pytest.mark.parametrize("spec", ["xring", "psgpu", "xring:7:psgpu", "psgpu:15:xring:128:psgpu"])
    @pytest.mark.parametrize("world_size", range(1, 9))
    def test_every_rank_gets_the_sum(self, world_size, spec):
        verify(schedule_between_ranks(tiers_of(spec), LAYOUT.num_elements, world_size))

    @pytest.mark.parametrize("shards", [1, 2, 3])
    @pytest.mark.parametrize("algorithm", ["xring", "psgpu"])
    @pytest.mark.parametrize("world_size", range(3, 9))
    def test_shards_change_nothing_of_that(self, world_size, algorithm, shards):
        verify(schedule_between_ranks(tiers_of(f"{algorithm}#{shards}"), LAYOUT.num_elements, world_size))

    @pytest.mark.parametrize("world_size", [1, 2, 4, 8])
    def test_halving_and_doubling_too(self, world_size):
        verify(schedule_between_ranks(tiers_of("rechd"), LAYOUT.num_elements, world_size))

    def test_tensors_of_other_tiers_are_left_alone(self):
        schedule = schedule_between_ranks(tiers_of("pscpu:20:xring"), LAYOUT.num_elements, 4)
        bounds = schedule.bounds(LAYOUT.num_elements)
        moved = {i for step in schedule.steps for t in step for i in range(bounds[t.start], bounds[t.stop])}
        assert moved == set(range(16, 317)) | set(range(324, 452))

    def test_there_is_none_without_such_tensors(self):
        assert schedule_between_ranks(tiers_of("pscpu:1k:xring"), LAYOUT.num_elements, 4) is None
        assert schedule_between_ranks(tiers_of("nccl"), LAYOUT.num_elements, 4) is None

    def test_groups_of_psgpu_are_dealt_out_and_take_turns(self):
        schedule = schedule_between_ranks(tiers_of("psgpu#2"), LAYOUT.num_elements, 4)
        owner_of = {transfer.start: transfer.target for transfer in schedule.steps[0]}
        assert [owner_of[piece] for piece in range(10)] == [0, 2, 1, 3, 0, 2, 1, 3, 0, 2]


class TestInHostMemory:
    @pytest.mark.parametrize("shards", [1, 2, 5])
    @pytest.mark.parametrize("world_size", range(1, 9))
    def test_every_rank_gets_the_sum_in_two_steps(self, world_size, shards):
        (tier,) = tiers_of(f"pscpu#{shards}")
        verification = verify(schedule_in_host_memory(tier, world_size))
        assert verification.num_steps == 2
        assert verification.sent_ratio_per_rank == [1] * world_size
        assert verification.sent_ratio_per_host == [world_size]

    def test_every_tensor_has_its_own_pieces(self):
        (tier,) = tiers_of("pscpu#2", BucketLayout.of([("a", (5,)), ("b", (1,)), ("c", (4,))]))
        assert schedule_in_host_memory(tier, 3).chunk_elements == (2, 3, 0, 1, 2, 2)

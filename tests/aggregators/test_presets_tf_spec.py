"""TensorFlow's choice of the algorithm by the size of the tensor."""

import math

import pytest
import torch

from scaling.aggregators.presets.tf_spec import TfSpec
from scaling.aggregators.registry import create
from scaling.bucket import BucketLayout
from scaling.errors import ScheduleError, StudyError
from scaling.process_group import run_in_process

WORLD_SIZES = (1, 2, 3, 4, 7)


def notes_of(aggregator, layout, world_size=2):
    def work(group):
        return aggregator.start(layout, group, torch.float32, torch.device("cpu")).notes

    return run_in_process(world_size, work)[0]


def total_bytes(outcomes):
    return sum(outcome.num_bytes for outcome in outcomes)


class TestTraffic:
    @pytest.mark.parametrize("world_size", WORLD_SIZES[1:])
    def test_small_tensors_go_to_the_host_and_the_large_one_round_the_ring(self, world_size, network, step):
        outcomes = step(TfSpec(), world_size, network)
        ringed = 257 * 263
        host = 2 * 4 * (network.num_elements - ringed)  # there and back
        assert total_bytes(outcomes) == world_size * host + 2 * (world_size - 1) * 4 * ringed
        for outcome in outcomes:
            share = 2 * (world_size - 1) / world_size * 4 * ringed
            assert outcome.num_bytes - host == pytest.approx(share, abs=4 * 64 * 2 * world_size)
            assert outcome.aggregate_traffic[1] == 4 + 2 * (world_size - 1)  # two tiers of pscpu, one ring

    @pytest.mark.parametrize("spec", ["xring", "xring#2", "rechd"])
    @pytest.mark.parametrize("world_size", [2, 4])
    def test_ring_and_halving_send_twice_the_bucket_to_each_but_one(self, world_size, spec, network, step):
        outcomes = step(TfSpec(spec), world_size, network)
        assert total_bytes(outcomes) == 2 * (world_size - 1) * 4 * network.num_elements

    @pytest.mark.parametrize("spec", ["nccl", "collective", "collective#2", "nccl/xring"])
    @pytest.mark.parametrize("world_size", WORLD_SIZES[1:])
    def test_native_tiers_are_an_all_reduce_a_tensor(self, world_size, spec, network, step):
        rounds = 2 * (world_size - 1)
        sizes = [4 * math.prod(shape) for shape in network.shapes if math.prod(shape)]
        for outcome in step(TfSpec(spec), world_size, network):
            num_bytes = sum(size * rounds // world_size for size in sizes)
            assert outcome.aggregate_traffic == (num_bytes, rounds * len(sizes))

    @pytest.mark.parametrize("world_size", WORLD_SIZES[1:])
    def test_owners_of_psgpu_take_turns(self, world_size, network, step):
        sizes = [4 * math.prod(shape) for shape in network.shapes if math.prod(shape)]
        owned = [sum(sizes[rank::world_size]) for rank in range(world_size)]
        for rank, outcome in enumerate(step(TfSpec("psgpu"), world_size, network)):
            assert outcome.num_bytes == sum(sizes) - owned[rank] + (world_size - 1) * owned[rank]

    @pytest.mark.parametrize("spec", ["pscpu", "pscpu#4", "pscpu/pscpu"])
    def test_host_tier_is_one_message_each_way(self, spec, network, step):
        for outcome in step(TfSpec(spec), 3, network):
            assert outcome.aggregate_traffic == (2 * 4 * network.num_elements, 2)


class TestLimits:
    @pytest.mark.parametrize("world_size", [3, 6, 7])
    def test_rechd_refuses_other_numbers_of_ranks_than_powers_of_two(self, world_size, network, step):
        with pytest.raises(ScheduleError, match=rf"rechd runs on 2, 4, 8, \.\.\. ranks, not on {world_size}"):
            step(TfSpec("pscpu:100:rechd"), world_size, network)

    @pytest.mark.parametrize("spec", ["xring#3", "psgpu#3"])
    def test_more_shards_than_ranks_are_refused(self, spec, network, step):
        with pytest.raises(ScheduleError, match=rf"{spec} needs 3 ranks at least, not 2"):
            step(TfSpec(spec), 2, network)

    @pytest.mark.parametrize("spec", ["xring#3", "psgpu#3", "rechd", "pscpu#3"])
    def test_alone_everything_is_allowed_and_nothing_sent(self, spec, network, step):
        assert step(TfSpec(spec), 1, network)[0].num_bytes == 0

    def test_tier_that_no_tensor_is_of_does_not_matter(self, step):
        layout = BucketLayout.of([("bias", (10,))])
        assert step(TfSpec("pscpu:1k:rechd"), 3, layout)[0].num_bytes == 2 * 40

    def test_bad_spec_is_refused_where_the_study_is_read(self):
        with pytest.raises(StudyError, match=r"aggregator 'tf_spec': parameter spec: .*algorithm 'xrings'"):
            create("tf_spec", {"spec": "pscpu:2k:xrings"})


class TestNotes:
    def test_say_how_many_tensors_each_tier_has(self, network):
        assert notes_of(TfSpec(), network)[0] == "tensors: 4 by pscpu, 1 by pscpu, 1 by xring"

    def test_say_that_ranks_count_as_one_nodes(self, network):
        assert "nccl/xring: all ranks count as one node's" in notes_of(TfSpec("nccl/xring"), network)

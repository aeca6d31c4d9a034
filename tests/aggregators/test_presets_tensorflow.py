"""TensorFlow's towers on the CPU, and its replicated variables."""

import math

import pytest
import torch

from scaling.aggregators.presets.tensorflow import TensorFlow, TfReplicated
from scaling.bucket import BucketLayout
from scaling.collectives.verify import verify
from scaling.process_group import run_in_process

WORLD_SIZES = (1, 2, 3, 4, 7)


@pytest.mark.parametrize("world_size", WORLD_SIZES)
class TestTowers:
    def test_what_goes_to_the_host_is_a_message_a_variable(self, world_size, network, step):
        for outcome in step(TensorFlow(), world_size, network):
            assert outcome.aggregate_traffic == (4 * network.num_elements, 6)  # one of the seven is empty
            assert outcome.distribute_traffic == (4 * network.num_elements, 1)  # the parameters come back

    def test_rank_0_steps_everything(self, world_size, network, step):
        outcomes = step(TensorFlow(), world_size, network)
        assert [outcome.mean is not None for outcome in outcomes] == [True] + [False] * (world_size - 1)
        assert outcomes[0].owned == [(0, network.num_elements)]

    def test_towers_of_the_largest_variable_have_room_side_by_side(self, world_size, network):
        def room(group):
            state = TensorFlow().start(network, group, torch.float32, torch.device("cpu"))
            return state.concatenated.numel()

        rooms = run_in_process(world_size, room)
        assert rooms == [world_size * 257 * 263] + [0] * (world_size - 1)


@pytest.mark.parametrize("world_size", range(1, 9))
class TestReplicated:
    def test_schedule_delivers_the_sum(self, world_size, network):
        verify(TfReplicated().schedule(world_size, network))

    def test_empty_bucket_does_no_harm(self, world_size):
        verify(TfReplicated().schedule(world_size, BucketLayout.of([("a", (0,)), ("b", (3, 0))])))

    def test_owners_take_turns_and_send_what_they_own_to_all(self, world_size, network, step):
        owned = [0] * world_size
        for i, shape in enumerate(network.shapes):
            owned[i % world_size] += 4 * math.prod(shape)
        for rank, outcome in enumerate(step(TfReplicated(), world_size, network)):
            others = sum(owned) - owned[rank]
            assert outcome.num_bytes == others + (world_size - 1) * owned[rank]
            owners = [o for o in range(world_size) if owned[o]]
            messages = len([o for o in owners if o != rank]) + (world_size - 1) * (rank in owners)
            assert outcome.aggregate_traffic[1] == messages

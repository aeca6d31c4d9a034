"""What aggregation over MPI copies between a GPU and host memory is metered, both ways.

MPI's side and the GPU's stream stand in: what is counted is the same.
"""

import dataclasses

import pytest
import torch

from scaling.aggregators import over_mpi
from scaling.aggregators.one_bit import OneBit
from scaling.aggregators.over_mpi import Mpi, MpiOneBit, MpiOneBitState, MpiState
from scaling.bucket import BucketLayout
from scaling.process_group import run_in_process

LAYOUT = BucketLayout.of([("weight", (40, 30)), ("bias", (30,))])
CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def copies_without_a_stream(monkeypatch):
    def down(pairs):
        for source, target in pairs:
            target.copy_(source)

    monkeypatch.setattr(over_mpi, "_down", down)


def gradient_of(group):
    return torch.randn(LAYOUT.num_elements, generator=torch.Generator().manual_seed(group.rank))


@pytest.mark.parametrize("world_size", [2, 3])
def test_all_reduce_meters_the_gradient_down_and_up(world_size):
    def work(group):
        state = MpiState(group, LAYOUT, group, torch.empty(LAYOUT.num_elements))
        mean = Mpi().aggregate(state, gradient_of(group))
        return mean, group.meter.bytes_sent

    ranks = run_in_process(world_size, work)
    stated = Mpi().wire_bytes(LAYOUT, world_size, 0, 4)
    assert [sent for _, sent in ranks] == [stated + 2 * 4 * LAYOUT.num_elements] * world_size
    assert all(torch.equal(mean, ranks[0][0]) for mean, _ in ranks)


@pytest.mark.parametrize("world_size", [2, 3])
def test_stripes_meter_what_is_sent_down_and_what_is_received_up(world_size):
    def work(group):
        base = OneBit(kernels="torch").start(LAYOUT, group, torch.float32, CPU)
        longest = max(base.buffers.stripes.words)
        rooms = [[torch.empty(longest, dtype=torch.int32) for _ in range(world_size)] for _ in range(2)]
        fields = {field.name: getattr(base, field.name) for field in dataclasses.fields(base)}
        state = MpiOneBitState(**fields, over_mpi=group, sent=rooms[0], received=rooms[1])
        group.meter.reset()
        mean = MpiOneBit().aggregate(state, gradient_of(group))
        return mean.clone(), group.meter.bytes_sent

    ranks = run_in_process(world_size, work)
    sent = [MpiOneBit().wire_bytes(LAYOUT, world_size, rank, 4) for rank in range(world_size)]
    assert [metered for _, metered in ranks] == [3 * one for one in sent]
    assert all(torch.equal(mean, ranks[0][0]) for mean, _ in ranks)

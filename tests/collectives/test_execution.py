"""Schedules between ranks, run on tensors in one process."""

import pytest
import torch

from scaling.collectives.catalogue import CATALOGUE, schedule
from scaling.collectives.execute import Execution
from scaling.collectives.sharded_owners import sharded_owners
from scaling.errors import ScheduleError
from scaling.process_group import run_in_process

NUM_ELEMENTS = 37
WORLD_SIZES = [1, 2, 3, 4, 6, 7, 8]
BETWEEN_RANKS = [name for name in CATALOGUE if not schedule(name, 2).num_hosts]


def between_ranks(name, world_size):
    if name == "sharded_owners":
        return sharded_owners(world_size, (20, 1, 0, 16))
    return schedule(name, world_size)


def run(name, buffers):
    def work(group):
        mine = buffers[group.rank].clone()
        plan = between_ranks(name, group.world_size)
        execution = Execution(plan, group.rank, mine.numel(), mine.dtype, torch.device("cpu"))
        execution.run(mine, group)
        return mine

    return run_in_process(len(buffers), work)


@pytest.mark.parametrize("world_size", WORLD_SIZES)
@pytest.mark.parametrize("name", BETWEEN_RANKS)
class TestExecution:
    def test_equals_the_sum_on_integers(self, name, world_size):
        generator = torch.Generator().manual_seed(world_size)
        buffers = torch.randint(-1000, 1000, (world_size, NUM_ELEMENTS), generator=generator)
        for result in run(name, buffers):
            assert torch.equal(result, buffers.sum(dim=0))

    def test_ranks_agree_bit_for_bit_on_floats(self, name, world_size):
        generator = torch.Generator().manual_seed(world_size)
        buffers = torch.randn((world_size, NUM_ELEMENTS), generator=generator)
        results = run(name, buffers)
        assert all(torch.equal(result, results[0]) for result in results)


def test_schedules_over_host_memory_are_refused():
    with pytest.raises(ScheduleError, match="not on host memory"):
        Execution(schedule("host_serial", 2), 0, 1, torch.float32, torch.device("cpu"))

"""Every executor against the reference: whatever moves the bytes, the result has the same bits."""

from itertools import product

import pytest
import torch

from scaling.collectives.execute import Execution
from scaling.collectives.execute_host import HostExecution
from scaling.collectives.execute_peer import PeerExecution
from scaling.collectives.listing import COLLECTIVES, schedule
from scaling.collectives.owners import sharded_owners
from scaling.collectives.ring import ring
from scaling.collectives.schedule import ALIGNMENT_ELEMENTS, Schedule
from scaling.process_group import run_in_process
from tests.collectives.run_on_tensors import run_on_tensors

WORLD_SIZES = [1, 2, 3, 4, 6, 7, 8]
SIZES = [0, 1, 5, 37, 1027]
DTYPES = [torch.float32, torch.int64]
BETWEEN_RANKS = [name for name in COLLECTIVES if not schedule(name, 2).num_hosts]
THROUGH_A_HOST = [name for name in COLLECTIVES if name not in BETWEEN_RANKS]
CPU = torch.device("cpu")


def scheduled(name: str, world_size: int, num_elements: int) -> Schedule:
    if name == "sharded_owners":  # its chunks are tensors, here four of unequal size and an empty one
        parts = [num_elements // 2, 0, num_elements // 8, min(num_elements, 1)]
        return sharded_owners(world_size, [*parts, num_elements - sum(parts)] if num_elements > 1 else parts)
    return schedule(name, world_size)


def values_of(world_size, num_elements, dtype, seed) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    if dtype.is_floating_point:
        return list(torch.randn((world_size, num_elements), generator=generator).to(dtype))
    return list(torch.randint(-1000, 1000, (world_size, num_elements), generator=generator))


def by_sends(group, plan, num_elements, dtype):
    execution = Execution(plan, group.rank, num_elements, dtype, CPU)

    def run(values):
        buffer = values.clone()
        execution.run(buffer, group)
        return buffer

    return run


def by_peer_memory(group, plan, num_elements, dtype):
    memory = group.peer_memory(num_elements, dtype, CPU)
    execution = PeerExecution(plan, group, memory)

    def run(values):
        memory.local.copy_(values)
        execution.run()
        return memory.local.clone()

    return run


def by_one_summing_rank(group, plan, num_elements, dtype, num_summing=1):
    execution = HostExecution(plan, group, num_elements, dtype, CPU, num_summing=num_summing)
    result = torch.empty(num_elements, dtype=dtype)

    def run(values):
        execution.run(values, result)
        return result.clone()

    return run


def by_all_ranks(group, plan, num_elements, dtype):
    return by_one_summing_rank(group, plan, num_elements, dtype, group.world_size)


def assert_equals_reference(executor, plan_of, world_size, sizes=SIZES):
    """Two runs in a row of the same execution, on new values: buffers are reused."""
    cases = []
    for num_elements, dtype in product(sizes, DTYPES):
        inputs = [values_of(world_size, num_elements, dtype, seed) for seed in (1, 2)]
        plan = plan_of(num_elements)
        cases.append((plan, num_elements, dtype, inputs, [run_on_tensors(plan, one) for one in inputs]))

    def work(group):
        outcomes = []
        for plan, num_elements, dtype, inputs, _ in cases:
            run = executor(group, plan, num_elements, dtype)
            outcomes.append([run(one[group.rank]) for one in inputs])
        return outcomes

    for rank, outcomes in enumerate(run_in_process(world_size, work)):
        for (_, num_elements, dtype, _, expected), results in zip(cases, outcomes, strict=True):
            for index, result in enumerate(results):
                where = (rank, num_elements, dtype, f"run {index}")
                assert torch.equal(result, expected[index][rank]), where


@pytest.mark.parametrize("world_size", WORLD_SIZES)
@pytest.mark.parametrize("name", BETWEEN_RANKS)
class TestBetweenRanks:
    @pytest.mark.sampled(4)
    @pytest.mark.parametrize("executor", [by_sends, by_peer_memory])
    def test_equals_the_reference_bit_for_bit(self, executor, name, world_size):
        assert_equals_reference(executor, lambda size: scheduled(name, world_size, size), world_size)

    @pytest.mark.sampled(4)
    def test_reference_is_the_sum_and_the_ranks_agree_on_floats(self, name, world_size):
        plan = scheduled(name, world_size, 37)
        integers = values_of(world_size, 37, torch.int64, 1)
        total = torch.stack(integers).sum(dim=0)
        assert all(torch.equal(result, total) for result in run_on_tensors(plan, integers))
        first, *others = run_on_tensors(plan, values_of(world_size, 37, torch.float32, 1))
        assert all(torch.equal(other, first) for other in others)

    @pytest.mark.sampled(4)
    def test_peer_memory_meters_what_the_sends_meter(self, name, world_size):
        plan = scheduled(name, world_size, 37)

        def work(group):
            metered = []
            for executor in (by_sends, by_peer_memory):
                group.meter.reset()
                executor(group, plan, 37, torch.float32)(torch.ones(37))
                metered.append((group.meter.bytes_sent, group.meter.messages_sent))
            return metered

        for by_sending, by_reading in run_in_process(world_size, work):
            assert by_sending == by_reading


@pytest.mark.sampled(4)
@pytest.mark.parametrize("world_size", WORLD_SIZES)
@pytest.mark.parametrize("name", THROUGH_A_HOST)
@pytest.mark.parametrize("executor", [by_one_summing_rank, by_all_ranks])
def test_host_execution_equals_the_reference_bit_for_bit(executor, name, world_size):
    assert_equals_reference(executor, lambda size: scheduled(name, world_size, size), world_size)


@pytest.mark.parametrize("executor", [by_sends, by_peer_memory])
def test_aligned_chunks_of_a_large_buffer_equal_the_reference(executor):
    num_elements = 100 * ALIGNMENT_ELEMENTS * 4 + 13
    assert_equals_reference(executor, lambda _: ring(4), 4, sizes=[num_elements])

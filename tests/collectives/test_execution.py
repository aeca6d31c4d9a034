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
from scaling.errors import ScheduleError
from scaling.process_group import run_in_process
from tests.collectives.conftest import add, copy, made_of, values_of
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
        inputs = [values_of(world_size, num_elements, seed, dtype) for seed in (1, 2)]
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
        integers = values_of(world_size, 37, 1, torch.int64)
        total = torch.stack(integers).sum(dim=0)
        assert all(torch.equal(result, total) for result in run_on_tensors(plan, integers))
        first, *others = run_on_tensors(plan, values_of(world_size, 37, 1))
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


SWAPS = ((0, 1), (1, 0))
CHAIN = ((add(0, 1),), (add(1, 2),))
# Rank 2 stands for host memory.
THROUGH_HOST = (add(0, 2), add(1, 2)), (copy(2, 0), copy(2, 1))
MOVED = {
    "reads are from before the step": (made_of([copy(*pair) for pair in SWAPS]), [[1], [2]], [[2], [1]]),
    "and those of adds": (made_of([add(*pair) for pair in SWAPS]), [[1], [2]], [[3], [3]]),
    "later steps read what earlier ones wrote":
        (made_of(*CHAIN, world_size=3), [[1], [2], [4]], [[1], [3], [7]]),
    **{
        f"adds are in the order listed {order}": (
            made_of((add(1, 0), add(2, 0))[::order], world_size=3), [[1e8], [1], [-1e8]],
            [[total], [1], [-1e8]],
        )
        for order, total in ((1, 0), (-1, 1))
    },
    "host memory starts as zero": (made_of(*THROUGH_HOST, num_hosts=1), [[3], [4]], [[7], [7]]),
    "only the chunks of a transfer are moved":
        (made_of((copy(0, 1, 1, 3),), num_chunks=4), [[*range(8)], [0] * 8],
         [[*range(8)], [0, 0, 2, 3, 4, 5, 0, 0]]),
    "tensors have their own sizes":
        (made_of((copy(0, 1, 1, 2),), num_chunks=3, chunk_elements=(1, 4, 2)), [[*range(7)], [0] * 7],
         [[*range(7)], [0, 1, 2, 3, 4, 0, 0]]),
}  # fmt: skip


@pytest.mark.parametrize(("plan", "given", "expected"), MOVED.values(), ids=MOVED)
def test_reference_moves_what_the_transfers_say_and_leaves_its_inputs(plan, given, expected):
    inputs = [torch.tensor(values, dtype=torch.float32) for values in given]
    results = run_on_tensors(plan, inputs)
    assert [result.tolist() for result in results] == expected
    results[0].fill_(9)
    assert [one.tolist() for one in inputs] == given


@pytest.mark.parametrize("name", COLLECTIVES)
def test_every_collective_is_the_sum_on_integers(name):
    for world_size in (1, 2, 5, 17):
        plan = schedule(name, world_size)
        if plan.chunk_elements:
            plan = sharded_owners(world_size, (3, 5, 1))
        inputs = list(torch.arange(9 * world_size).view(world_size, 9))
        total = torch.stack(inputs).sum(dim=0)
        assert all(torch.equal(result, total) for result in run_on_tensors(plan, inputs))


@pytest.mark.parametrize(
    ("plan", "num_inputs", "message"),
    [
        *((made_of(), number, f"made: {number} contributions for 2 ranks") for number in (1, 3)),
        (
            made_of(num_chunks=2, chunk_elements=(1, 2)),
            2,
            "made for tensors of 3 elements together, run on 1",
        ),
    ],
)
def test_other_contributions_are_refused(plan, num_inputs, message):
    with pytest.raises(ScheduleError, match=message):
        run_on_tensors(plan, [torch.ones(1)] * num_inputs)

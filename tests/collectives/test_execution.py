"""Whatever moves the bytes, the result has the bits of the reference and as much is metered."""

from itertools import product

import pytest
import torch

from scaling.collectives.composition import split_at_reduction
from scaling.collectives.exchange import RankExchange
from scaling.collectives.execute import Execution
from scaling.collectives.listing import COLLECTIVES, schedule
from scaling.collectives.owners import sharded_owners, star
from scaling.collectives.ring import ring
from scaling.collectives.schedule import ALIGNMENT_ELEMENTS, Schedule
from scaling.errors import LaunchError, ScheduleError
from scaling.process_group import run_in_process
from tests.collectives.conftest import (
    CPU,
    add,
    assert_reference,
    by_host_memory,
    by_peer_memory,
    copy,
    made_of,
    run_on_tensors,
    values_of,
)

WORLD_SIZES = [1, 2, 3, 4, 6, 7, 8]
SIZES = [0, 1, 5, 37, 1027]
DTYPES = [torch.float32, torch.int64]
BETWEEN_RANKS = [name for name in COLLECTIVES if not schedule(name, 2).num_hosts]
THROUGH_A_HOST = [name for name in COLLECTIVES if name not in BETWEEN_RANKS]


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


def by_all_ranks(group, plan, num_elements, dtype):
    return by_host_memory(group, plan, num_elements, dtype, num_summing=group.world_size)


def assert_equals_reference(executor, plan_of, world_size, sizes=SIZES):
    for num_elements, dtype in product(sizes, DTYPES):
        rounds = [values_of(world_size, num_elements, seed, dtype) for seed in (1, 2)]
        assert_reference(executor, plan_of(num_elements), rounds)


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
@pytest.mark.parametrize("executor", [by_host_memory, by_all_ranks])
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


def test_other_contributions_are_refused():
    for number in (1, 3):
        with pytest.raises(ScheduleError, match=f"made: {number} contributions for 2 ranks"):
            run_on_tensors(made_of(), [torch.ones(1)] * number)
    with pytest.raises(ScheduleError, match="made for tensors of 3 elements together, run on 1"):
        run_on_tensors(made_of(num_chunks=2, chunk_elements=(1, 2)), [torch.ones(1)] * 2)


TRANSPORTS = ["sends", "peer_memory", "auto"]


def exchange_of(group, num_elements=10, plan=None, **fields):
    return RankExchange(plan or ring(group.world_size), group, num_elements, torch.float32, CPU, **fields)


def without_peer_memory(monkeypatch):
    """As on several hosts, or where the study forbids it."""

    def refuse(*_):
        raise LaunchError("the ranks cannot read each other's memory here")

    monkeypatch.setattr("scaling.process_group.InProcessGroup.can_access_peers", lambda *_: False)
    monkeypatch.setattr("scaling.process_group.InProcessGroup.peer_memory", refuse)


class TestTransport:
    @pytest.mark.parametrize(("transport", "decided"), [("sends", "sends"), ("peer_memory",) * 2])
    def test_it_is_what_was_asked_for(self, transport, decided):
        def work(group):
            exchange = exchange_of(group, transport=transport)
            return exchange.transport, exchange.captured, exchange.buffer is None

        assert run_in_process(2, work) == [(decided, False, decided == "sends")] * 2

    def test_auto_is_peer_memory_where_it_can_be_had_and_sends_elsewhere(self, monkeypatch):
        assert run_in_process(2, lambda group: exchange_of(group).transport) == ["peer_memory"] * 2
        without_peer_memory(monkeypatch)
        assert run_in_process(2, lambda group: exchange_of(group).transport) == ["sends"] * 2
        with pytest.raises(LaunchError, match="cannot read each other's memory"):
            run_in_process(2, lambda group: exchange_of(group, transport="peer_memory"))

    @pytest.mark.parametrize(("world_size", "num_elements"), [(1, 10), (3, 0)])
    @pytest.mark.parametrize("transport", TRANSPORTS)
    def test_nothing_to_exchange_asks_for_no_memory(self, monkeypatch, transport, world_size, num_elements):
        without_peer_memory(monkeypatch)

        def work(group):
            exchange = exchange_of(group, num_elements, transport=transport)
            tensor = torch.ones(num_elements)
            return exchange.transport, exchange.run(tensor) is tensor, group.meter.bytes_sent

        assert run_in_process(world_size, work) == [("sends", True, 0)] * world_size

    @pytest.mark.parametrize("transport", TRANSPORTS)
    def test_schedules_over_host_memory_and_graphs_without_cuda_are_refused(self, transport):
        def work(group):
            exchange_of(group, plan=schedule("host_serial", 2), transport=transport)

        with pytest.raises(ScheduleError, match=r"host_serial: .* between ranks only"):
            run_in_process(2, work)
        with pytest.raises(ScheduleError, match="ring: captured needs CUDA, the ranks compute on cpu"):
            run_in_process(2, lambda group: exchange_of(group, captured=True, transport=transport))


class TestRun:
    @pytest.mark.parametrize("transport", TRANSPORTS)
    def test_result_is_in_the_buffer_if_there_is_one_else_in_the_tensor(self, transport):
        rounds = [values_of(3, 10, seed) for seed in (1, 2)]

        def work(group):
            exchange = exchange_of(group, transport=transport)
            results = []
            for one in rounds:
                tensor = one[group.rank].clone()
                result = exchange.run(tensor)
                assert result is (tensor if exchange.buffer is None else exchange.buffer)
                results.append(result.clone())
            return results

        for rank, results in enumerate(run_in_process(3, work)):
            for one, result in zip(rounds, results, strict=True):
                assert torch.equal(result, run_on_tensors(ring(3), one)[rank])

    def test_other_tensors_are_left_as_they_are_and_the_buffer_itself_needs_no_copy(self):
        inputs = values_of(2, 10)

        def work(group):
            exchange, tensor = exchange_of(group, transport="peer_memory"), inputs[group.rank].clone()
            exchange.run(tensor)
            exchange.buffer.copy_(inputs[group.rank])
            return torch.equal(tensor, inputs[group.rank]), exchange.run(exchange.buffer).clone()

        for (is_left, result), expected in zip(
            run_in_process(2, work), run_on_tensors(ring(2), inputs), strict=True
        ):
            assert is_left
            assert torch.equal(result, expected)

    @pytest.mark.parametrize("transport", TRANSPORTS)
    def test_two_exchanges_of_a_group_keep_out_of_each_others_way(self, transport):
        """As a reduction of gradients and a distribution of parameters do."""
        reduction, distribution, _ = split_at_reduction(star(3))
        gradients, parameters = values_of(3, 10, 1), values_of(3, 10, 2)

        def work(group):
            first, second = (
                exchange_of(group, plan=plan, transport=transport) for plan in (reduction, distribution)
            )
            results = []
            for _ in range(2):
                mean = first.run(gradients[group.rank].clone())
                new = second.run(parameters[group.rank].clone())
                results.append((mean.clone(), new.clone()))
            return results

        sums, new = run_on_tensors(reduction, gradients), run_on_tensors(distribution, parameters)
        for rank, results in enumerate(run_in_process(3, work)):
            for mean, distributed in results:
                assert torch.equal(mean, sums[rank])
                assert torch.equal(distributed, new[rank])

    def test_metered_is_the_same_each_way(self):
        def work(group):
            metered = []
            for transport in TRANSPORTS:
                exchange = exchange_of(group, num_elements=100, transport=transport)
                group.meter.reset()
                exchange.run(torch.ones(100))
                metered.append((group.meter.bytes_sent, group.meter.messages_sent))
            return metered

        for by_sends, *others in run_in_process(4, work):
            assert others == [by_sends] * 2
            assert by_sends == (600, 6)

"""Peer memory: the order in which ranks get on changes nothing, lanes change nothing."""

from functools import partial
from itertools import pairwise

import pytest
import torch

from scaling.collectives.execute_peer import PeerExecution
from scaling.collectives.listing import schedule
from scaling.collectives.owners import sharded_owners
from scaling.errors import ScheduleError
from scaling.process_group import run_in_process
from tests.collectives.conftest import add, copy, made_of, values_of
from tests.collectives.run_on_tensors import run_on_tensors

CPU = torch.device("cpu")
# Ring: pulls, then pushes. The two of doubling: swaps, which are staged. The others: many ranks at one place.
NAMES = ["ring", "recursive_doubling", "halving_doubling", "star", "double_binary_tree", "stripes"]


def run_steps(plan, inputs, num_lanes=None, runner=run_in_process):
    """What every rank holds after one run."""

    def work(group):
        memory = group.peer_memory(inputs[0].numel(), inputs[0].dtype, CPU)
        execution = PeerExecution(plan, group, memory, num_lanes)
        memory.local.copy_(inputs[group.rank])
        execution.run()
        return memory.local.clone()

    return runner(len(inputs), work)


def run_seeded(run_interleaved, seed, world_size, work):
    return run_interleaved(world_size, seed, work)


def assert_reference(plan, inputs, **how):
    expected = run_on_tensors(plan, inputs)
    for rank, result in enumerate(run_steps(plan, inputs, **how)):
        assert torch.equal(result, expected[rank]), (rank, result, expected[rank])


@pytest.mark.parametrize("world_size", [2, 3, 5, 6])
@pytest.mark.parametrize("name", NAMES)
class TestAnyOrder:
    @pytest.mark.sampled(4)
    @pytest.mark.parametrize("num_lanes", [1, 2])
    def test_order_in_which_ranks_get_on_changes_nothing(self, run_interleaved, name, world_size, num_lanes):
        plan = schedule(name, world_size)
        rounds = [values_of(world_size, 301, seed) for seed in (1, 2)]
        expected = [run_on_tensors(plan, one) for one in rounds]

        def work(group):
            memory = group.peer_memory(301, torch.float32, CPU)
            execution = PeerExecution(plan, group, memory, num_lanes)
            results = []
            for one in rounds:
                memory.local.copy_(one[group.rank])  # while others may be in the run before
                execution.run()
                results.append(memory.local.clone())
            return results

        for seed in range(5):
            for rank, results in enumerate(run_interleaved(world_size, seed, work)):
                for index, result in enumerate(results):
                    assert torch.equal(result, expected[index][rank]), (seed, rank, index)

    @pytest.mark.sampled(4)
    @pytest.mark.parametrize("num_elements", [1, 37, 1027, 6 * 64 * 5 + 3])
    @pytest.mark.parametrize("num_lanes", [2, 3])
    def test_lanes_change_nothing(self, name, world_size, num_lanes, num_elements):
        inputs = values_of(world_size, num_elements)
        assert_reference(schedule(name, world_size), inputs, num_lanes=num_lanes)


STAGED = {
    # Rank 2 sends its chunk 0: what adds to it is staged, and so is what adds to chunk 1 later.
    **{
        f"adds behind a staged one, {order}": (
            (*((add(0, 2), add(1, 2, 0, 2), add(2, 1))[i] for i in order), add(0, 2, 1, 2)), 2,
        )
        for order in ((0, 1, 2), (2, 1, 0), (1, 0, 2), (1, 2, 0))
    },
    "a copy into what its target sends": ((copy(0, 1), add(1, 2)), 1),
    "spans that overlap in part": ((copy(0, 1, 0, 2), add(1, 2, 1, 3), add(2, 0, 0, 3), copy(2, 1, 2, 3)), 3),
}  # fmt: skip


class TestOneStep:
    def test_places_that_are_read_in_the_step_give_their_old_values(self):
        round_trip = tuple(copy(rank, (rank + 1) % 3) for rank in range(3))
        inputs = [torch.full((4,), float(rank)) for rank in range(3)]
        results = run_steps(made_of(round_trip, world_size=3), inputs)
        assert [result[0].item() for result in results] == [2, 0, 1]

    def test_adds_into_one_place_apply_in_the_order_listed(self):
        inputs = [torch.tensor([value]) for value in (1e8, 1.0, -1e8)]
        for order, total in (((1, 2), 0.0), ((2, 1), 1.0)):
            plan = made_of(tuple(add(source, 0) for source in order), world_size=3)
            assert run_steps(plan, inputs)[0].item() == total

    @pytest.mark.parametrize(("step", "num_chunks"), STAGED.values(), ids=STAGED)
    def test_what_is_staged_keeps_its_order_and_is_kept_apart(self, run_interleaved, step, num_chunks):
        plan = made_of(step, world_size=3, num_chunks=num_chunks)
        for inputs in (values_of(3, 17), [torch.full((2,), value) for value in (1e8, 1.0, -1e8)]):
            for num_lanes in (1, 2):
                assert_reference(plan, inputs, num_lanes=num_lanes)
            for seed in range(20):
                assert_reference(plan, inputs, runner=partial(run_seeded, run_interleaved, seed))

    def test_chunks_without_elements_move_nothing_and_are_not_metered(self):
        plan = sharded_owners(3, (0, 2, 0, 0))
        inputs = values_of(3, 2)
        assert_reference(plan, inputs)

        def work(group):
            PeerExecution(plan, group, group.peer_memory(2, torch.float32, CPU)).run()
            return group.meter.bytes_sent, group.meter.messages_sent

        owner, *others = sorted(run_in_process(3, work), reverse=True)
        assert (owner, others) == ((16, 2), [(8, 1)] * 2)


def test_schedule_without_steps_leaves_the_buffer_as_it_is():
    inputs = values_of(2, 3)
    for result, before in zip(run_steps(made_of(world_size=2), inputs), inputs, strict=True):
        assert torch.equal(result, before)


def test_large_buffers_run_in_two_lanes(monkeypatch):
    def num_lanes(group):
        execution = PeerExecution(schedule("ring", 1), group, group.peer_memory(1000, torch.float32, CPU))
        return len(execution._lanes)

    assert run_in_process(1, num_lanes) == [1]
    monkeypatch.setattr("scaling.collectives.execute_peer.LANES_FROM_BYTES", 4000)
    assert run_in_process(1, num_lanes) == [2]
    assert_reference(schedule("recursive_doubling", 3), values_of(3, 1000))


def test_lanes_stage_in_places_of_their_own():
    """They are at different steps at the same time, which only streams show."""

    def places(group):
        memory = group.peer_memory(1000, torch.float32, CPU)
        lanes = PeerExecution(schedule("recursive_doubling", 2), group, memory, num_lanes=3)._lanes
        return sorted(place for lane in lanes for step in lane for *_, place in step.staged)

    for staged in run_in_process(2, places):
        assert len(staged) == 3
        assert all(a[1] <= b[0] for a, b in pairwise(staged))


def test_schedules_over_host_memory_are_refused():
    def work(group):
        PeerExecution(schedule("host_serial", 2), group, group.peer_memory(1, torch.float32, CPU))

    with pytest.raises(ScheduleError, match="host_serial: peer memory is between ranks only"):
        run_in_process(2, work)

"""Peer memory and sums in shared host memory: no order of the ranks, lanes or chunks change a bit."""

from functools import partial
from itertools import pairwise

import pytest
import torch

from scaling.collectives import execute_host
from scaling.collectives.execute_host import NUM_SLOTS, HostExecution, sum_rows
from scaling.collectives.execute_peer import PeerExecution
from scaling.collectives.host_staging import host_parallel, host_serial
from scaling.collectives.listing import schedule
from scaling.collectives.owners import sharded_owners
from scaling.collectives.ring import ring
from scaling.collectives.schedule import Schedule
from scaling.errors import ScheduleError
from scaling.process_group import run_in_process
from tests.collectives.conftest import (
    CPU,
    add,
    assert_reference,
    by_host_memory,
    by_peer_memory,
    copy,
    made_of,
    results_of,
    values_of,
)

# Ring: pulls, then pushes. The two of doubling: swaps, which are staged. The others: many ranks at one place.
NAMES = ["ring", "recursive_doubling", "halving_doubling", "star", "double_binary_tree", "stripes"]


@pytest.mark.parametrize("world_size", [2, 3, 5, 6])
@pytest.mark.parametrize("name", NAMES)
class TestAnyOrder:
    @pytest.mark.sampled(4)
    @pytest.mark.parametrize("num_lanes", [1, 2])
    def test_order_in_which_ranks_get_on_changes_nothing(self, run_interleaved, name, world_size, num_lanes):
        plan = schedule(name, world_size)
        rounds = [values_of(world_size, 301, seed) for seed in (1, 2)]
        for seed in range(5):
            runner = partial(run_interleaved, seed=seed)
            assert_reference(by_peer_memory, plan, rounds, runner=runner, num_lanes=num_lanes)

    @pytest.mark.sampled(4)
    @pytest.mark.parametrize("num_elements", [1, 37, 1027, 6 * 64 * 5 + 3])
    @pytest.mark.parametrize("num_lanes", [2, 3])
    def test_lanes_change_nothing(self, name, world_size, num_lanes, num_elements):
        inputs = values_of(world_size, num_elements)
        assert_reference(by_peer_memory, schedule(name, world_size), [inputs], num_lanes=num_lanes)


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
        results = results_of(by_peer_memory, made_of(round_trip, world_size=3), [inputs])
        assert [result[0].item() for (result,) in results] == [2, 0, 1]

    def test_adds_into_one_place_apply_in_the_order_listed(self):
        inputs = [torch.tensor([value]) for value in (1e8, 1.0, -1e8)]
        for order, total in (((1, 2), 0.0), ((2, 1), 1.0)):
            plan = made_of(tuple(add(source, 0) for source in order), world_size=3)
            assert results_of(by_peer_memory, plan, [inputs])[0][0].item() == total

    @pytest.mark.parametrize(("step", "num_chunks"), STAGED.values(), ids=STAGED)
    def test_what_is_staged_keeps_its_order_and_is_kept_apart(self, run_interleaved, step, num_chunks):
        plan = made_of(step, world_size=3, num_chunks=num_chunks)
        for inputs in (values_of(3, 17), [torch.full((2,), value) for value in (1e8, 1.0, -1e8)]):
            for num_lanes in (1, 2):
                assert_reference(by_peer_memory, plan, [inputs], num_lanes=num_lanes)
            for seed in range(20):
                assert_reference(by_peer_memory, plan, [inputs], runner=partial(run_interleaved, seed=seed))

    def test_chunks_without_elements_move_nothing_and_are_not_metered(self):
        plan = sharded_owners(3, (0, 2, 0, 0))
        inputs = values_of(3, 2)
        assert_reference(by_peer_memory, plan, [inputs])
        assert_reference(
            by_peer_memory, made_of(world_size=2), [inputs[:2]]
        )  # without steps buffers are left as they are

        def work(group):
            PeerExecution(plan, group, group.peer_memory(2, torch.float32, CPU)).run()
            return group.meter.bytes_sent, group.meter.messages_sent

        owner, *others = sorted(run_in_process(3, work), reverse=True)
        assert (owner, others) == ((16, 2), [(8, 1)] * 2)


def test_large_buffers_run_in_two_lanes(monkeypatch):
    def num_lanes(group):
        execution = PeerExecution(schedule("ring", 1), group, group.peer_memory(1000, torch.float32, CPU))
        return len(execution._lanes)

    assert run_in_process(1, num_lanes) == [1]
    monkeypatch.setattr("scaling.collectives.execute_peer.LANES_FROM_BYTES", 4000)
    assert run_in_process(1, num_lanes) == [2]
    assert_reference(by_peer_memory, schedule("recursive_doubling", 3), [values_of(3, 1000)])


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


NUM_ROUNDS = 3
PLANS = [host_serial, host_parallel]


def assert_sums(plan, num_elements, **how):
    rounds = [values_of(plan.world_size, num_elements, seed) for seed in range(NUM_ROUNDS)]
    assert_reference(by_host_memory, plan, rounds, **how)


@pytest.mark.parametrize("plan_of", PLANS)
class TestChunks:
    @pytest.mark.sampled(4)
    @pytest.mark.parametrize("num_elements", [0, 1, 5, 37, 1027])
    @pytest.mark.parametrize("num_chunks", [1, 3, NUM_SLOTS, 7, 40])
    def test_number_of_chunks_changes_nothing(self, plan_of, num_chunks, num_elements):
        for world_size in (1, 2, 3, 4):
            plan = plan_of(world_size, num_chunks=num_chunks)
            for num_summing in {1, world_size}:
                assert_sums(plan, num_elements, num_summing=num_summing)

    @pytest.mark.sampled(4)
    @pytest.mark.parametrize("num_chunks", [1, 3, 7])
    @pytest.mark.parametrize("world_size", [2, 3, 4])
    def test_order_in_which_ranks_get_on_changes_nothing(
        self, run_interleaved, plan_of, world_size, num_chunks
    ):
        plan = plan_of(world_size, num_chunks=num_chunks)
        for seed in range(6):
            for num_summing in (1, world_size):
                how = {"num_summing": num_summing, "keep_sums": seed % 2 == 1}
                assert_sums(plan, 41, runner=partial(run_interleaved, seed=seed), **how)

    @pytest.mark.parametrize("num_summing", [1, 2, 3, 5, 9])
    def test_number_of_summing_ranks_changes_nothing(self, plan_of, num_summing):
        assert_sums(plan_of(5, num_chunks=3), 100, num_summing=num_summing)

    @pytest.mark.parametrize(
        ("keep_sums", "num_chunks", "expected"),
        [(False, 1, (56, 2)), (False, 3, (56, 6)), (False, 40, (56, 14)), (True, 1, (28, 1))],
    )
    def test_metered_are_the_bytes_of_both_directions_and_a_message_a_chunk_that_is_not_empty(
        self, plan_of, keep_sums, num_chunks, expected
    ):
        def work(group):
            how = {"num_summing": 1, "keep_sums": keep_sums}  # sums that stay are metered on their way up
            plan = plan_of(2, num_chunks=num_chunks)
            execution = HostExecution(plan, group, 7, torch.float32, CPU, **how)
            group.meter.reset()
            execution.run(torch.ones(7), None if keep_sums else torch.empty(7))
            return group.meter.bytes_sent, group.meter.messages_sent

        assert run_in_process(2, work) == [expected] * 2

    def test_gradient_is_left_as_it_is(self, plan_of):
        inputs = values_of(3, 20)
        before = [one.clone() for one in inputs]
        results_of(by_host_memory, plan_of(3), [inputs])
        assert all(torch.equal(a, b) for a, b in zip(inputs, before, strict=True))


class TestSums:
    @pytest.mark.parametrize("num_chunks", [1, 7])
    def test_kept_sums_are_divided_and_need_no_result(self, run_interleaved, num_chunks):
        rounds = [values_of(3, 41, seed, torch.float64) for seed in range(NUM_ROUNDS)]

        def work(group):
            plan = host_parallel(3, num_chunks=num_chunks)
            execution = HostExecution(
                plan, group, 41, torch.float64, CPU, num_summing=3, divisor=3, keep_sums=True
            )
            means = []
            for one in rounds:
                execution.run(one[group.rank], None, group.phase)
                group.barrier()
                means.append(execution.sums.clone())
                group.barrier()
            return means

        for seed in range(5):
            for means in run_interleaved(3, work, seed):
                for one, mean in zip(rounds, means, strict=True):
                    assert torch.equal(mean, (one[0] + one[1] + one[2]) / 3)

    def test_order_of_the_adds_is_the_schedules(self):
        order = (2, 0, 1)
        up, back = tuple(add(rank, 3) for rank in order), tuple(copy(3, rank) for rank in range(3))
        plan = Schedule("by hand", 3, 1, (up, back), num_hosts=1)
        assert_sums(plan, 5)
        one = [torch.tensor([value]) for value in (1.0, -1e8, 1e8)]
        assert results_of(by_host_memory, plan, [one])[0][0].item() == 0.0  # the 1 is lost in 1e8

    def test_rows_are_summed_block_by_block(self, monkeypatch):
        rows = values_of(4, 103)
        whole = torch.empty(103)
        sum_rows(rows, whole, divisor=4)
        assert torch.equal(whole, (rows[0] + rows[1] + rows[2] + rows[3]) / 4)
        monkeypatch.setattr(execute_host, "BLOCK_BYTES", 40)
        in_blocks = torch.empty(103)
        sum_rows(rows, in_blocks, divisor=4)
        assert torch.equal(in_blocks, whole)
        sum_rows(rows[:1], in_blocks)
        assert torch.equal(in_blocks, rows[0])

    def test_phases_say_what_a_rank_waits_for(self):
        def work(group):
            marked = []

            def phase(name):
                marked.append(name)
                return torch.no_grad()

            execution = HostExecution(host_serial(2), group, 4, torch.float32, CPU, num_summing=1)
            assert execution.sums is None, "they are not kept unless asked for"
            execution.run(torch.ones(4), torch.empty(4), phase)
            return [name for name in marked if name != "wait"]

        assert run_in_process(2, work) == [["d2h", "reduce", "h2d_result"], ["d2h", "h2d_result"]]


UP, BACK = tuple(add(rank, 2, 0, 2) for rank in (0, 1)), tuple(copy(2, rank, 0, 2) for rank in (0, 1))
SINGLE_UP = [tuple(add(rank, 2, c, c + 1) for rank in (0, 1)) for c in (0, 1)]
SINGLE_BACK = [tuple(copy(2, rank, c, c + 1) for rank in (0, 1)) for c in (0, 1)]


def assert_refused(plan, message):
    def work(group):
        HostExecution(plan, group, 10, torch.float32, CPU, num_summing=1)

    with pytest.raises(ScheduleError, match=message):
        run_in_process(plan.world_size, work)


class TestRefused:
    @pytest.mark.parametrize(("steps", "message"), [
        ((UP, (copy(0, 1, 0, 2),), BACK), "only adds into one host's memory and copies"),
        (((copy(0, 2, 0, 2),), BACK), "only adds into one host's memory and copies"),
        ((UP, (add(2, 0, 0, 2),)), "only adds into one host's memory and copies"),
        ((SINGLE_UP[0], SINGLE_UP[1][::-1], BACK), "contributions in different orders"),
        ((UP, *SINGLE_BACK), "do not go back in the steps in which they came"),
        ((*SINGLE_UP, BACK), "do not go back in the steps in which they came"),
        ((*SINGLE_UP, *SINGLE_BACK[::-1]), "do not go back in the steps in which they came"),
        ((UP, ()), "do not go back in the steps in which they came"),
        ((SINGLE_UP[1] + SINGLE_UP[0], BACK), "are not contiguous"),
        ((SINGLE_UP[1] + SINGLE_UP[0], SINGLE_BACK[1] + SINGLE_BACK[0]), "are not contiguous"),
    ])  # fmt: skip
    def test_other_forms_are_refused_with_what_runs_here(self, steps, message):
        assert_refused(Schedule("by hand", 2, 2, steps, num_hosts=1), f"by hand: .*{message}")
        for other_number_of_hosts in (host_serial(4, ranks_per_host=2), ring(4)):
            assert_refused(other_number_of_hosts, "one host")

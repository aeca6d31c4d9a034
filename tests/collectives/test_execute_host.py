"""Sums in shared host memory: chunks, slots, who sums, and that no order of the ranks changes a bit."""

import pytest
import torch

from scaling.collectives import execute_host
from scaling.collectives.execute_host import NUM_SLOTS, HostExecution, sum_rows
from scaling.collectives.host_staging import host_parallel, host_serial
from scaling.collectives.ring import ring
from scaling.collectives.schedule import Schedule
from scaling.errors import ScheduleError
from scaling.process_group import run_in_process
from tests.collectives.conftest import add, copy, values_of
from tests.collectives.run_on_tensors import run_on_tensors

CPU = torch.device("cpu")
NUM_ROUNDS = 3
PLANS = [host_serial, host_parallel]


def run_rounds(plan, rounds, *, num_summing=1, runner=run_in_process, **fields):
    """[rank][round] results, all by one execution."""

    def work(group):
        num_elements, dtype = rounds[0][0].numel(), rounds[0][0].dtype
        execution = HostExecution(
            plan, group, num_elements, dtype, CPU, num_summing=num_summing, divisor=1, **fields
        )
        phase = {"phase": group.phase} if hasattr(group, "phase") else {}
        results = []
        for one in rounds:
            result = torch.full((num_elements,), 77, dtype=dtype)
            execution.run(one[group.rank], result, **phase)
            results.append(result)
        return results

    return runner(len(rounds[0]), work)


def assert_reference(plan, num_elements, **how):
    rounds = [values_of(plan.world_size, num_elements, seed) for seed in range(NUM_ROUNDS)]
    expected = [run_on_tensors(plan, one) for one in rounds]
    for rank, results in enumerate(run_rounds(plan, rounds, **how)):
        for index, result in enumerate(results):
            assert torch.equal(result, expected[index][rank]), (rank, f"round {index}")


@pytest.mark.parametrize("plan_of", PLANS)
class TestChunks:
    @pytest.mark.sampled(4)
    @pytest.mark.parametrize("num_elements", [0, 1, 5, 37, 1027])
    @pytest.mark.parametrize("num_chunks", [1, 3, NUM_SLOTS, 7, 40])
    def test_number_of_chunks_changes_nothing(self, plan_of, num_chunks, num_elements):
        for world_size in (1, 2, 3, 4):
            plan = plan_of(world_size, num_chunks=num_chunks)
            for num_summing in {1, world_size}:
                assert_reference(plan, num_elements, num_summing=num_summing)

    @pytest.mark.sampled(4)
    @pytest.mark.parametrize("num_chunks", [1, 3, 7])
    @pytest.mark.parametrize("world_size", [2, 3, 4])
    def test_order_in_which_ranks_get_on_changes_nothing(
        self, run_interleaved, plan_of, world_size, num_chunks
    ):
        plan = plan_of(world_size, num_chunks=num_chunks)
        for seed in range(6):
            for num_summing in (1, world_size):
                assert_reference(
                    plan,
                    41,
                    num_summing=num_summing,
                    keep_sums=seed % 2 == 1,
                    runner=lambda n, work, seed=seed: run_interleaved(n, seed, work),
                )

    @pytest.mark.parametrize("num_summing", [1, 2, 3, 5, 9])
    def test_number_of_summing_ranks_changes_nothing(self, plan_of, num_summing):
        assert_reference(plan_of(5, num_chunks=3), 100, num_summing=num_summing)

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
        run_rounds(plan_of(3), [inputs])
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
            for means in run_interleaved(3, seed, work):
                for one, mean in zip(rounds, means, strict=True):
                    assert torch.equal(mean, (one[0] + one[1] + one[2]) / 3)

    def test_sums_are_not_kept_unless_asked_for(self):
        def work(group):
            return HostExecution(host_serial(2), group, 4, torch.float32, CPU, num_summing=1).sums

        assert run_in_process(2, work) == [None, None]

    def test_order_of_the_adds_is_the_schedules(self):
        order = (2, 0, 1)
        up, back = tuple(add(rank, 3) for rank in order), tuple(copy(3, rank) for rank in range(3))
        plan = Schedule("by hand", 3, 1, (up, back), num_hosts=1)
        assert_reference(plan, 5)
        one = [torch.tensor([value]) for value in (1.0, -1e8, 1e8)]
        assert run_rounds(plan, [one])[0][0].item() == 0.0  # the 1 is lost in 1e8

    def test_rows_are_summed_block_by_block(self, monkeypatch):
        rows = values_of(4, 103)
        whole = torch.empty(103)
        sum_rows(rows, whole, divisor=4)
        assert torch.equal(whole, (rows[0] + rows[1] + rows[2] + rows[3]) / 4)
        monkeypatch.setattr(execute_host, "BLOCK_BYTES", 40)
        in_blocks = torch.empty(103)
        sum_rows(rows, in_blocks, divisor=4)
        assert torch.equal(in_blocks, whole)

    def test_one_row_is_copied(self):
        out = torch.empty(3)
        sum_rows([torch.tensor([1.0, 2.0, 3.0])], out)
        assert out.tolist() == [1.0, 2.0, 3.0]

    def test_phases_say_what_a_rank_waits_for(self):
        def work(group):
            marked = []

            def phase(name):
                marked.append(name)
                return torch.no_grad()

            execution = HostExecution(host_serial(2), group, 4, torch.float32, CPU, num_summing=1)
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

    @pytest.mark.parametrize("plan", [host_serial(4, ranks_per_host=2), ring(4)])
    def test_other_numbers_of_hosts_are_refused(self, plan):
        assert_refused(plan, "one host")

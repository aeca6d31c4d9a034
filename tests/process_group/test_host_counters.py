"""Counters in shared memory: what one rank tells, the others see, and nobody passes a meeting alone."""

import pytest
import torch

from scaling.process_group import HostCounters, InProcessGroup, run_in_process


def test_told_values_are_seen_by_every_rank_and_belong_to_the_rank_that_told_them():
    def work(group: InProcessGroup) -> list[bool]:
        counters = HostCounters(group)
        counters.tell(10 * (group.rank + 1))
        group.barrier()
        return [counters.reached(value, [rank]) for rank in range(3) for value in (10, 11, 20, 21, 30, 31)]

    expected = [True, False, False, False, False, False] + [True] * 3 + [False] * 3 + [True] * 5 + [False]
    assert run_in_process(3, work) == [expected] * 3


def test_all_ranks_are_asked_unless_some_are_named():
    def work(group: InProcessGroup) -> list[bool]:
        counters = HostCounters(group)
        counters.tell(2 if group.rank < 2 else 1)
        group.barrier()
        return [counters.reached(*asked) for asked in ((1,), (2,), (2, range(2)), (3, []))]

    assert run_in_process(3, work) == [[True, False, True, True]] * 3


def test_counters_start_at_zero_and_are_apart_from_others():
    def work(group: InProcessGroup) -> tuple[bool, bool, bool]:
        first, second = HostCounters(group), HostCounters(group)
        first.tell(5)
        group.barrier()
        return first.reached(5), second.reached(0), second.reached(1)

    assert run_in_process(2, work) == [(True, True, False)] * 2


def test_wait_returns_once_the_named_ranks_have_told():
    def work(group: InProcessGroup) -> bool:
        counters = HostCounters(group)
        buffer = group.shared_host_buffer(1, register=False)
        if group.rank == 0:
            buffer[0] = 1
            counters.tell(1)
        counters.wait(1, iter([0]))  # read again at every question
        return bool(buffer[0])

    assert run_in_process(3, work) == [True] * 3


@pytest.mark.parametrize("world_size", [1, 2, 3, 7])
def test_nobody_leaves_a_meeting_before_all_are_there(world_size):
    def work(group: InProcessGroup) -> list[int]:
        counters = HostCounters(group)
        buffer = group.shared_host_buffer(world_size, register=False)
        seen = []
        for number in range(1, 20):
            buffer[group.rank] = number
            counters.meet()
            seen.append(int(buffer.min()))
            counters.meet()
        return seen

    assert run_in_process(world_size, work) == [list(range(1, 20))] * world_size


def test_own_memory_can_be_given():
    def work(group: InProcessGroup) -> list[int]:
        memory = group.shared_host_buffer(64, register=False)
        counters = HostCounters(group, lambda size: memory[:size])
        counters.tell(group.rank + 3)
        counters.wait(3)
        group.barrier()
        return memory.view(torch.int64)[:2].tolist()

    assert run_in_process(2, work) == [[3, 4]] * 2


def test_meeting_to_which_a_rank_never_comes_is_an_error():
    def work(group: InProcessGroup) -> None:
        counters = HostCounters(group)
        if group.rank == 0:
            counters.meet()

    with pytest.raises(TimeoutError, match="rank 0 waits in vain"):
        run_in_process(2, work, timeout_s=0.05)

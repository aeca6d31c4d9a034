"""The group between threads: what arrives, what is metered, and what happens when a rank fails.

In counters in shared memory the others see what one rank tells, and nobody passes a meeting alone.
"""

import functools
import threading

import pytest
import torch

from scaling.process_group import HostCounters, Message, Meter, in_process, run_in_process

WORLD_SIZES, ONE = (1, 2, 3, 4, 7), torch.empty(1)


def values_of(rank, size=5):
    return torch.arange(size, dtype=torch.float32) + 100 * rank


@pytest.mark.parametrize("world_size", WORLD_SIZES)
class TestCollectives:
    def test_all_reduce_is_the_sum_on_every_rank_in_rank_order(self, world_size):
        terms = [
            torch.tensor([1e8, 1.0, -1e8, 3.0])[(torch.arange(5) + rank) % 4] for rank in range(world_size)
        ]

        def work(group):
            tensor = terms[group.rank].clone()
            group.all_reduce(tensor)
            return tensor

        expected = functools.reduce(torch.add, terms)
        assert all(torch.equal(result, expected) for result in run_in_process(world_size, work))

    def test_broadcast_copies_the_sources_values(self, world_size):
        source = world_size - 1

        def work(group):
            tensor = values_of(group.rank)
            group.broadcast(tensor, source)
            return tensor

        assert all(torch.equal(r, values_of(source)) for r in run_in_process(world_size, work))

    def test_exchange_delivers_each_message_to_its_rank(self, world_size):
        def work(group):
            peers = [rank for rank in range(world_size) if rank != group.rank]
            receives = [Message(peer, torch.empty(5)) for peer in peers]
            group.exchange([Message(peer, values_of(group.rank) + peer) for peer in peers], receives)
            return [one.tensor.tolist() for one in receives]

        for rank, received in enumerate(run_in_process(world_size, work)):
            wanted = [(values_of(peer) + rank).tolist() for peer in range(world_size) if peer != rank]
            assert received == wanted

    def test_barrier_lets_nobody_pass_before_all_are_there(self, world_size):
        arrived: list[int] = []

        def work(group):
            arrived.append(group.rank)
            group.barrier()
            return len(arrived)

        assert run_in_process(world_size, work) == [world_size] * world_size

    def test_shared_buffer_is_zeroed_and_the_same_memory_on_every_rank(self, world_size):
        def work(group):
            buffer = group.shared_host_buffer(world_size, register=False)
            before = int(buffer.sum())
            group.barrier()
            buffer[group.rank] = group.rank + 1
            group.barrier()
            return before, buffer.tolist()

        assert run_in_process(world_size, work) == [(0, list(range(1, world_size + 1)))] * world_size

    def test_peer_memory_is_zeroed_and_what_is_written_before_a_barrier_is_read_behind_it(self, world_size):
        def work(group):
            memory = group.peer_memory(2, torch.float64, torch.device("cpu"))
            before = memory.local.sum().item()
            memory.barrier()
            memory.of((group.rank + 1) % world_size)[0] = group.rank
            memory.local[1] = 10.0 * group.rank
            memory.barrier()
            tens = [memory.of(rank)[1].item() for rank in range(world_size)]
            return before, [memory.local[0].item(), *tens]

        tens = [10.0 * rank for rank in range(world_size)]
        expected = [(0, [(rank - 1) % world_size, *tens]) for rank in range(world_size)]
        assert run_in_process(world_size, work) == expected

    def test_every_device_is_a_peer(self, world_size):
        assert all(run_in_process(world_size, lambda group: group.can_access_peers(torch.device("cpu"))))


class TestWaitUntil:
    def test_returns_once_another_rank_has_written(self):
        def work(group):
            buffer = group.shared_host_buffer(1, register=False)
            if group.rank == 1:
                buffer[0] = 7
            group.wait_until(lambda: int(buffer[0]) > 0)
            return int(buffer[0])

        assert run_in_process(3, work) == [7, 7, 7]

    def test_condition_that_holds_is_asked_once(self):
        asked: list[int] = []
        run_in_process(2, lambda group: group.wait_until(lambda: not asked.append(group.rank)))
        assert sorted(asked) == [0, 1]


class TestMessages:
    def test_messages_between_two_ranks_keep_their_order(self):
        def work(group):
            tensors = torch.arange(4.0) if group.rank == 0 else torch.zeros(4)
            for tensor in tensors:
                peers = [[Message(1 - group.rank, tensor)], []]
                group.exchange(*(peers if group.rank == 0 else reversed(peers)))
            return tensors.tolist()

        assert run_in_process(2, work)[1] == [0.0, 1.0, 2.0, 3.0]

    def test_sent_slice_may_be_changed_before_it_is_received(self):
        """Many messages out of one buffer, as a schedule sends its chunks."""

        def work(group):
            buffer = torch.arange(6.0) + 10 * group.rank
            received = torch.empty(6)
            if group.rank == 0:
                group.exchange([Message(1, buffer[i : i + 2]) for i in (0, 2, 4)], [])
                buffer.fill_(-1)
            group.barrier()
            if group.rank == 1:
                group.exchange([], [Message(0, received[i : i + 2]) for i in (4, 2, 0)])
            return received.tolist()

        assert run_in_process(2, work)[1] == [4.0, 5.0, 2.0, 3.0, 0.0, 1.0]

    @pytest.mark.parametrize("source", range(3))
    def test_source_may_change_what_it_has_broadcast(self, source):
        def work(group):
            buffer = torch.full((4,), float(group.rank))
            group.broadcast(buffer[1:3], source)
            received = buffer.tolist()
            buffer.fill_(-1)
            return received

        for _ in range(5):  # which rank comes first is not the same each time
            for rank, received in enumerate(run_in_process(3, work)):
                assert received == [rank, source, source, rank]

    @pytest.mark.parametrize("expected", [torch.empty(3), torch.empty(2, dtype=torch.float64)])
    def test_message_of_another_shape_or_type_is_an_error(self, expected):
        def work(group):
            if group.rank == 0:
                group.exchange([Message(1, torch.ones(2))], [])
            else:
                group.exchange([], [Message(0, expected)])

        said = r"rank 1 expects \(.*of rank 0, and gets \(2,\) torch.float32"
        with pytest.raises(RuntimeError, match=said):
            run_in_process(2, work)


class TestFailure:
    @pytest.mark.parametrize(("wait", "said"), [
        (lambda group: group.wait_until(lambda: False), "rank 1 waits in vain for another's host memory"),
        (lambda group: group.exchange([], [Message(0, ONE)]), "rank 1 waits in vain for a message of rank 0"),
    ])  # fmt: skip
    def test_what_never_comes_is_an_error_naming_the_rank(self, wait, said):
        with pytest.raises(TimeoutError, match=said):
            run_in_process(2, lambda group: wait(group) if group.rank == 1 else None, timeout_s=0.05)

    @pytest.mark.parametrize("wait", [
        lambda group: group.barrier(),
        lambda group: group.exchange([], [Message(1, torch.empty(1))]),
        lambda group: group.wait_until(lambda: False),
        lambda group: group.all_reduce(torch.ones(1)),
    ])  # fmt: skip
    def test_failure_of_one_rank_is_raised_and_the_others_are_released(self, wait):
        released = []

        def work(group):
            if group.rank == 1:
                raise KeyError("rank 1")
            try:
                wait(group)
            except threading.BrokenBarrierError:
                released.append(group.rank)
                raise

        with pytest.raises(KeyError, match="rank 1"):
            run_in_process(3, work, timeout_s=threading.TIMEOUT_MAX)
        assert sorted(released) == [0, 2]

    def test_rank_that_computes_without_end_is_an_error_of_those_that_have_not_begun(self, monkeypatch):
        monkeypatch.setattr(in_process, "FIRST_TURN_S", 0.05)
        end = threading.Event()
        try:
            with pytest.raises(TimeoutError, match=r"rank \d waits in vain for its first turn"):
                run_in_process(2, lambda group: end.wait(), timeout_s=0.05)
        finally:
            end.set()

    def test_world_is_new_after_a_failure(self):
        with pytest.raises(ZeroDivisionError):
            run_in_process(2, lambda group: 1 / 0)
        assert run_in_process(2, lambda group: group.rank) == [0, 1]


def metered(world_size, act):
    """(bytes, messages) that each rank has sent when it has done `act`."""

    def work(group):
        act(group)
        return group.meter.bytes_sent, group.meter.messages_sent

    return run_in_process(world_size, work)


class TestMeter:
    def test_exchange_counts_what_is_sent_and_not_what_is_received(self):
        def act(group):
            if group.rank == 0:
                group.exchange([Message(1, torch.ones(3)), Message(2, torch.ones(5))], [])
            else:
                group.exchange([], [Message(0, torch.empty(3 if group.rank == 1 else 5))])

        assert metered(3, act) == [(32, 2), (0, 0), (0, 0)]

    def test_empty_messages_barriers_and_shared_memory_are_not_counted(self):
        def act(group):
            peer = 1 - group.rank
            group.exchange([Message(peer, torch.empty(0))], [Message(peer, torch.empty(0))])
            group.all_reduce(torch.empty(0))
            group.broadcast(torch.empty(0))
            group.barrier()
            group.shared_host_buffer(8, register=False)[group.rank] = 1
            group.peer_memory(2, torch.float32, torch.device("cpu")).barrier()

        assert metered(2, act) == [(0, 0)] * 2

    @pytest.mark.parametrize("sent", [[(0, 0)], [(48, 2)] * 2, [(64, 4)] * 3, [(72, 6)] * 4])
    def test_all_reduce_counts_the_traffic_of_a_ring(self, sent):
        assert metered(len(sent), lambda group: group.all_reduce(torch.ones(12))) == sent

    def test_all_reduce_of_host_memory_sums_and_counts_the_same(self):
        tensors = [torch.full((12,), float(rank)) for rank in range(3)]
        assert metered(3, lambda group: group.all_reduce_host(tensors[group.rank])) == [(64, 4)] * 3
        assert [one.tolist() for one in tensors] == [[3.0] * 12] * 3

    def test_broadcast_counts_one_message_to_each_other_rank_at_the_source(self):
        found = metered(3, lambda group: group.broadcast(torch.ones(12), source=1))
        assert found == [(0, 0), (96, 2), (0, 0)]

    def test_reset_starts_again_at_zero(self):
        meter = Meter()
        meter.count(10, 3)
        meter.count(5)
        assert (meter.bytes_sent, meter.messages_sent) == (15, 4)
        meter.reset()
        assert (meter.bytes_sent, meter.messages_sent) == (0, 0)


@pytest.mark.parametrize(
    ("told", "asked", "reached"),
    [
        ([10, 20, 30], [(v, [rank]) for rank in range(3) for v in (10, 11, 20, 21, 30, 31)],
         [True] + [False] * 5 + [True] * 3 + [False] * 3 + [True] * 5 + [False]),
        # All are asked unless some are named.
        ([2, 2, 1], [(1,), (2,), (2, range(2)), (3, [])], [True, False, True, True]),
    ],
)  # fmt: skip
def test_told_values_are_seen_by_every_rank_and_belong_to_the_rank_that_told_them(told, asked, reached):
    def work(group):
        counters, others = HostCounters(group), HostCounters(group)
        counters.tell(told[group.rank])
        group.barrier()
        assert (others.reached(0), others.reached(1)) == (True, False)  # which start at zero
        return [counters.reached(*one) for one in asked]

    assert run_in_process(3, work) == [reached] * 3


def test_wait_returns_once_the_named_ranks_have_told():
    def work(group):
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
    def work(group):
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


def test_meeting_to_which_a_rank_never_comes_is_an_error():
    def work(group):
        counters = HostCounters(group)
        if group.rank == 0:
            counters.meet()

    with pytest.raises(TimeoutError, match="rank 0 waits in vain"):
        run_in_process(2, work, timeout_s=0.05)

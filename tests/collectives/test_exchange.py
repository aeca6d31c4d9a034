"""The way of the bytes is decided once; the result and what is metered are the same on each."""

import pytest
import torch

from scaling.collectives.composition import split_at_reduction
from scaling.collectives.exchange import RankExchange
from scaling.collectives.listing import schedule
from scaling.collectives.owners import star
from scaling.collectives.ring import ring
from scaling.errors import LaunchError, ScheduleError
from scaling.process_group import run_in_process
from tests.collectives.conftest import values_of
from tests.collectives.run_on_tensors import run_on_tensors

CPU = torch.device("cpu")
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

    def test_peer_memory_that_cannot_be_had_is_an_error(self, monkeypatch):
        without_peer_memory(monkeypatch)
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

    def test_graph_is_refused_without_cuda(self):
        with pytest.raises(ScheduleError, match="ring: captured needs CUDA, the ranks compute on cpu"):
            run_in_process(2, lambda group: exchange_of(group, captured=True))

    @pytest.mark.parametrize("transport", TRANSPORTS)
    def test_schedules_over_host_memory_are_refused(self, transport):
        def work(group):
            exchange_of(group, plan=schedule("host_serial", 2), transport=transport)

        with pytest.raises(ScheduleError, match=r"host_serial: .* between ranks only"):
            run_in_process(2, work)


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

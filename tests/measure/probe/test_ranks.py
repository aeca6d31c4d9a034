"""How the time of a case is spent, on a clock that only operations move; and what the operations do."""

from types import SimpleNamespace

import pytest
import torch

from scaling.errors import LaunchError
from scaling.measure.probe import ranks as module
from scaling.measure.probe.cases import COPY_SIZES, MAX_SAMPLES, MIN_SAMPLES, ProbeCase
from scaling.measure.probe.ranks import Operations, Prober
from scaling.process_group import run_in_process

COPIES = ProbeCase("host_copy", (0,), COPY_SIZES)


class OneRank:
    """A group of one rank."""

    rank, world_size = 0, 1

    def share(self, value, source=0):
        return value

    def largest(self, value):
        return value

    def barrier(self):
        pass


class Bench:
    """A prober whose samples take what `once_s` says of (size, how many samples of it there were before)."""

    def __init__(self, monkeypatch, once_s):
        self.now_s, self.rows, self.asked = 0.0, [], []
        monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: self.now_s))
        self.prober = Prober(
            OneRank(), torch.device("cpu"), torch.get_num_threads(), self.rows.append, host_only=False
        )
        self.prober._prepared = lambda case, size: (self.asked.append((size, [])), ("run", ""))[1]

        def sample(case, run, repeats):
            size, before = self.asked[-1]
            seconds = once_s(size, len(before))
            before.append(repeats)
            self.now_s += repeats * seconds
            return seconds

        self.prober._sample = sample

    def measure(self, budget_s, case=COPIES):
        self.prober._measure(case, list(case.sizes_bytes), budget_s)
        return [row["sample"] for row in self.rows]


def num_samples(samples):
    return {size: sum(one["num_bytes"] == size for one in samples) for size in COPY_SIZES}


def test_what_the_first_operation_sets_up_costs_no_samples_and_without_time_there_are_few(monkeypatch):
    bench = Bench(monkeypatch, lambda size, before: 1e-4 if (size, before) != (COPY_SIZES[0], 0) else 5.0)
    assert set(num_samples(bench.measure(budget_s=2.0)).values()) == {MAX_SAMPLES}
    bench = Bench(monkeypatch, lambda size, before: 1.0)
    assert list(num_samples(bench.measure(budget_s=0.0)).values()) == [MIN_SAMPLES, MIN_SAMPLES, 0, 0]


def test_samples_are_as_long_as_several_take_in_a_row_whatever_pauses(monkeypatch):
    for paused in (1, 2):
        bench = Bench(monkeypatch, lambda size, before, at=paused: 20e-6 if before != at else 50e-3)
        assert {one["repeats"] for one in bench.measure(budget_s=10.0)} == {100}
    # One alone waits for its start, which those in a row hide.
    bench = Bench(monkeypatch, lambda size, before: 200e-6 if before == 1 else 40e-6)
    assert {one["repeats"] for one in bench.measure(budget_s=10.0)} == {50}


@pytest.mark.parametrize("rank", [0, 1])
def test_only_rank_0_hands_out_rows(rank):
    rows = []
    group = OneRank()
    group.rank = rank
    prober = Prober(group, torch.device("cpu"), torch.get_num_threads(), rows.append, host_only=True)
    prober._record(COPIES, 4096, 1, 1e-3)
    assert [row["sample"]["launch"] for row in rows] == ["host_only"] * (rank == 0)


CPU = torch.device("cpu")
KIB = 1024


def run_all(case, world_size=3):
    """Runs the case once on every rank: (took part?, bytes sent, buffers) of each."""

    def rank(group):
        operations = Operations(group, CPU)
        run = operations.prepare(case, KIB)
        for name, buffer in operations._buffers.items():
            buffer.fill_(group.rank + 1 if "other" not in name else 0)
        if run is not None:
            run()
        first = {name: float(buffer[0]) for name, buffer in operations._buffers.items()}
        assert {buffer.nbytes for buffer in operations._buffers.values()} <= {KIB}
        return run is not None, group.meter.bytes_sent, first

    return run_in_process(world_size, rank)


@pytest.mark.parametrize("operation", ["send", "swap"])
def test_pair_exchanges_and_the_third_rank_waits(operation):
    (takes_0, sent_0, at_0), (takes_1, _, _), (takes_2, sent_2, at_2) = run_all(
        ProbeCase(operation, (0, 2), (KIB,))
    )
    assert (takes_0, takes_1, takes_2, at_2["device_other"]) == (True, False, True, 1.0)
    assert at_0["device_other"] == (3.0 if operation == "swap" else 0.0)
    assert (sent_0, sent_2) == (KIB, KIB if operation == "swap" else 0)


def test_shift_brings_each_ranks_bytes_to_the_next_and_all_reduce_sums():
    results = run_all(ProbeCase("shift", (0, 1, 2), (KIB,)))
    assert [first["device_other"] for *_, first in results] == [3.0, 1.0, 2.0]
    assert [first["device"] for *_, first in run_all(ProbeCase("all_reduce", (0, 1, 2), (KIB,)))] == [6.0] * 3


def test_all_reduce_by_mpi_goes_over_the_group_that_mpi_carries():
    def rank(group):
        carried = []

        class Carried:
            def all_reduce(self, tensor):
                carried.append(tensor.nbytes)
                group.all_reduce(tensor)

        group.over = {"mpi": Carried()}.__getitem__
        operations = Operations(group, CPU)
        run = operations.prepare(ProbeCase("mpi_all_reduce", (0, 1), (KIB,)), KIB)
        (buffer,) = operations._buffers.values()
        buffer.fill_(group.rank + 1)
        run()
        return carried, float(buffer[0])

    assert run_in_process(2, rank) == [([KIB], 3.0)] * 2


def test_all_reduce_by_mpi_is_an_error_that_says_what_the_launch_lacks():
    with pytest.raises(LaunchError, match="mpi cannot be used by these ranks: it needs mpi4py"):
        run_in_process(
            2, lambda group: Operations(group, CPU).prepare(ProbeCase("mpi_all_reduce", (0, 1), ()), 4)
        )


@pytest.mark.parametrize("operation", ["host_copy", "host_sum"])
def test_copies_and_sums_stay_on_the_rank(operation):
    results = run_all(ProbeCase(operation, (0,), (KIB,)))
    assert [takes_part for takes_part, *_ in results] == [True, False, False]
    assert results[0][2] == {"host": 1.0, "host_other": 1.0}
    assert all(sent == 0 for _, sent, _ in results)


def test_peer_copy_writes_into_the_memory_of_the_other():
    def rank(group):
        operations = Operations(group, CPU)
        run = operations.prepare(ProbeCase("peer_copy", (2, 0), (KIB,)), KIB)
        operations._peer_memory.local.fill_(group.rank)
        group.barrier()
        if run is not None:
            run()
        group.barrier()
        return run is not None, float(operations._peer_memory.local[0])

    assert run_in_process(3, rank) == [(False, 2.0), (False, 1.0), (True, 2.0)]


def test_smaller_size_uses_the_buffer_that_is_there():
    def rank(group):
        operations = Operations(group, CPU)
        for size in (KIB, 4 * KIB, KIB):
            operations.prepare(ProbeCase("host_copy", (0,), (KIB, 4 * KIB)), size)
        return operations._buffers["host"].nbytes

    assert run_in_process(1, rank) == [4 * KIB]

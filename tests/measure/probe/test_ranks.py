"""How the time of a case is spent: on a clock that only operations move."""

from types import SimpleNamespace

import pytest
import torch

from scaling.measure.probe import ranks as module
from scaling.measure.probe.cases import COPY_SIZES, MAX_SAMPLES, MIN_SAMPLES, ProbeCase
from scaling.measure.probe.ranks import Prober

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


def test_what_the_first_operation_sets_up_costs_the_case_no_samples(monkeypatch):
    bench = Bench(monkeypatch, lambda size, before: 1e-4 if (size, before) != (COPY_SIZES[0], 0) else 5.0)
    assert set(num_samples(bench.measure(budget_s=2.0)).values()) == {MAX_SAMPLES}


def test_a_pause_while_it_is_found_out_how_many_make_a_sample_does_not_decide(monkeypatch):
    for paused in (1, 2):
        bench = Bench(monkeypatch, lambda size, before, at=paused: 20e-6 if before != at else 50e-3)
        assert {one["repeats"] for one in bench.measure(budget_s=10.0)} == {100}


def test_samples_are_as_long_as_several_in_a_row_take_not_as_one_alone(monkeypatch):
    """One alone waits for its start, which those in a row hide."""
    bench = Bench(monkeypatch, lambda size, before: 200e-6 if before == 1 else 40e-6)
    assert {one["repeats"] for one in bench.measure(budget_s=10.0)} == {50}


def test_without_time_two_sizes_have_the_least_of_samples(monkeypatch):
    bench = Bench(monkeypatch, lambda size, before: 1.0)
    assert list(num_samples(bench.measure(budget_s=0.0)).values()) == [MIN_SAMPLES, MIN_SAMPLES, 0, 0]


@pytest.mark.parametrize("rank", [0, 1])
def test_only_rank_0_hands_out_rows(rank):
    rows = []
    group = OneRank()
    group.rank = rank
    prober = Prober(group, torch.device("cpu"), torch.get_num_threads(), rows.append, host_only=True)
    prober._record(COPIES, 4096, 1, 1e-3)
    assert [row["sample"]["launch"] for row in rows] == ["host_only"] * (rank == 0)

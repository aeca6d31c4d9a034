"""How long warm-up and measurement last: the stated rule, on a clock that the test moves."""

from types import SimpleNamespace

import pytest

from scaling.measure.phases import PhaseRecorder
from scaling.training import timing
from scaling.training.timing import Extent, measure_iterations


class FakeClock:
    """A clock for the recorder that moves when the test says so."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.num_settled = 0

    def mark(self) -> float:
        return self.now_s

    def settle(self) -> None:
        self.num_settled += 1

    def seconds(self, start: float, stop: float) -> float:
        return stop - start


class Slowest:
    """The control channel of a rank whose slowest peer takes `factor` times as long."""

    def __init__(self, factor: float = 1.0) -> None:
        self.factor = factor
        self.asked: list[float] = []

    def largest(self, value: float) -> float:
        self.asked.append(value)
        return value * self.factor


@pytest.fixture
def clock(monkeypatch) -> FakeClock:
    """One fake clock for the recorder and for the host."""
    fake = FakeClock()
    monkeypatch.setattr(timing, "time", SimpleNamespace(perf_counter=fake.mark))
    return fake


def measure(clock: FakeClock, extent: Extent, seconds: list[float] | float, agreement: Slowest | None = None):
    """Runs iterations that take `seconds` each; returns the rows."""
    taken = iter(seconds) if isinstance(seconds, list) else None

    def iterate(phase) -> None:
        with phase("forward"):
            clock.now_s += next(taken) if taken else seconds

    return measure_iterations(iterate, PhaseRecorder(clock), extent, agreement or Slowest())


def counts(rows) -> tuple[int, int]:
    """(warm-up iterations, measured ones)."""
    return sum(row["warmup"] for row in rows), sum(not row["warmup"] for row in rows)


class TestExtent:
    def test_warmup_ends_after_its_iterations_without_a_budget(self):
        extent = Extent(warmup=3, iterations=5)
        assert [extent.warmup_is_over(n, 1e9) for n in (1, 2, 3, 4)] == [False, False, True, True]

    def test_warmup_ends_after_a_quarter_of_the_budget(self):
        extent = Extent(warmup=100, iterations=5, max_seconds=8)
        assert not extent.warmup_is_over(5, 1.99)
        assert extent.warmup_is_over(5, 2.0)

    def test_warmup_is_one_iteration_at_least(self):
        assert not Extent(warmup=10, iterations=5, max_seconds=1).warmup_is_over(0, 100)

    def test_all_iterations_are_measured_without_a_budget(self):
        assert Extent(3, 50).num_measured(elapsed_s=1e9, last_s=1e9) == 50

    def test_as_many_are_measured_as_fit_the_rest_of_the_budget(self):
        assert Extent(3, 50, max_seconds=10).num_measured(elapsed_s=2, last_s=0.5) == 16

    def test_never_more_than_asked_for(self):
        assert Extent(3, 50, max_seconds=10).num_measured(elapsed_s=0, last_s=0) == 50

    @pytest.mark.parametrize("elapsed_s", [9.0, 10.0, 1000.0])
    def test_never_fewer_than_three(self, elapsed_s):
        assert Extent(3, 50, max_seconds=10).num_measured(elapsed_s, last_s=5) == 3

    def test_fewer_than_three_when_fewer_are_asked_for(self):
        assert Extent(3, 2, max_seconds=10).num_measured(elapsed_s=100, last_s=5) == 2


class TestMeasureIterations:
    def test_rows_are_numbered_and_say_which_are_warmup(self, clock):
        rows = measure(clock, Extent(2, 3), [1.0, 2.0, 3.0, 4.0, 5.0])
        assert rows == [
            {"iteration": n, "warmup": n < 2, "step_s": n + 1.0, "forward_s": n + 1.0} for n in range(5)
        ]

    def test_budget_is_kept_at_a_steady_pace(self, clock):
        rows = measure(clock, Extent(10, 50, max_seconds=20), 0.5)
        # A quarter of 20 s is 10 iterations; 15 s are left.
        assert counts(rows) == (10, 30)
        assert clock.now_s <= 20

    def test_slow_iterations_are_one_warmup_and_three_measured(self, clock):
        assert counts(measure(clock, Extent(10, 50, max_seconds=2), 10.0)) == (1, 3)

    def test_pace_is_that_of_the_last_warmup_iteration(self, clock):
        # The first iteration sets things up; the second, at the steady pace, tells how many fit.
        rows = measure(clock, Extent(2, 50, max_seconds=20), [4.0, *[1.0] * 60])
        assert counts(rows) == (2, 15)

    def test_ranks_agree_on_the_slowest_ranks_time(self, clock):
        agreement = Slowest(factor=2)
        rows = measure(clock, Extent(10, 50, max_seconds=20), 0.5, agreement)
        # Elsewhere an iteration takes 1 s: 5 of them are a quarter of the budget, and 15 more fit.
        assert counts(rows) == (5, 15)
        assert agreement.asked == [0.5] * 5

    def test_nothing_is_exchanged_or_waited_for_while_measuring(self, clock):
        agreement = Slowest()
        measure(clock, Extent(4, 20), 1.0, agreement)
        assert len(agreement.asked) == 4
        assert clock.num_settled == 4 + 1

    def test_warmup_of_zero_is_still_one(self, clock):
        assert counts(measure(clock, Extent(0, 2), 1.0)) == (1, 2)

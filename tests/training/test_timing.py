"""How long each part of a measurement lasts: the stated rules, on a clock that the test moves."""

from collections.abc import Sequence
from types import SimpleNamespace

import pytest

from scaling.measure.clock import Anchor
from scaling.measure.phases import PhaseRecorder
from scaling.training import timing
from scaling.training.timing import PROFILED_SETTLING, Extent, Measurement


class FakeClock:
    """A clock for the recorder and the host that moves when the test says so."""

    chain_s = 0.0
    is_asynchronous = False

    def __init__(self) -> None:
        self.now_s, self.num_anchors = 0.0, 0

    def mark(self) -> float:
        return self.now_s

    def settle(self) -> None: ...

    def seconds(self, start: float, stop: float) -> float:
        return stop - start

    def anchor(self) -> Anchor:
        self.num_anchors += 1
        return Anchor(self.now_s, self.now_s, 0.0)

    def reuse(self, marks) -> None: ...


class Slowest:
    """The control channel of a rank whose slowest peer takes `factor` times as long."""

    def __init__(self, factor: float) -> None:
        self.factor, self.num_asked = factor, 0

    def largest(self, value: float) -> float:
        return self.largest_of([value])[0]

    def largest_of(self, values: Sequence[float]) -> list[float]:
        self.num_asked += 1
        return [value * self.factor for value in values]


@pytest.fixture
def clock(monkeypatch) -> FakeClock:
    """One fake clock for the recorder and for the host."""
    fake = FakeClock()
    monkeypatch.setattr(timing, "time", SimpleNamespace(perf_counter=fake.mark))
    return fake


def steady(_: int) -> float:
    return 1.0


def noisy(number: int) -> float:
    """10% about 1 s, without a trend: its median is not known to 1% from a few."""
    return 1 + 0.1 * (number * 7 % 11 - 5) / 5


def improving(number: int) -> float:
    return 1 + 1000 / (number + 1)


def measurement(clock: FakeClock, extent: Extent, seconds=steady, factor: float = 1.0) -> Measurement:
    """Of iterations of which the n-th takes seconds(n) here, and `factor` times as long elsewhere."""
    done = iter(range(10**6))

    def iterate(marks) -> None:
        with marks.phase("forward"):
            clock.now_s += seconds(next(done))

    return Measurement(iterate, PhaseRecorder(clock), extent, Slowest(factor))


def warmed_up(clock: FakeClock, extent: Extent, **options) -> Measurement:
    made = measurement(clock, extent, **options)
    made.warm_up()
    return made


def measured(clock: FakeClock, extent: Extent, **options) -> Measurement:
    made = warmed_up(clock, extent, **options)
    made.measure()
    return made


def counts(made: Measurement) -> tuple[int, int]:
    """(warm-up iterations, unprofiled ones)."""
    return sum(row["warmup"] for row in made.rows), sum(not row["warmup"] for row in made.rows)


class TestWarmUp:
    @pytest.mark.parametrize(
        ("extent", "seconds", "number", "end"),
        [
            (Extent(3, 5), steady, 10, "no trend in the last 10 iterations"),
            (Extent(17, 5), steady, 17, "no trend in the last 10 iterations"),  # its iterations at least
            (Extent(4, 5), improving, 40, "a trend was left after 40 iterations"),  # ten times its own
            (Extent(100, 5, max_seconds=20), steady, 5, "a quarter of max_seconds is used"),
        ],
    )
    def test_it_ends_when_there_is_no_trend_or_it_is_long(self, clock, extent, seconds, number, end):
        made = warmed_up(clock, extent, seconds=seconds)
        assert (counts(made), made.warmup_end) == ((number, 0), end)

    @pytest.mark.parametrize("extent", [Extent(0, 2), Extent(10, 2, max_seconds=1e-6)])
    def test_it_is_one_iteration_at_least(self, clock, extent):
        assert counts(warmed_up(clock, extent, seconds=improving))[0] >= 1

    def test_it_goes_by_the_slowest_rank(self, clock):
        made = warmed_up(clock, Extent(100, 5, max_seconds=20), seconds=lambda _: 0.5, factor=2)
        assert (counts(made), made.seconds["warmup"]) == ((5, 0), 5)


class TestUnsplitIterations:
    @pytest.mark.parametrize(
        ("extent", "seconds", "number", "reason"),
        [
            *((Extent(3, 50), seconds, 50, "iterations") for seconds in (steady, noisy, improving)),
            (Extent(3, 1000, precision_goal=0.01), steady, 20, "precision"),
            (Extent(3, 35, precision_goal=1e-6), noisy, 35, "iterations"),  # a goal that is not reached
            # A known median is not enough before the least time.
            (Extent(3, 1000, precision_goal=0.01, min_seconds=55), steady, 60, "precision"),
        ],
    )
    def test_they_end_when_the_median_is_known_or_all_are_done(self, clock, extent, seconds, number, reason):
        made = measured(clock, extent, seconds=seconds)
        assert (counts(made)[1], made.stop_reason) == (number, reason)

    def test_coarser_goal_is_reached_sooner(self, clock):
        fine = measured(clock, Extent(3, 1000, precision_goal=0.02), seconds=noisy)
        coarse = measured(clock, Extent(3, 1000, precision_goal=0.1), seconds=noisy)
        assert counts(coarse)[1] < counts(fine)[1] < 1000
        assert coarse.stop_reason == fine.stop_reason == "precision"

    @pytest.mark.parametrize(("own_s", "factor"), [(1.0, 1), (0.5, 2)])
    def test_budget_is_for_warm_up_and_them_together_on_the_slowest_rank(self, clock, own_s, factor):
        made = measured(clock, Extent(100, 1000, max_seconds=40), seconds=lambda _: own_s, factor=factor)
        assert (counts(made), made.stop_reason) == ((10, 30), "seconds")
        assert made.seconds == {"warmup": 10, "unprofiled": 30}
        assert {row["step_s"] for row in made.rows} == {own_s}  # samples are the rank's own

    @pytest.mark.parametrize("precision_goal", [None, 1e-6])
    def test_budget_is_not_overrun_by_a_block(self, clock, precision_goal):
        made = measured(clock, Extent(100, 1000, precision_goal, min_seconds=1000, max_seconds=47.5))
        assert (made.stop_reason, sum(made.seconds.values())) == ("seconds", 47)

    @pytest.mark.parametrize("iterations", [1, 2, 3, 50])
    def test_they_are_three_at_least_where_so_many_are_asked_for(self, clock, iterations):
        made = measured(clock, Extent(10, iterations, 0.01, max_seconds=0.1))
        assert counts(made) == (1, min(iterations, 3))

    def test_pace_is_that_of_the_last_warm_up_iteration(self, clock):
        """The first one sets things up: it does not tell how many fit."""
        made = measured(clock, Extent(1, 1000, max_seconds=100), seconds=lambda n: 1.0 if n else 20.0)
        assert counts(made)[1] == 100 - 20 - (counts(made)[0] - 1)


WITH_GOAL = Extent(3, 1000, precision_goal=0.01)
WITH_BUDGET = Extent(3, 1000, precision_goal=0.01, max_seconds=10.25)


class TestBlocks:
    def test_ranks_compare_notes_between_blocks_alone(self, clock):
        made = warmed_up(clock, Extent(3, 100, precision_goal=1e-6))
        asked, settled = made.agreement.num_asked, clock.num_anchors
        made.measure()
        # The start, and a steady time is known at once: two blocks of ten, each with its times and length.
        assert made.agreement.num_asked - asked == 1 + 2 * 2
        assert clock.num_anchors - settled == 2

    @pytest.mark.parametrize(
        ("extent", "num_done", "elapsed_s", "pace_s", "size"),
        [
            (Extent(3, 50), 20, 1e9, 1e9, 30),  # all that is left without a goal
            # A tenth of a second at least.
            *((WITH_GOAL, 20, 0, pace_s, 10) for pace_s in (1.0, 0.01)),
            *((WITH_GOAL, 20, 0, 0.001, 100), (WITH_GOAL, 20, 0, 1e-9, 980)),
            # What fits the budget beyond the first three.
            *((WITH_BUDGET, 20, elapsed_s, 0.1, size) for elapsed_s, size in ((9.9, 3), (0.0, 10))),
            *((WITH_BUDGET, num_done, 12, 0.1, size) for num_done, size in ((0, 3), (2, 1), (5, 1))),
        ],
    )
    def test_block_is_as_long_as_the_goal_and_the_budget_say(self, extent, num_done, elapsed_s, pace_s, size):
        assert extent.block(num_done, elapsed_s, pace_s) == size


class TestSplitIterations:
    def split(self, clock: FakeClock, extent: Extent, **options) -> Measurement:
        made = measured(clock, extent, **options)
        del made.rows[:]
        made.profile(settle_each=False)
        return made

    def test_first_ones_only_settle(self, clock):
        made = self.split(clock, Extent(3, 5, profiled_iterations=7))
        assert [row["warmup"] for row in made.rows] == [True] * PROFILED_SETTLING + [False] * 7
        assert {row["profiled"] for row in made.rows} == {True}
        assert made.seconds["profiled"] == PROFILED_SETTLING + 7

    @pytest.mark.parametrize(
        ("asked", "max_seconds", "factor", "kept"),
        [
            *((20, None, 1, 20), (20, 1000, 1, 20), (20, 40, 1, 20), (20, 20, 1, 10), (20, 1, 1, 3)),
            (20, 40, 2, 10),  # by the slowest rank
            (2, 1, 1, 2),  # a study may ask for fewer than three
        ],
    )
    def test_half_the_budget_has_to_hold_them(self, clock, asked, max_seconds, factor, kept):
        extent = Extent(3, 5, max_seconds=max_seconds, profiled_iterations=asked)
        made = self.split(clock, extent, factor=factor)
        assert counts(made) == (PROFILED_SETTLING, kept)
        assert made.seconds["profiled"] == factor * (PROFILED_SETTLING + kept)

    @pytest.mark.parametrize(("settle_each", "looks"), [(False, 2), (True, PROFILED_SETTLING + 7 + 2)])
    def test_marks_may_be_taken_after_each(self, clock, settle_each, looks):
        made = measured(clock, Extent(3, 5, profiled_iterations=7))
        before = clock.num_anchors
        made.profile(settle_each=settle_each)
        assert clock.num_anchors - before == looks
        assert len([row for row in made.rows if row["profiled"]]) == PROFILED_SETTLING + 7


def test_rows_count_on_over_the_parts_and_profiled_ones_have_spans(clock):
    made = measurement(clock, Extent(3, 5, profiled_iterations=4))
    made.host_offset_s = 500.0
    made.warm_up()
    made.measure()
    made.profile(settle_each=False)
    assert [row["iteration"] for row in made.rows] == list(range(10 + 5 + PROFILED_SETTLING + 4))
    usual = {"warmup": False, "profiled": False, "step_s": 1.0}
    assert made.rows[0] == {**usual, "iteration": 0, "warmup": True, "start_s": 500.0}
    assert made.rows[12] == {**usual, "iteration": 12, "start_s": 512.0}
    spans = {"profiled": True, "spans": [["forward", "main", 0.0, 1.0]]}
    assert made.rows[-1] == {**usual, "iteration": 20, "start_s": 520.0, **spans}

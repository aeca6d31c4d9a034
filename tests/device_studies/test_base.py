"""How long a point is measured, and when it is left out."""

import pytest

from scaling.device_studies.base import SHORTEST_SAMPLE_S, Budget, LeftOutError, steps
from tests.device_studies.conftest import CPU


def test_samples_are_seconds_of_one_call(takes):
    samples = Budget(seconds=1.0).samples(takes(0.02), CPU)
    assert samples == pytest.approx([0.02] * len(samples))
    assert 50 <= len(samples) <= 51  # a second's worth


def test_short_calls_are_measured_together_and_divided(takes):
    step = takes(1e-5)
    samples = Budget(seconds=0.1).samples(step, CPU)
    assert samples == pytest.approx([1e-5] * len(samples))
    assert step.calls > 90 * len(samples)  # about a hundred calls make a sample of a millisecond
    assert len(samples) == pytest.approx(0.1 / SHORTEST_SAMPLE_S, abs=2)


def test_caller_says_how_many_calls_a_sample_covers(takes):
    step = takes(0.01)
    assert len(Budget(seconds=0.5).samples(step, CPU, per_sample=10)) == pytest.approx(6, abs=1)
    assert step.calls >= 53


def test_samples_are_neither_fewer_nor_more_than_asked(takes):
    assert len(Budget(seconds=0.1, min_samples=6, limit_s=10).samples(takes(1.0), CPU)) == 6
    assert len(Budget(seconds=10.0, max_samples=20).samples(takes(0.01), CPU)) == 20


@pytest.mark.parametrize(("seconds", "first", "message", "calls"), [
    (2.0, None, r"a step took 2 s, so that 6 samples would pass the limit of 10 s", 3),
    (4.0, None, "a step took 4 s", 2),  # beyond doubt
    (0.01, 100.0, r"took 1e\+02 s|took 100 s", 1),
], ids=["three calls", "the second beyond doubt", "the first alone"])  # fmt: skip
def test_calls_that_would_pass_the_limit_are_left_out_with_the_numbers(takes, seconds, first, message, calls):
    step = takes(seconds, first=first)
    with pytest.raises(LeftOutError, match=message):
        Budget(seconds=1.0, limit_s=10.0).samples(step, CPU)
    assert step.calls == calls


def test_one_slow_call_is_forgiven_since_others_may_have_worked(clock):
    calls = []

    def step() -> None:
        calls.append(0)
        clock.now += 2.0 if len(calls) == 2 else 0.01

    assert Budget(seconds=0.1, limit_s=10.0).samples(step, CPU)


def test_slow_first_call_is_forgiven_since_libraries_set_themselves_up(takes):
    samples = Budget(seconds=0.1, limit_s=10.0).samples(takes(0.01, first=5.0), CPU)
    assert samples == pytest.approx([0.01] * len(samples))


def test_expectation_is_refused_before_anything_is_made():
    budget = Budget(seconds=1.0, min_samples=6, limit_s=6.0)
    budget.require(0.99, "measured")
    with pytest.raises(
        LeftOutError, match=r"^known from before, so that 6 samples would pass the limit of 6 s$"
    ):
        budget.require(1.01, "known from before")


def test_warm_up_of_short_calls_lasts_a_tenth_of_the_time(takes):
    step = takes(0.001)
    Budget(seconds=1.0, max_samples=1, min_samples=1).samples(step, CPU, per_sample=1)
    assert 100 <= step.calls <= 200


def test_samples_become_rows_of_their_phase():
    expected = [{"phase": "train", "seconds": 0.5}, {"phase": "train", "seconds": 0.25}]
    assert list(steps([0.5, 0.25], "train")) == expected

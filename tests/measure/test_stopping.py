"""When enough is measured: by hand, and how often the interval that was stopped at is right."""

import math

import numpy as np
import pytest

from scaling.measure.statistics import LOOK_EVERY, MIN_SAMPLES, enough, estimate_median, relative_half_width


class TestRelativeHalfWidth:
    @pytest.mark.parametrize("num_times", range(6))
    def test_without_an_interval_it_is_infinite(self, num_times):
        assert relative_half_width([1.0] * num_times) == math.inf

    def test_twenty_times_by_hand(self):
        # The interval is from the sixth to the fifteenth of them: 6 to 15 around 10.5.
        assert relative_half_width([float(n) for n in range(20, 0, -1)]) == pytest.approx(4.5 / 10.5)

    def test_equal_times_have_none(self):
        assert relative_half_width([3.0] * 10) == 0

    def test_does_not_depend_on_the_unit(self):
        times = np.random.default_rng(0).uniform(1, 2, 50)
        assert relative_half_width(1e-3 * times) == pytest.approx(relative_half_width(times))

    def test_is_the_interval_that_is_reported(self):
        times = list(np.random.default_rng(1).uniform(1, 2, 50))
        told = estimate_median([times])
        assert relative_half_width(times) == (told.high - told.low) / 2 / told.median

    def test_median_of_zero_has_no_relative_width(self):
        assert relative_half_width([0.0] * 10) == math.inf


class TestEnough:
    def test_few_samples_never_are(self):
        assert not enough([1.0] * (MIN_SAMPLES - 1))
        assert enough([1.0] * MIN_SAMPLES)
        assert enough([1.0] * 6, min_samples=6)

    def test_goal_is_the_widest_that_is_enough(self):
        times = [100.0 + n for n in range(20)]  # 105 to 114 around 109.5
        assert enough(times, goal=4.5 / 109.5)
        assert not enough(times, goal=4.49 / 109.5)

    def test_one_slow_sample_in_twenty_does_not_matter(self):
        assert enough([1.0] * 19 + [100.0])

    @pytest.mark.parametrize("goal", [0, -1, math.nan])
    def test_goal_that_is_not_positive_is_an_error(self, goal):
        with pytest.raises(ValueError, match=r"not positive.*0\.01"):
            enough([1.0] * 20, goal=goal)


def stopped_at(times):
    """How many of these times are measured."""
    return next(n for n in range(MIN_SAMPLES, len(times), LOOK_EVERY) if enough(times[:n], goal=0.01))


@pytest.fixture(scope="module")
def runs():
    """Times of each of 400 runs up to where they stop: true median 1, spread 5%."""
    generator = np.random.default_rng(2)
    all_times = np.exp(0.05 * generator.standard_normal((400, 1000)))
    return [times[: stopped_at(times)] for times in all_times]


class TestStopping:
    def test_interval_holds_the_median_about_as_often_as_it_says(self, runs):
        told = [estimate_median([times]) for times in runs]
        covered = np.mean([one.low <= 1 <= one.high for one in told])
        # 94% less two and a half standard errors of 400 trials.
        assert covered >= 0.94 - 0.03

    def test_median_is_mostly_within_the_goal(self, runs):
        assert np.mean([abs(np.median(times) - 1) <= 0.01 for times in runs]) > 0.9

    def test_more_noise_takes_more_samples(self, runs):
        generator = np.random.default_rng(3)
        quiet = [stopped_at(np.exp(0.02 * generator.standard_normal(1000))) for _ in range(50)]
        assert np.median(quiet) < 0.5 * np.median([len(times) for times in runs])

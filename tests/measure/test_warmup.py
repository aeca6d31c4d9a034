"""The test for the end of warm-up: exact, seldom wrong on steady times, and it sees what falls."""

import itertools

import numpy as np
import pytest

from scaling.measure.statistics import critical_value, is_warm


def orders_at_or_above(statistic, num_earlier, num_later):
    """(orders in which U reaches `statistic`, all orders), by trying them."""
    num_times = num_earlier + num_later
    values = []
    for places in itertools.combinations(range(num_times), num_earlier):
        others = [place for place in range(num_times) if place not in places]
        values.append(sum(mine > other for mine in places for other in others))
    return sum(value >= statistic for value in values), len(values)


class TestCriticalValue:
    def test_is_21_of_25_for_two_halves_of_five(self):
        # Published tables give 4 for the smaller U at a one-sided 5%: 25 - 4 = 21.
        assert critical_value(5, 5) == 21
        assert orders_at_or_above(21, 5, 5) == (12, 252)

    @pytest.mark.parametrize(("num_earlier", "num_later"), [(3, 3), (3, 4), (4, 4), (5, 5), (5, 6), (6, 6)])
    def test_is_the_least_of_at_most_5_percent(self, num_earlier, num_later):
        critical = critical_value(num_earlier, num_later)
        for statistic, expected in ((critical, True), (critical - 1, False)):
            count, total = orders_at_or_above(statistic, num_earlier, num_later)
            assert (count / total <= 0.05) == expected

    def test_agrees_with_the_normal_approximation_for_large_halves(self):
        mean, deviation = 50 * 50 / 2, (50 * 50 * 101 / 12) ** 0.5
        assert critical_value(50, 50) == pytest.approx(mean + 1.645 * deviation, abs=1.5)


class TestIsWarm:
    @pytest.mark.parametrize("num_times", [0, 1, 9])
    def test_fewer_times_than_the_window_are_not_warm(self, num_times):
        assert not is_warm([1.0] * num_times)

    @pytest.mark.parametrize(
        ("times", "expected"),
        [
            ([1.0] * 10, True),  # all ties
            ([2.0] * 5 + [1.0] * 5, False),
            ([1.0] * 5 + [2.0] * 5, True),  # slower than before is no warm-up
            ([10, 9, 8, 7, 6, 5, 4, 3, 2, 1], False),
            ([100, 1, 1, 1, 1, 1, 1, 1, 1, 1], True),  # one slow iteration: U is 5 + 20 / 2
            ([6, 7, 8, 9, 3, 1, 2, 4, 5, 10], True),  # U is 18
            ([6, 7, 8, 9, 4, 1, 2, 3, 5, 10], True),  # 19
            ([6, 7, 8, 10, 4, 1, 2, 3, 5, 9], True),  # 20
            ([7, 6, 8, 10, 5, 1, 2, 3, 4, 9], False),  # 21
        ],
        ids=str,
    )
    def test_earlier_half_must_not_be_significantly_slower(self, times, expected):
        assert is_warm(times) == expected

    def test_only_the_last_times_count(self):
        steady = [1.0, 2.0] * 5
        assert is_warm([100.0] * 50 + steady)
        assert not is_warm(steady + [3.0] * 5 + [2.0] * 5)

    def test_window_too_small_for_the_level_is_an_error(self):
        with pytest.raises(ValueError, match=r"window 5 is too small.*6 at least"):
            is_warm([1.0] * 20, window=5)

    @pytest.mark.parametrize("window", [6, 11, 20])
    def test_window_may_be_chosen(self, window):
        falling = [float(n) for n in range(window, 0, -1)]
        assert not is_warm(falling, window)
        assert is_warm(falling[::-1], window)


class TestErrors:
    TRIALS = 4000

    def rate_of_cold(self, trend, seed, *, skewed):
        generator = np.random.default_rng(seed)
        noise = generator.standard_normal((self.TRIALS, 10))
        noise = np.exp(noise) if skewed else noise
        return np.mean([not is_warm(times) for times in noise + trend])

    @pytest.mark.parametrize("skewed", [False, True])
    def test_steady_times_are_taken_for_warm_up_as_often_as_it_says(self, skewed):
        # 12 of 252, within four standard errors.
        error = 4 * (0.0476 * 0.9524 / self.TRIALS) ** 0.5
        assert self.rate_of_cold(np.zeros(10), 1, skewed=skewed) == pytest.approx(12 / 252, abs=error)

    def test_times_that_fall_by_more_than_their_noise_are_seen(self):
        steps = np.arange(10, 0, -1)
        rates = [self.rate_of_cold(slope * steps, 2, skewed=False) for slope in (0, 0.2, 0.4, 1)]
        assert rates == sorted(rates)
        assert rates[2] > 0.7
        assert rates[3] > 0.99

    def test_end_of_an_exponential_warm_up_is_found(self):
        generator = np.random.default_rng(3)
        ends = []
        for _ in range(200):
            # Twice as slow at first, 5% slower still after 15 iterations, with 2% of noise.
            times = (1 + np.exp(-np.arange(100) / 5)) * (1 + 0.02 * generator.standard_normal(100))
            ends.append(next(n for n in range(101) if is_warm(times[:n])))
        assert np.quantile(ends, 0.1) >= 15
        assert np.quantile(ends, 0.9) <= 35

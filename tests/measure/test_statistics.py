"""Medians and their intervals, when enough is measured, and when a warm-up has ended."""

import itertools
import math

import numpy as np
import pytest

from scaling.measure import statistics
from scaling.measure.statistics import MIN_SAMPLES, enough, estimate_median, is_warm, relative_half_width


def launches_of(num_launches: int, num_samples: int, seed: int, *, between: float = 1.0) -> list[np.ndarray]:
    """Samples around 10 whose launches differ by `between` and whose samples differ by 0.3."""
    generator = np.random.default_rng(seed)
    centres = 10 + between * generator.standard_normal(num_launches)
    return [centre + 0.3 * generator.standard_normal(num_samples) for centre in centres]


METHODS = {1: "within this launch only", **dict.fromkeys((2, 3, 12), "t interval of the launches' medians")}


@pytest.mark.parametrize("num_launches", METHODS)
class TestMethod:
    def test_number_of_launches_chooses_the_method_and_equal_samples_have_no_width(self, num_launches):
        launches = launches_of(num_launches, 20, seed=0)
        estimate = estimate_median(launches)
        assert estimate.method == METHODS[num_launches]
        assert (estimate.num_launches, estimate.num_samples) == (num_launches, 20 * num_launches)
        assert estimate.median == np.median(np.concatenate(launches))
        estimate = estimate_median([[3.0] * 10] * num_launches)
        assert (estimate.low, estimate.median, estimate.high) == pytest.approx((3.0, 3.0, 3.0))

    def test_interval_grows_with_the_samples_whatever_their_order(self, num_launches):
        launches = launches_of(num_launches, 20, seed=1)
        one = estimate_median(launches)
        other = estimate_median([8 * launch for launch in launches])
        grown = (8 * one.median, 8 * one.low, 8 * one.high)
        assert (other.median, other.low, other.high) == pytest.approx(grown)
        shuffled = [launch[::-1] for launch in launches]
        assert estimate_median([[], *shuffled, []]) == estimate_median(launches)


@pytest.mark.parametrize("num_samples", range(6, 60))
def test_order_statistics_are_the_narrowest_that_cover_95_percent(num_samples):
    """As 6 to 15 of 20 in the tables: C(20, 0..5) / 2^20 is 2.07%, with C(20, 6) 5.77%."""
    estimate = estimate_median([[float(n) for n in range(num_samples, 0, -1)]])
    k = int(estimate.low)

    def outside(rank: int) -> float:
        return 2 * sum(math.comb(num_samples, j) for j in range(rank)) / 2**num_samples

    assert (estimate.median, estimate.high) == ((num_samples + 1) / 2, num_samples + 1 - k)
    assert outside(k) <= 0.05 < outside(k + 1)


class TestSeveralLaunches:
    @pytest.mark.parametrize(
        ("launches", "low", "high"),
        [
            # ln 1, ln 2, ln 4: mean ln 2, deviation ln 2; t(0.975, 2) = 4.302653, over sqrt(3) is 2.484138.
            ([[0.5, 1.0, 9.0], [2.0], [4.0, 4.0]], 2 / 2**2.484138, 2 * 2**2.484138),
            # ln 1, ln 2: deviation ln 2 / sqrt(2), over sqrt(2) is ln 2 / 2; t(0.975, 1) = 12.706205.
            ([[1.0], [2.0]], 2**-5.853102, 2**6.853102),
            ([[1.0] * 1000, [2.0] * 1000], 2**-5.853102, 2**6.853102),  # more samples do not narrow it
        ],
        ids=["three", "two", "two of many"],
    )
    def test_launches_have_the_t_interval_of_their_medians_logarithms(self, launches, low, high):
        estimate = estimate_median(launches)
        assert (estimate.low, estimate.high) == pytest.approx((low, high), rel=1e-5)

    @pytest.mark.parametrize("num_launches", [3, 5])
    def test_interval_covers_the_median_as_often_as_it_says(self, num_launches):
        estimates = [estimate_median(launches_of(num_launches, 20, seed)) for seed in range(400)]
        # 95% of 400 trials have a standard error of 1.1%: two and a half of them.
        assert np.mean([one.low <= 10 <= one.high for one in estimates]) >= 0.95 - 0.027


def test_what_is_no_time_or_too_few_has_no_interval_and_no_sample_is_an_error():
    estimates = [estimate_median([[float(n) for n in range(number)]]) for number in (1, 2, 5)]
    assert [(one.low, one.high) for one in estimates] == [(None, None)] * 3
    assert estimate_median([[0.0], [1.0]]).low is None
    for launches in ([], [[]], [[], []]):
        with pytest.raises(ValueError, match="no samples"):
            estimate_median(launches)


class TestRelativeHalfWidth:
    @pytest.mark.parametrize("times", [*([1.0] * number for number in range(6)), [0.0] * 10], ids=len)
    def test_without_an_interval_or_a_median_it_is_infinite(self, times):
        assert relative_half_width(times) == math.inf

    @pytest.mark.parametrize("unit", [1e-3, 1.0])
    def test_is_that_of_the_interval_that_is_reported_in_any_unit(self, unit):
        times = np.random.default_rng(1).uniform(1, 2, 50)
        told = estimate_median([times])
        expected = (told.high - told.low) / 2 / told.median
        assert relative_half_width(unit * times) == pytest.approx(expected, rel=1e-12)


def test_few_samples_never_are_and_the_goal_is_the_widest_that_is_enough_and_positive():
    assert not enough([1.0] * (MIN_SAMPLES - 1))
    assert enough([1.0] * MIN_SAMPLES)
    assert enough([1.0] * 6, min_samples=6)
    assert enough([1.0] * 19 + [100.0])
    times = [100.0 + n for n in range(20)]  # 105 to 114 around 109.5
    assert enough(times, goal=4.5 / 109.5)
    assert not enough(times, goal=4.49 / 109.5)
    for goal in (0, -1, math.nan):
        with pytest.raises(ValueError, match=r"not positive.*0\.01"):
            enough([1.0] * 20, goal=goal)


def stopped_at(times):
    """How many of these times are measured."""
    counts = range(MIN_SAMPLES, len(times), statistics.LOOK_EVERY)
    return next(n for n in counts if enough(times[:n], goal=0.01))


@pytest.fixture(scope="module")
def runs():
    """Times of each of 400 runs up to where they stop: true median 1, spread 5%."""
    generator = np.random.default_rng(2)
    all_times = np.exp(0.05 * generator.standard_normal((400, 1000)))
    return [times[: stopped_at(times)] for times in all_times]


def test_interval_holds_the_median_about_as_often_as_it_says_and_noise_takes_more_samples(runs):
    told = [estimate_median([times]) for times in runs]
    # 94% less two and a half standard errors of 400 trials.
    assert np.mean([one.low <= 1 <= one.high for one in told]) >= 0.94 - 0.03
    assert np.mean([abs(one.median - 1) <= 0.01 for one in told]) > 0.9  # mostly within the goal
    generator = np.random.default_rng(3)
    quiet = [stopped_at(np.exp(0.02 * generator.standard_normal(1000))) for _ in range(50)]
    assert np.median(quiet) < 0.5 * np.median([len(times) for times in runs])


def orders_at_or_above(statistic, num_earlier, num_later):
    """(orders in which U reaches `statistic`, all orders), by trying them."""
    num_times = num_earlier + num_later
    values = []
    for places in itertools.combinations(range(num_times), num_earlier):
        others = [place for place in range(num_times) if place not in places]
        values.append(sum(mine > other for mine in places for other in others))
    return sum(value >= statistic for value in values), len(values)


class TestCriticalValue:
    @pytest.mark.parametrize(("num_earlier", "num_later"), [(3, 3), (3, 4), (4, 4), (5, 5), (5, 6), (6, 6)])
    def test_is_the_least_of_at_most_5_percent(self, num_earlier, num_later):
        """As in published tables, which give 4 for the smaller U of two halves of five: 25 - 4 = 21."""
        critical = statistics.critical_value(num_earlier, num_later)
        for statistic, expected in ((critical, True), (critical - 1, False)):
            count, total = orders_at_or_above(statistic, num_earlier, num_later)
            assert (count / total <= 0.05) == expected

    def test_agrees_with_the_normal_approximation_for_large_halves(self):
        mean, deviation = 50 * 50 / 2, (50 * 50 * 101 / 12) ** 0.5
        assert statistics.critical_value(50, 50) == pytest.approx(mean + 1.645 * deviation, abs=1.5)


class TestIsWarm:
    @pytest.mark.parametrize(
        ("times", "expected"),
        [
            *(([1.0] * number, False) for number in (0, 1, 9)),  # fewer than the window
            *(([1.0] * 10, True), ([2.0] * 5 + [1.0] * 5, False)),  # all ties; faster
            ([100.0] * 50 + [1.0, 2.0] * 5, True),  # only the last times count
            ([1.0, 2.0] * 5 + [3.0] * 5 + [2.0] * 5, False),
            ([1.0] * 5 + [2.0] * 5, True),  # slower than before is no warm-up
            ([10, 9, 8, 7, 6, 5, 4, 3, 2, 1], False),
            ([100, 1, 1, 1, 1, 1, 1, 1, 1, 1], True),  # one slow iteration: U is 5 + 20 / 2
            ([6, 7, 8, 10, 4, 1, 2, 3, 5, 9], True),  # U is 20
            ([7, 6, 8, 10, 5, 1, 2, 3, 4, 9], False),  # 21
        ],
        ids=str,
    )
    def test_earlier_half_must_not_be_significantly_slower(self, times, expected):
        assert is_warm(times) == expected

    @pytest.mark.parametrize("window", [6, 11, 20])
    def test_window_may_be_chosen_unless_it_is_too_small_for_the_level(self, window):
        falling = [float(n) for n in range(window, 0, -1)]
        assert not is_warm(falling, window)
        assert is_warm(falling[::-1], window)
        with pytest.raises(ValueError, match=r"window 5 is too small.*6 at least"):
            is_warm([1.0] * 20, window=5)


class TestErrorsOfWarmth:
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

    def test_times_that_fall_by_more_than_their_noise_are_seen_and_the_end_of_a_warm_up_found(self):
        steps = np.arange(10, 0, -1)
        rates = [self.rate_of_cold(slope * steps, 2, skewed=False) for slope in (0, 0.2, 0.4, 1)]
        assert rates == sorted(rates)
        assert rates[2] > 0.7
        assert rates[3] > 0.99
        generator = np.random.default_rng(3)
        ends = []
        for _ in range(200):
            # Twice as slow at first, 5% slower still after 15 iterations, with 2% of noise.
            times = (1 + np.exp(-np.arange(100) / 5)) * (1 + 0.02 * generator.standard_normal(100))
            ends.append(next(n for n in range(101) if is_warm(times[:n])))
        assert np.quantile(ends, 0.1) >= 15
        assert np.quantile(ends, 0.9) <= 35

"""Medians and their intervals, by number of launches; where possible against numbers worked out by hand."""

import math

import numpy as np
import pytest

from scaling.measure.statistics import estimate_median


def launches_of(num_launches: int, num_samples: int, seed: int, *, between: float = 1.0) -> list[np.ndarray]:
    """Samples around 10 whose launches differ by `between` and whose samples differ by 0.3."""
    generator = np.random.default_rng(seed)
    centres = 10 + between * generator.standard_normal(num_launches)
    return [centre + 0.3 * generator.standard_normal(num_samples) for centre in centres]


@pytest.mark.parametrize(
    ("num_launches", "method"),
    [
        (1, "within this launch only"),
        (2, "t interval of the launches' medians"),
        (3, "t interval of the launches' medians"),
        (12, "t interval of the launches' medians"),
    ],
)
class TestMethod:
    def test_number_of_launches_chooses_the_method(self, num_launches, method):
        estimate = estimate_median(launches_of(num_launches, 20, seed=0))
        assert estimate.method == method
        assert (estimate.num_launches, estimate.num_samples) == (num_launches, 20 * num_launches)

    def test_median_is_that_of_all_samples(self, num_launches, method):
        launches = [[1.0, 2.0, 50.0]] * num_launches
        assert estimate_median(launches).median == 2.0

    def test_interval_grows_in_proportion_to_the_samples(self, num_launches, method):
        launches = launches_of(num_launches, 20, seed=1)
        one = estimate_median(launches)
        other = estimate_median([8 * launch for launch in launches])
        assert other.median == pytest.approx(8 * one.median)
        assert (other.low, other.high) == pytest.approx((8 * one.low, 8 * one.high))

    def test_order_of_samples_and_empty_launches_change_nothing(self, num_launches, method):
        launches = launches_of(num_launches, 20, seed=2)
        shuffled = [launch[::-1] for launch in launches]
        assert estimate_median([[], *shuffled, []]) == estimate_median(launches)

    def test_equal_samples_have_an_interval_of_no_width(self, num_launches, method):
        estimate = estimate_median([[3.0] * 10] * num_launches)
        assert (estimate.low, estimate.median, estimate.high) == pytest.approx((3.0, 3.0, 3.0))


class TestOneLaunch:
    @pytest.mark.parametrize("num_samples", [1, 2, 5])
    def test_fewer_than_six_samples_have_no_interval(self, num_samples):
        estimate = estimate_median([[float(n) for n in range(num_samples)]])
        assert (estimate.low, estimate.high) == (None, None)

    def test_six_samples_have_their_range(self):
        # The median lies outside with probability 2 / 2^6 = 3.1%.
        estimate = estimate_median([[4.0, 1.0, 6.0, 2.0, 3.0, 5.0]])
        assert (estimate.low, estimate.median, estimate.high) == (1.0, 3.5, 6.0)

    def test_eight_samples_still_have_their_range(self):
        # Leaving out both ends would cover 1 - 2 (1 + 8) / 2^8 = 93.0%.
        estimate = estimate_median([[float(n) for n in range(1, 9)]])
        assert (estimate.low, estimate.high) == (1.0, 8.0)

    def test_nine_samples_leave_out_their_ends(self):
        # 1 - 2 (1 + 9) / 2^9 = 96.1%.
        estimate = estimate_median([[float(n) for n in range(1, 10)]])
        assert (estimate.low, estimate.high) == (2.0, 8.0)

    def test_twenty_samples_have_the_sixth_and_the_fifteenth(self):
        # As in the tables: sum of C(20, 0..5) / 2^20 = 2.07%, with C(20, 6) it is 5.8%.
        estimate = estimate_median([[float(n) for n in range(20, 0, -1)]])
        assert (estimate.low, estimate.median, estimate.high) == (6.0, 10.5, 15.0)

    @pytest.mark.parametrize("num_samples", range(6, 60))
    def test_order_statistics_are_the_narrowest_that_cover_95_percent(self, num_samples):
        estimate = estimate_median([[float(n) for n in range(1, num_samples + 1)]])
        k = int(estimate.low)

        def outside(rank: int) -> float:
            return 2 * sum(math.comb(num_samples, j) for j in range(rank)) / 2**num_samples

        assert estimate.high == num_samples + 1 - k
        assert outside(k) <= 0.05 < outside(k + 1)


class TestSeveralLaunches:
    def test_three_launches_have_the_t_interval_of_their_medians_logarithms(self):
        # ln 1, ln 2, ln 4: mean ln 2, deviation ln 2; t(0.975, 2) = 4.302653, over sqrt(3) is 2.484138.
        estimate = estimate_median([[0.5, 1.0, 9.0], [2.0], [4.0, 4.0]])
        assert (estimate.low, estimate.high) == pytest.approx((2 / 2**2.484138, 2 * 2**2.484138), rel=1e-5)

    def test_two_launches_have_a_very_wide_one_that_does_not_reach_zero(self):
        # ln 1, ln 2: deviation ln 2 / sqrt(2), over sqrt(2) is ln 2 / 2; t(0.975, 1) = 12.706205.
        estimate = estimate_median([[1.0], [2.0]])
        assert (estimate.low, estimate.high) == pytest.approx((2**-5.853102, 2**6.853102), rel=1e-5)

    def test_what_is_no_time_has_no_interval(self):
        assert estimate_median([[0.0], [1.0]]).low is None

    def test_more_samples_a_launch_do_not_narrow_it(self):
        few = estimate_median([[1.0], [2.0], [3.0]])
        many = estimate_median([[1.0] * 1000, [2.0] * 1000, [3.0] * 1000])
        assert (few.low, few.high) == (many.low, many.high)

    @pytest.mark.parametrize("num_launches", [3, 5])
    def test_interval_covers_the_median_as_often_as_it_says(self, num_launches):
        trials = 400
        covered = 0
        for seed in range(trials):
            estimate = estimate_median(launches_of(num_launches, 20, seed))
            covered += estimate.low <= 10 <= estimate.high
        # 95% of 400 trials have a standard error of 1.1%: two and a half of them.
        assert covered / trials >= 0.95 - 0.027


@pytest.mark.parametrize("launches", [[], [[]], [[], []]])
def test_no_sample_at_all_is_an_error(launches):
    with pytest.raises(ValueError, match="no samples"):
        estimate_median(launches)

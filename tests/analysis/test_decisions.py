"""Differences, the best of many, campaigns; variances that cells know together; decisions over seeds."""

import math

import numpy as np
import pytest
from scipy import stats

from scaling.analysis.decisions import (
    MOST,
    TIE_RATIO,
    Difference,
    adjusted,
    campaigns,
    difference,
    goes_along,
    launches_needed,
    state_of,
    with_variance,
)
from scaling.analysis.moderated import (
    Variances,
    medians_of_others,
    moderated,
    own_variances,
    scatter,
    t_quantile,
    variances_within_launches,
)
from scaling.analysis.seed_decisions import (
    BETTER,
    EXACT_LEVEL,
    WITHIN,
    WORSE,
    WORSE_LEVEL,
    Combination,
    bound,
    decide,
)


def test_difference_of_launches_that_share_nothing_is_welchs():
    generator = np.random.default_rng(0)
    a, b = generator.normal(0, 1, 4), generator.normal(1, 3, 7)
    found = difference((a.mean(), b.mean()), (a.var(ddof=1), b.var(ddof=1)), (4, 7), (3, 6))
    assert found.p_value == pytest.approx(stats.ttest_ind(a, b, equal_var=False).pvalue)


def test_interval_is_never_below_zero_and_one_launch_has_none():
    low, high = Difference(0.0, 50.0, 1.0).interval
    assert 0 < low < 1 < high
    alone = Difference(1.0, None, None)
    expected = (None, None, None, False)
    assert (alone.interval, alone.p_value, alone.half_width(), alone.is_significant) == expected


def test_holms_correction():
    assert (adjusted([0.01, 0.04, 0.03]), adjusted([])) == (pytest.approx([0.03, 0.06, 0.06]), [])


@pytest.mark.parametrize(("log_ratios", "error", "state"), [
    ([], 0.1, "alone"), ([0.10, 0.20], 0.01, "best"), ([0.00, 0.20], 0.01, "tie"),
    ([0.00, 0.20], 0.05, "undecided"), ([0.10], None, "one_launch"),
])  # fmt: skip
def test_best_of_many(log_ratios, error, state):
    degrees = None if error is None else 20.0
    assert state_of([Difference(one, error, degrees) for one in log_ratios]) == state


def test_same_within_a_ratio_needs_the_whole_interval_in_it():
    assert Difference(0.01, 0.005, 30.0).is_same()
    assert not Difference(0.01, 0.02, 30.0).is_same()
    assert not Difference(math.log1p(TIE_RATIO), 0.001, 30.0).is_same()


def test_half_width_is_where_a_difference_begins_to_be_found():
    smallest = Difference(0.0, 0.02, 8.0).half_width(0.01)
    for factor, is_found in ((1.001, True), (0.999, False)):
        assert (Difference(factor * smallest, 0.02, 8.0).p_value < 0.01) == is_found


def test_launches_needed_are_the_fewest_but_a_component_that_stays_keeps_more_from_helping():
    sure = with_variance(Difference(0.1, 1e-6, 1000.0), 0.03**2, 4.0)
    assert (sure.error, sure.degrees) == (pytest.approx(0.03, rel=1e-3), pytest.approx(4, rel=1e-3))
    number = launches_needed(0.03, 0.05)

    def half_width(launches):
        return stats.t.ppf(0.975, 2 * (launches - 1)) * 0.05 / math.sqrt(launches)

    assert half_width(number) < 0.03 <= half_width(number - 1)
    assert (launches_needed(0.0, 0.05), launches_needed(1e-5, 0.05)) == (None, None)
    assert launches_needed(-0.03, 0.05) == number <= MOST


@pytest.mark.parametrize(("own", "goes"), [(0.1, True), (0.0, False), (-0.1, False)])
def test_cell_is_called_only_if_it_changed_itself(own, goes):
    assert goes_along(Difference(own, 0.01, 9.0), Difference(0.1, 0.01, 9.0)) is goes


class TestCampaigns:
    def sides(self, num_cells, *counts, seed=0):
        generator = np.random.default_rng(seed)
        return [generator.normal(0, 0.01, (num_cells, count)) for count in counts]

    def test_shift_of_all_cells_is_in_no_relative_ratio(self):
        a, b = self.sides(9, 4, 4)
        plain, shifted = campaigns(a, b), campaigns(a, b + 0.5)
        for one, other in zip(plain.tested, shifted.tested, strict=True):
            assert one.log_ratio == pytest.approx(other.log_ratio)
        assert shifted.shift.log_ratio == pytest.approx(plain.shift.log_ratio + 0.5)

    def test_few_cells_are_compared_as_they_are(self):
        found = campaigns(*self.sides(4, 3, 3))
        assert found.relative is None
        assert found.tested is found.ratios

    def test_the_other_way_round_is_the_inverse_also_of_unequal_launches(self):
        a, b = self.sides(9, 3, 6)
        for one, other in zip(campaigns(a, b).tested, campaigns(b, a).tested, strict=True):
            assert (one.log_ratio, one.error) == (pytest.approx(-other.log_ratio), pytest.approx(other.error))

    def test_unequal_launches_and_unequal_noise_keep_the_level(self):
        generator, found = np.random.default_rng(2), []
        for _ in range(200):
            a, b = generator.normal(0, 0.05, (9, 3)), generator.normal(0, 0.01, (9, 9))
            found += [one.p_value < 0.05 for one in campaigns(a, b).ratios]
        assert np.mean(found) < 0.08

    @pytest.mark.parametrize("counts", [(1, 1), (1, 5)])
    def test_one_launch_on_a_side_has_no_p_value(self, counts):
        found = campaigns(*self.sides(9, *counts))
        assert ({one.p_value for one in found.tested}, found.shift) == ({None}, None)

    def test_planted_cell_is_found_and_no_other(self):
        a, b = self.sides(9, 5, 5, seed=3)
        b[4] += 0.1
        p_values = adjusted([one.p_value for one in campaigns(a, b).tested])
        assert [index for index, own in enumerate(p_values) if own < 0.02] == [4]


def combination(*scores, lossy=False, world_size=2):
    return Combination(dict(enumerate(scores)), lossy, world_size)


def verdicts(*trained):
    return [None if one is None else one.verdict for one in decide(trained)[1]]


def draw(generator, *, lossy, scatter=1.0, shift=0.0, num_seeds=3):
    return combination(*(shift + scatter * generator.normal(size=num_seeds)), lossy=lossy)


def test_bound_is_students():
    assert bound(2.0, 2, 0.025) == pytest.approx(2 * 4.302653, rel=1e-6)


def test_exact_variances_are_pooled_of_equal_trainings_once_and_an_unknown_correlation_is_full():
    # Deviations of the second are orthogonal to those of the first: no correlation.
    noise, _ = decide([combination(-1.0, 0.0, 1.0), combination(1.0, -2.0, 1.0)])
    assert (noise.variance, noise.degrees, noise.correlation) == (2.0, 4.0, 0.0)
    one = combination(-1.0, 0.0, 1.0)
    noise, decisions = decide([one, one, one])
    assert (noise.variance, noise.degrees, noise.correlation) == (1.0, 2.0, 1.0)
    assert noise.mean([one, one, one]) == pytest.approx((0.0, 1 / 3))
    assert [decision.difference for decision in decisions] == [0.0, 0.0, 0.0]
    noise, _ = decide([combination(-1.0, 0.0, 1.0), combination(0.5), combination(0.5)])
    assert (noise.degrees, noise.correlation) == (2.0, 1.0)
    assert noise.mean([combination(0.5), combination(0.5)])[1] == pytest.approx(1.0)


def test_nothing_is_decided_without_a_spread_of_exact_ones():
    assert decide([combination(0.5), combination(0.1, 0.2, 0.3, lossy=True)]) is None
    assert decide([combination(0.5, 0.5), combination(0.1, 0.2, 0.3, lossy=True)]) is None


def test_single_trainings_of_lossy_ones_are_allowed_a_larger_variance_and_few_degrees():
    _, (_, decision) = decide([combination(-1.0, 0.0, 1.0), combination(-50.0, lossy=True)])
    assert decision.noise == pytest.approx(bound(math.sqrt(3 + 1 / 3), 2, WORSE_LEVEL))
    assert decision.verdict == WORSE


def test_loss_and_gain_have_their_own_bounds():
    exact = [combination(-1.0, 0.0, 1.0), combination(1.0, -2.0, 1.0)]
    lossy = [combination(*(sign * shift for shift in (2.0, 3.0, 4.0)), lossy=True) for sign in (-1, 1)]
    worse, better = (decide([*exact, one])[1][2] for one in lossy)
    assert worse.noise < 3 < better.noise
    assert (worse.verdict, better.verdict) == (WORSE, WITHIN)
    assert verdicts(*exact, combination(15.0, 16.0, 17.0, lossy=True))[2] == BETTER


def test_bounds_are_wider_for_more_lossy_combinations_and_the_rest_gains_once_one_is_found():
    exact, near = combination(-1.0, 0.0, 1.0), combination(-2.0, -1.0, 0.0, lossy=True)
    alone = decide([exact, near])[1][1]
    beside_a_loss = decide([exact, near, combination(-101.0, -100.0, -99.0, lossy=True)])[1][1]
    beside_the_same = decide([exact, near, near])[1][1]
    # The other's seeds tell of the variance as well, the same in both cases.
    assert beside_a_loss.noise < beside_the_same.noise
    assert alone.verdict == beside_the_same.verdict == WITHIN


def test_reference_is_of_as_many_workers_and_none_that_differs_or_of_two_has_fewer_seeds():
    rest = [combination(-1.0, 0.0, 1.0), combination(1.0, -2.0, 1.0), combination(-0.5, 0.5, 0.0)]
    _, decisions = decide([combination(-41.0, -40.0, -39.0), *rest, combination(0.1, 0.0, -0.1, lossy=True)])
    assert [decision.verdict for decision in decisions] == [WORSE, *[WITHIN] * 4]
    assert decisions[4].difference == pytest.approx(0.0)
    assert verdicts(combination(-100.0), combination(-1.0, 0.0, 1.0)) == [WORSE, None]
    assert verdicts(combination(-1.0, 0.0, 1.0), combination(-100.0)) == [None, WORSE]
    here, elsewhere = combination(-1.0, 0.0, 1.0), combination(0.0, 1.0, 2.0, world_size=1)
    lossy = combination(0.0, 0.0, 0.0, lossy=True)
    assert decide([here, elsewhere, lossy])[1][2].difference == 0.0
    assert decide([combination(-1.0), elsewhere, lossy])[1][2].difference == pytest.approx(-5 / 6)


@pytest.mark.parametrize("scatter", [1.0, 2.0])
def test_false_verdicts_are_rare_also_where_lossy_ones_scatter_more(scatter):
    generator, false, num_studies = np.random.default_rng(3), 0, 300
    for _ in range(num_studies):
        exact = [draw(generator, lossy=False) for _ in range(3)]
        lossy = [draw(generator, lossy=True, scatter=scatter) for _ in range(2)]
        false += any(verdict != WITHIN for verdict in verdicts(*exact, *lossy))
    assert false / num_studies < 0.05 + 2 * math.sqrt(0.05 * 0.95 / num_studies)


def test_a_loss_of_three_deviations_is_found_in_four_of_five_studies():
    generator, found = np.random.default_rng(4), 0
    for _ in range(200):
        exact = [draw(generator, lossy=False) for _ in range(3)]
        lossy = [draw(generator, lossy=True, shift=shift) for shift in (-3.0, 0.0)]
        found += verdicts(*exact, *lossy)[3] == WORSE
    assert found / 200 > 0.8


def test_exact_ones_that_do_not_differ_are_rarely_called_and_hardly_ever_beside_lossy_ones():
    generator = np.random.default_rng(5)
    studies = [[draw(generator, lossy=False) for _ in range(4)] for _ in range(300)]
    false = sum(any(verdict != WITHIN for verdict in verdicts(*exact)) for exact in studies)
    assert false / 300 < 0.043 + 2 * math.sqrt(0.043 * 0.957 / 300)
    lossy = combination(0.0, lossy=True)
    false = sum(any(verdict != WITHIN for verdict in verdicts(*exact, lossy)) for exact in studies)
    assert false / 300 < EXACT_LEVEL + 2 * math.sqrt(EXACT_LEVEL / 300)


def test_median_of_the_others_and_variance_of_a_cell_leave_missing_launches_out():
    values = np.array([[1.0, 5.0], [4.0, np.nan], [2.0, 7.0], [9.0, 6.0]])
    np.testing.assert_array_equal(medians_of_others(values), [[4, 6.5], [2, np.nan], [4, 5.5], [2, 6]])
    found = own_variances(np.array([[1.0, 3.0, np.nan], [1.0, np.nan, np.nan]]))
    assert found.values[0] == pytest.approx(2)
    np.testing.assert_array_equal(found.degrees, [1, 0])


@pytest.mark.parametrize("num_cells", [2, 4, 9])
def test_what_a_launch_does_to_all_of_its_cells_is_no_variance_within_it(num_cells):
    generator = np.random.default_rng(num_cells)
    own = generator.normal(0, 0.01, (num_cells, 4))
    common = generator.normal(0, 0.5, 4)
    quiet, shared = variances_within_launches(own), variances_within_launches(own + common)
    np.testing.assert_allclose(quiet.values, shared.values)


@pytest.mark.parametrize("num_cells", [3, 9])
def test_variance_within_launches_is_that_of_the_cells(num_cells):
    generator = np.random.default_rng(1)
    means = [variances_within_launches(generator.normal(0, 1, (num_cells, 5))).values for _ in range(400)]
    assert np.mean(means) == pytest.approx(1, rel=0.08)


def test_cells_of_one_variance_share_it_and_one_that_scatters_more_keeps_its_own():
    logs = np.random.default_rng(5).normal(0, 0.01, (12, 4))
    logs[3] *= 30
    own, found = own_variances(logs), moderated(own_variances(logs))
    assert (found.values[3], found.degrees[3]) == (pytest.approx(own.values[3]), own.degrees[3])
    others = np.delete(np.arange(12), 3)
    assert np.std(np.log(found.values[others])) < np.std(np.log(own.values[others])) / 2
    assert (found.degrees[others] > own.degrees[others]).all()


def test_single_cell_and_single_launch_are_left_as_they_are_and_equal_samples_have_what_the_timer_tells():
    alone = moderated(own_variances(np.array([[1.0, 3.0, 5.0]])))
    assert (alone.values[0], alone.degrees[0]) == (pytest.approx(4), 2)
    np.testing.assert_array_equal(moderated(own_variances(np.array([[1.0], [3.0]]))).degrees, [0, 0])
    found = moderated(own_variances(np.zeros((3, 3))), np.full(3, 1e-8))
    np.testing.assert_allclose(found.values, 1e-8, rtol=1)


def test_prior_follows_smyth():
    """Against the formulas of the paper, without the typical cells: many cells outweigh them."""
    generator = np.random.default_rng(7)
    degrees, prior_degrees, num_cells = 4, 6.0, 4000
    true = prior_degrees / generator.chisquare(prior_degrees, num_cells)
    values = true * generator.chisquare(degrees, num_cells) / degrees
    found = moderated(Variances(values, np.full(num_cells, float(degrees)), 5))
    expected = (prior_degrees + degrees * values) / (prior_degrees + degrees)
    assert np.median(np.abs(found.values / expected - 1)) < 0.03
    assert np.median(found.degrees) == pytest.approx(prior_degrees + degrees, rel=0.1)


@pytest.mark.parametrize("sizes", [(9,), (1, 3, 3)])
def test_interval_of_a_cell_covers_its_time(sizes):
    generator, held = np.random.default_rng(11), []
    for _ in range(150):
        families = [generator.normal(0, 0.03, (size, 3)) + generator.normal(0, 0.03, 3) for size in sizes]
        for logs, found in zip(families, scatter(families), strict=True):
            half = t_quantile(found.total.degrees, 0.975) * np.sqrt(found.total.values / 3)
            held += (np.abs(logs.mean(axis=1)) <= half).tolist()
    assert np.mean(held) > 0.91
    assert t_quantile(3.0, 0.975) == pytest.approx(stats.t.ppf(0.975, 3))


@pytest.mark.parametrize("common", [0.0, 0.5])
def test_noisy_cells_do_not_make_steady_ones_noisy_nor_does_what_all_share(common):
    generator = np.random.default_rng(1)
    spreads = np.array([0.0005] * 4 + [0.1] * 6)
    logs = generator.normal(0, 1, (10, 3)) * spreads[:, None] + generator.normal(0, common, 3)
    own = np.sqrt(variances_within_launches(logs).values)
    assert (own[:4] < 0.002).all()
    assert (own[4:] > 0.005).all()
    assert (np.sqrt(scatter([logs])[0].within.values[:4]) < 0.01).all()


@pytest.mark.parametrize("num_launches", [3, 5])
def test_interval_of_a_cell_covers_its_time_though_launches_are_skewed_and_cells_unequal(num_launches):
    generator, held, sizes = np.random.default_rng(3), [], np.exp(np.linspace(-0.9, 0.9, 40))
    for _ in range(60):
        own, common = (np.exp(generator.normal(0, 0.5, (rows, num_launches))) for rows in (40, 1))
        logs = 0.03 * (sizes[:, None] * own + common)
        true = 0.03 * (sizes + 1) * np.exp(0.125)
        total = scatter([logs])[0].total
        half = t_quantile(total.degrees, 0.975) * np.sqrt(total.values / num_launches)
        held += (np.abs(logs.mean(axis=1) - true) <= half).tolist()
    assert np.mean(held) > 0.93


def test_time_of_a_cell_is_known_no_better_than_its_parts_of_the_same_launches():
    generator = np.random.default_rng(4)
    found = scatter([generator.normal(0, 0.03, (12, 5)) + generator.normal(0, 0.03, 5)])[0]
    assert (found.total.values > found.within.values).all()
    assert (found.total.degrees <= np.maximum(found.within.degrees, 4)).all()


def test_one_noisy_cell_among_quiet_ones_keeps_its_width_and_they_keep_theirs():
    generator = np.random.default_rng(6)
    logs = generator.normal(0, 0.002, (9, 5)) + generator.normal(0, 0.002, 5)
    with_noisy = logs.copy()
    with_noisy[4] = generator.normal(0, 0.1, 5)

    def half_widths(values):
        total = scatter([values])[0].total
        return t_quantile(total.degrees, 0.975) * np.sqrt(total.values / 5)

    others = np.arange(9) != 4
    before, after = half_widths(logs), half_widths(with_noisy)
    assert after[others] == pytest.approx(before[others], rel=0.3)
    assert after[4] == pytest.approx(stats.t.ppf(0.975, 4) * with_noisy[4].std(ddof=1) / np.sqrt(5), rel=0.25)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("num_cells", [2, 4, 9])
@pytest.mark.parametrize("apart", [0.0, 0.1])
def test_equal_times_in_all_launches_warn_of_nothing(num_cells, apart):
    logs = np.zeros((num_cells, 3))
    logs[:, 0] = apart  # what all cells share is no scatter of theirs
    (found,) = scatter([logs])
    assert np.isfinite(found.within.values).all()
    assert all(ratio.ratio == pytest.approx(np.exp(0.1)) for ratio in campaigns(logs, logs + 0.1).ratios)

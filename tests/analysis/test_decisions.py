"""Differences, the best of many, campaigns, how many launches would tell; decisions over seeds."""

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
    assert (alone.interval, alone.p_value, alone.detectable(), alone.is_significant) == expected


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


def test_detectable_is_where_a_difference_begins_to_be_found():
    smallest = math.log(Difference(0.0, 0.02, 8.0).detectable(0.01))
    for factor, is_found in ((1.001, True), (0.999, False)):
        assert (Difference(factor * smallest, 0.02, 8.0).p_value < 0.01) == is_found


def test_component_that_stays_keeps_more_launches_from_helping():
    sure = with_variance(Difference(0.1, 1e-6, 1000.0), 0.03**2, 4.0)
    assert (sure.error, sure.degrees) == (pytest.approx(0.03, rel=1e-3), pytest.approx(4, rel=1e-3))


def test_launches_needed_are_the_fewest_and_none_for_no_gap():
    number = launches_needed(0.03, 0.05)

    def half_width(launches):
        return stats.t.ppf(0.975, 2 * (launches - 1)) * 0.05 / math.sqrt(launches)

    assert half_width(number) < 0.03 <= half_width(number - 1)
    assert (launches_needed(0.0, 0.05), launches_needed(1e-5, 0.05)) == (None, None)
    assert launches_needed(-0.03, 0.05) == number <= MOST


@pytest.mark.parametrize(
    ("own", "relative", "goes"), [(0.1, 0.1, True), (0.0, 0.1, False), (-0.1, 0.1, False)]
)
def test_cell_is_called_only_if_it_changed_itself(own, relative, goes):
    assert goes_along(Difference(own, 0.01, 9.0), Difference(relative, 0.01, 9.0)) is goes


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


def test_exact_variances_are_pooled():
    # Deviations of the second are orthogonal to those of the first: no correlation.
    noise, _ = decide([combination(-1.0, 0.0, 1.0), combination(1.0, -2.0, 1.0)])
    assert (noise.variance, noise.degrees, noise.correlation) == (2.0, 4.0, 0.0)


def test_trainings_that_are_the_same_at_equal_seed_count_once():
    one = combination(-1.0, 0.0, 1.0)
    noise, decisions = decide([one, one, one])
    assert (noise.variance, noise.degrees, noise.correlation) == (1.0, 2.0, 1.0)
    assert noise.mean([one, one, one]) == pytest.approx((0.0, 1 / 3))
    assert [decision.difference for decision in decisions] == [0.0, 0.0, 0.0]


def test_correlation_that_cannot_be_estimated_is_taken_as_full():
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
    (worse, better) = (
        decide([*exact, combination(*(sign * shift for shift in (2.0, 3.0, 4.0)), lossy=True)])[1][2]
        for sign in (-1, 1)
    )
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


def test_reference_is_of_as_many_workers_where_these_have_several_seeds():
    here, elsewhere = combination(-1.0, 0.0, 1.0), combination(0.0, 1.0, 2.0, world_size=1)
    lossy = combination(0.0, 0.0, 0.0, lossy=True)
    assert decide([here, elsewhere, lossy])[1][2].difference == 0.0
    assert decide([combination(-1.0), elsewhere, lossy])[1][2].difference == pytest.approx(-5 / 6)


def test_an_exact_one_that_differs_is_no_reference():
    rest = [combination(-1.0, 0.0, 1.0), combination(1.0, -2.0, 1.0), combination(-0.5, 0.5, 0.0)]
    _, decisions = decide([combination(-41.0, -40.0, -39.0), *rest, combination(0.1, 0.0, -0.1, lossy=True)])
    assert [decision.verdict for decision in decisions] == [WORSE, *[WITHIN] * 4]
    assert decisions[4].difference == pytest.approx(0.0)


def test_of_two_exact_ones_that_differ_the_one_with_fewer_seeds_is_called():
    assert verdicts(combination(-100.0), combination(-1.0, 0.0, 1.0)) == [WORSE, None]
    assert verdicts(combination(-1.0, 0.0, 1.0), combination(-100.0)) == [None, WORSE]


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

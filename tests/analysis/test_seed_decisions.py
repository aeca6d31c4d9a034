"""Decisions over seeds: what is pooled, what is not, and how often they are false."""

import math

import numpy as np
import pytest

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

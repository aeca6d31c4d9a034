"""Ratios of two measurements: intervals by the number of launches, and the correction for many."""

import math

import numpy as np
import pytest

from scaling.measure.ratios import adjusted, estimate_ratio
from scaling.measure.statistics import ONE_LAUNCH


def launches(generator, middle, count, spread=0.01, samples=20):
    middles = middle * np.exp(generator.normal(0, spread, count))
    return [(one * np.exp(generator.normal(0, 0.002, samples))).tolist() for one in middles]


def test_welch_interval_is_the_textbook_one():
    a, b = [[1.0], [1.1], [1.2]], [[2.0], [2.1], [2.3]]
    logs = [np.log([one[0] for one in side]) for side in (a, b)]
    errors = [side.var(ddof=1) / 3 for side in logs]
    degrees = sum(errors) ** 2 / sum(error**2 / 2 for error in errors)
    found = estimate_ratio(a, b)
    assert found.degrees == pytest.approx(degrees)
    assert found.standard_error == pytest.approx(math.sqrt(sum(errors)))
    assert found.ratio == pytest.approx(math.exp(logs[1].mean() - logs[0].mean()))
    assert found.low < found.ratio < found.high
    assert found.low * found.high == pytest.approx(found.ratio**2)


def test_ratio_of_the_other_way_round_is_the_inverse():
    generator = np.random.default_rng(3)
    a, b = launches(generator, 1.0, 4), launches(generator, 1.2, 5)
    one, other = estimate_ratio(a, b), estimate_ratio(b, a)
    assert one.ratio == pytest.approx(1 / other.ratio)
    assert one.p_value == pytest.approx(other.p_value)
    assert one.low == pytest.approx(1 / other.high)


@pytest.mark.parametrize(
    ("count", "method"),
    [(1, ONE_LAUNCH), (3, "t interval of the launches' medians"), (10, "bootstrap by launch")],
)
def test_method_depends_on_the_number_of_launches(count, method):
    generator = np.random.default_rng(0)
    found = estimate_ratio(launches(generator, 1.0, count), launches(generator, 1.0, count))
    assert found.method == method
    assert (found.p_value is None) == (count == 1)
    assert (found.detectable(0.01) is None) == (count == 1)


def test_one_launch_on_either_side_is_one_launch():
    generator = np.random.default_rng(0)
    assert estimate_ratio(launches(generator, 1.0, 1), launches(generator, 1.0, 9)).p_value is None


def test_welch_interval_covers_the_truth_about_as_often_as_it_says():
    generator, held = np.random.default_rng(7), 0
    for _ in range(400):
        found = estimate_ratio(launches(generator, 1.0, 3, samples=1), launches(generator, 1.5, 4, 0.03, 1))
        held += found.low <= 1.5 <= found.high
    assert 0.92 * 400 <= held <= 0.99 * 400


def test_smallest_detectable_ratio_is_found_and_half_of_it_is_not():
    a = [[0.99], [1.0], [1.01]]
    smallest = estimate_ratio(a, a).detectable(0.02)
    for factor, found in ((smallest * 1.01, True), (math.sqrt(smallest), False)):
        b = [[one[0] * factor] for one in a]
        assert (estimate_ratio(a, b).p_value < 0.02) == found


def test_holm_is_that_of_the_paper_and_never_below_the_value_itself():
    assert adjusted([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert adjusted([]) == []
    assert adjusted([0.9, 0.8]) == [1.0, 1.0]


def test_equal_launches_without_scatter_are_equal_and_different_ones_differ():
    assert estimate_ratio([[1.0], [1.0]], [[1.0], [1.0]]).p_value == 1.0
    assert estimate_ratio([[1.0], [1.0]], [[2.0], [2.0]]).p_value == 0.0


@pytest.mark.parametrize("bad", [[], [[]], [[0.0, 1.0]]])
def test_no_samples_and_samples_of_zero_are_refused(bad):
    with pytest.raises(ValueError, match=r"no samples|not positive"):
        estimate_ratio(bad, [[1.0]])

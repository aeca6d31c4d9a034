"""Variances that the cells of a study know together."""

import numpy as np
import pytest
from scipy import stats

from scaling.analysis.decisions import campaigns
from scaling.analysis.moderated import (
    Variances,
    medians_of_others,
    moderated,
    own_variances,
    scatter,
    t_quantile,
    variances_within_launches,
)


def test_median_of_the_others_leaves_each_out_and_missing_values_too():
    values = np.array([[1.0, 5.0], [4.0, np.nan], [2.0, 7.0], [9.0, 6.0]])
    np.testing.assert_array_equal(medians_of_others(values), [[4, 6.5], [2, np.nan], [4, 5.5], [2, 6]])


def test_variance_of_a_cell_is_over_the_launches_it_has():
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

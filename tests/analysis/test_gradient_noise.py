"""The noise scale of a quadratic problem, whose gradient and its covariance are known; seeds are fixed."""

import numpy as np
import pytest
from scipy import stats

from scaling.analysis.gradient_noise import FEWEST_GROUPS, Squares, noise_scale, squares_of
from scaling.analysis.learning import epoch_table, over_seeds
from scaling.analysis.samples import read_cells
from tests.made_studies import findings, row_with, rows_of

DIMENSION, LOCAL, RANKS = 30, 8, 4
VARIANCES = np.linspace(0.5, 4.0, DIMENSION)
"""Of a sample's gradient, by element: Sigma is diagonal."""
MEAN = np.full(DIMENSION, 0.2)
TRACE, SQUARE = VARIANCES.sum(), (MEAN**2).sum()
TRUE = TRACE / SQUARE


def quadratic(rng, steps, mean=MEAN, ranks=RANKS):
    """Squared norms of the gradients of w -> |w - x|^2 / 2 at a fixed w, in batches of samples x: the mean
    over ranks, and that of all of them together."""
    noise = rng.normal(size=(steps, ranks, DIMENSION)) * np.sqrt(VARIANCES / LOCAL)
    gradients = mean + noise
    of_each, of_mean = (gradients**2).sum(axis=2).mean(axis=1), (gradients.mean(axis=1) ** 2).sum(axis=1)
    return Squares(LOCAL, LOCAL * ranks, of_each, of_mean)


def test_numerator_and_denominator_are_unbiased():
    drawn = quadratic(np.random.default_rng(0), 20_000)
    for values, true in ((drawn.trace, TRACE), (drawn.square, SQUARE)):
        error = values.std() / np.sqrt(len(values))
        assert abs(values.mean() - true) < 3 * error
        assert error < 0.02 * true


@pytest.mark.parametrize("steps", [16, 60, 400])
def test_intervals_hold_the_truth_in_95_of_100_trainings(steps):
    rng, trainings = np.random.default_rng(steps), 600
    found = [noise_scale([[quadratic(rng, steps)]]) for _ in range(trainings)]
    holds = [one.low <= TRUE and (one.high is None or one.high >= TRUE) for one in found]
    assert 0.92 < np.mean(holds) < 0.98
    if steps == 400:
        assert all(one.high is not None and one.high < 2 * TRUE for one in found)


def test_epochs_and_trainings_are_one_window_and_the_ratio_is_one_of_means():
    rng = np.random.default_rng(3)
    first, second, third = (quadratic(rng, 40) for _ in range(3))
    parts, whole = noise_scale([[first, second], [third]]), noise_scale([[first, second, third]])
    assert parts.value == whole.value == pytest.approx(TRUE, rel=0.3)
    squares = Squares(1, 2, np.array([3.0, 5.0, 4.0, 6.0]), np.array([2.5, 3.0, 3.5, 3.5]))
    assert noise_scale([[squares]]).value == pytest.approx(squares.trace.mean() / squares.square.mean())
    assert noise_scale([[squares]]).value != pytest.approx((squares.trace / squares.square).mean())


def test_without_a_gradient_there_is_no_upper_end_and_of_few_looks_or_old_records_no_value():
    rng = np.random.default_rng(5)
    found = [noise_scale([[quadratic(rng, 60, mean=np.zeros(DIMENSION))]]) for _ in range(100)]
    assert np.mean([one.high is None for one in found]) > 0.93
    assert all(one.low is not None for one in found)
    assert noise_scale([[quadratic(np.random.default_rng(0), FEWEST_GROUPS - 1)]]) is None
    assert noise_scale([[quadratic(np.random.default_rng(0), FEWEST_GROUPS)]]).low is not None
    assert (noise_scale([[]]), noise_scale([[quadratic(np.random.default_rng(0), 0)]])) == (None, None)
    assert (squares_of([None, None]), squares_of([])) == ((), ())


def test_neighbouring_steps_that_are_alike_are_no_independent_ones():
    """A drift of the gradient widens the interval beyond that of the same steps in disorder."""
    rng = np.random.default_rng(7)
    drawn = [quadratic(rng, 1, mean=scale * MEAN) for scale in np.linspace(0.3, 2.0, 400)]
    small, big = (np.concatenate([getattr(one, name) for one in drawn]) for name in ("small", "big"))
    order = rng.permutation(400)
    ordered = noise_scale([[Squares(LOCAL, LOCAL * RANKS, small, big)]])
    shuffled = noise_scale([[Squares(LOCAL, LOCAL * RANKS, small[order], big[order])]])
    assert ordered.value == pytest.approx(shuffled.value)
    assert ordered.high - ordered.low > 1.3 * (shuffled.high - shuffled.low)


@pytest.mark.parametrize("seed", range(40))
def test_the_interval_is_the_ratios_that_a_t_test_does_not_exclude(seed):
    """Of every ratio from 0 on; of means that are far from zero, and not."""
    rng, count = np.random.default_rng(seed), 8
    traces, squares = rng.normal(size=(2, count)) + rng.uniform(0, 1.2, size=(2, 1))
    found = noise_scale([[Squares(1, 2, squares + traces, squares + traces / 2)]])
    ratios = np.append(np.linspace(0, 20, 4001), 1e6)
    apart = traces[:, None] - squares[:, None] * ratios
    error = apart.std(axis=0, ddof=1) / np.sqrt(count)
    held = ratios[abs(apart.mean(axis=0)) <= stats.t.ppf(0.975, count - 1) * error]
    if squares.mean() > 0 and len(held):
        assert found.low == pytest.approx(held[0], abs=0.006)
        assert found.high is None if held[-1] == 1e6 else found.high == pytest.approx(held[-1], abs=0.006)


def recorded(steps, seed):
    drawn = quadratic(np.random.default_rng(seed), steps)
    looks = {"steps": list(range(steps)), "small": drawn.small.tolist(), "big": drawn.big.tolist()}
    return {"small_batch": LOCAL, "big_batch": LOCAL * RANKS, **looks}


def test_summary_has_that_up_to_the_target_each_epoch_its_own_and_the_report_a_line(study, epochs):
    """Of four epochs, of which the second one reaches the target."""
    lines = epochs([0.5, 0.95, 0.96, 0.97])
    for number, line in enumerate(lines):
        line |= {"noise": recorded(50, number), "preconditioned_noise": recorded(60, number)}
    row = row_with(study, [[lines]], kind="convergence", target_accuracy=0.9, epochs=4)
    divided = noise_scale([squares_of([recorded(60, 0), recorded(60, 1)])])
    assert row["preconditioned_noise_scale"] == divided.value
    expected = noise_scale([squares_of([recorded(50, 0), recorded(50, 1)])])
    assert row["noise_scale"] == expected.value
    assert (row["noise_scale_low"], row["noise_scale_high"]) == (expected.low, expected.high)
    table = epoch_table(read_cells(study.folder))
    each = [noise_scale([squares_of([recorded(50, number)])]).value for number in range(4)]
    assert table["noise_scale"].tolist() == each
    assert (table["noise_scale_low"] < table["noise_scale"]).all()
    (said,) = [text for text in findings(study.folder) if "noise scale" in text]
    assert f"none on 1 worker at batch 64: {expected.value:.3g} (" in said
    assert f") and as Adam divides gradients {divided.value:.3g} ({divided.low:.3g} to " in said
    assert "a batch far below it learns as much from a sample" in said


def test_of_several_seeds_it_is_the_median_in_the_widest_interval(study, epochs):
    for seed in range(3):
        lines = epochs([0.95])
        lines[0] |= {"noise": recorded(200, seed), "preconditioned_noise": recorded(300, seed)}
        study.add([[lines]], kind="convergence", target_accuracy=0.9, epochs=1, seed=seed)
    rows = rows_of(study)
    (merged,) = over_seeds(rows)
    for name in ("noise_scale", "preconditioned_noise_scale"):
        assert merged[name] == sorted(row[name] for row in rows)[1]
        assert merged[f"{name}_low"] == min(row[f"{name}_low"] for row in rows)
        assert merged[f"{name}_high"] == max(row[f"{name}_high"] for row in rows)


@pytest.mark.parametrize("looks", [None, FEWEST_GROUPS - 1])
def test_short_trainings_and_those_of_before_say_nothing(study, epochs, looks):
    lines = epochs([0.95])
    if looks is not None:
        lines[0]["noise"] = recorded(looks, 0)
    row = row_with(study, [[lines]], kind="convergence", target_accuracy=0.9, epochs=1)
    assert row["noise_scale"] is None
    assert not any("noise scale" in text for text in findings(study.folder))

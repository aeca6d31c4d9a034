"""Latency and bandwidth come back from times that were made of them; sizes as people read them."""

import math

import numpy as np
import pytest

from scaling.measure.probe.series import fit_link, size_text

SIZES = tuple(4096 * 8**step for step in range(6))  # 4 KiB to 128 MiB


def times(latency_s, bandwidth_bytes_per_s, *, noise=0.0, count=9, sizes=SIZES):
    generator = np.random.default_rng(7)
    exact = {size: latency_s + size / bandwidth_bytes_per_s for size in sizes}
    return {size: list(seconds * generator.lognormal(0, noise, count)) for size, seconds in exact.items()}


@pytest.mark.parametrize(
    ("latency_s", "bandwidth"), [(5e-6, 55e9), (2e-3, 1e9), (1e-6, 1e12), (0.0, 20e9)], ids=str
)
def test_exact_times_give_the_line_they_were_made_of(latency_s, bandwidth):
    fit = fit_link(times(latency_s, bandwidth))
    assert math.isclose(fit.latency_s, latency_s, rel_tol=1e-6, abs_tol=1e-12)
    assert math.isclose(fit.bandwidth_bytes_per_s, bandwidth, rel_tol=1e-6)
    assert fit.worst_error_ratio < 1e-6
    assert math.isclose(fit.seconds(10**6), latency_s + 1e6 / bandwidth, rel_tol=1e-6)


def test_intervals_hold_the_truth_and_grow_with_the_noise():
    quiet, loud = (fit_link(times(10e-6, 50e9, noise=noise)) for noise in (0.01, 0.2))
    for fit in (quiet, loud):
        low, high = fit.bandwidth_interval_bytes_per_s
        assert low <= fit.bandwidth_bytes_per_s <= high
        assert low < 50e9 < high
        assert fit.latency_interval_s[0] <= fit.latency_s <= fit.latency_interval_s[1]
    widths = [high - low for low, high in (quiet.latency_interval_s, loud.latency_interval_s)]
    assert widths[0] < widths[1]


def test_neither_one_outlier_nor_the_largest_messages_move_the_latency():
    slow = times(10e-6, 50e9)
    slow[SIZES[0]][0] *= 1000
    assert math.isclose(fit_link(slow).latency_s, 10e-6, rel_tol=1e-6)
    # A tenth of a second more on the largest would hide any latency from absolute errors.
    measured = times(10e-6, 50e9)
    measured[SIZES[-1]] = [value * 1.05 for value in measured[SIZES[-1]]]
    assert math.isclose(fit_link(measured).latency_s, 10e-6, rel_tol=0.05)


def test_line_goes_through_the_largest_size_and_says_where_it_is_furthest_off():
    # A protocol that is half as fast in the middle: a line free at both ends would be pulled down by it.
    measured = times(10e-6, 50e9)
    middle = SIZES[3]
    measured[middle] = [2 * value for value in measured[middle]]
    fit = fit_link(measured)
    assert math.isclose(fit.seconds(SIZES[-1]), np.median(measured[SIZES[-1]]))
    assert math.isclose(fit.bandwidth_bytes_per_s, 50e9, rel_tol=0.01)
    assert fit.worst_error_bytes == middle
    assert math.isclose(fit.worst_error_ratio, 0.5, abs_tol=0.05)


def test_neither_is_ever_negative_and_samples_are_those_of_the_size_with_fewest():
    fit = fit_link({1024: [2e-3] * 3, 2048: [1e-3] * 3})
    assert fit.latency_s > 0
    assert fit.bandwidth_bytes_per_s == math.inf
    curved = {1: [1.0], 2: [4.0], 3: [9.0]}
    assert fit_link(curved).latency_s == 0.0
    assert fit_link(curved).worst_error_ratio > 0.3
    measured = times(1e-6, 1e9, count=5)
    measured[SIZES[2]] = measured[SIZES[2]][:2]
    assert fit_link(measured).num_samples == 2


@pytest.mark.parametrize(("measured", "message"), [
    ({}, "0 sizes"),
    ({1024: [1.0]}, "1 sizes: latency and bandwidth need two"),
    ({1024: [1.0], 2048: []}, "every size needs a sample"),
    ({1024: [1.0], 2048: [0.0]}, "every time has to be positive"),
])  # fmt: skip
def test_what_cannot_be_fitted_is_refused(measured, message):
    with pytest.raises(ValueError, match=message):
        fit_link(measured)


@pytest.mark.parametrize(("num_bytes", "text"), [
    (0, "0 B"), (1023, "1023 B"), (1024, "1 KiB"), (4096, "4 KiB"), (1024**2 - 1024, "1023 KiB"),
    (1024**2, "1 MiB"), (3 * 1024**2 // 2, "1.5 MiB"), (1024**3, "1 GiB"), (2 * 1024**3, "2 GiB"),
])  # fmt: skip
def test_size_is_in_the_largest_unit_that_it_reaches(num_bytes, text):
    assert size_text(num_bytes) == text

import math

import numpy as np
import pytest

from scaling.prediction.estimate import PredictedValue, total


def test_independent_inputs_add_as_squares_and_one_that_both_share_counts_as_one():
    assert (PredictedValue.of(3.0, "a", 1.0) + PredictedValue.of(4.0, "b", 1.0)).sd == pytest.approx(5.0)
    assert total([PredictedValue.of(3.0, "a", 0.1)] * 2).sd == pytest.approx(0.6)


def test_a_ratio_of_the_same_input_is_certain():
    one = PredictedValue.of(2.0, "a", 0.3)
    assert one.times(5).over(one).value == pytest.approx(5)
    assert one.times(5).over(one).sd == pytest.approx(0, abs=1e-12)


def test_intervals_never_reach_zero_and_hold_the_value():
    low, high = PredictedValue.of(1.0, "a", 2.0).interval
    assert 0 < low < 1 < high


def test_interval_holds_95_percent_of_a_log_normal_input():
    draws = np.exp(np.random.default_rng(0).normal(0, 0.2, 20_000))
    low, high = PredictedValue.of(1.0, "a", math.sqrt(math.expm1(0.2**2))).interval
    assert ((low < draws) & (draws < high)).mean() == pytest.approx(0.95, abs=0.01)


def test_deviation_that_is_too_large_to_be_squared_has_no_error():
    assert PredictedValue(1.0, {"rate": 3e200, "latency": 4e200}).sd == pytest.approx(5e200)

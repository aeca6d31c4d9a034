"""The time of a step of a launch: wall clock over steps."""

import numpy as np
import pytest

from scaling.analysis.rates import MEAN_OF_STEPS, WALL_CLOCK, blocks_by_rule, blocks_of_lengths, rate_of


def launch(steps_s, gap_s=0.0, blocks=(0,), pause_s=0.0):
    """Starts of one rank's steps: [rank, step]."""
    before = np.full(len(steps_s), gap_s)
    before[list(blocks)] = pause_s
    return np.array([steps_s]), np.array([np.cumsum([0.0, *steps_s[:-1]]) + np.cumsum(before)])


def test_gaps_between_steps_count_and_pauses_between_blocks_do_not():
    steps, starts = launch([1.0] * 6, gap_s=0.1, blocks=(0, 3), pause_s=5.0)
    rate = rate_of(steps, starts, (0, 3))
    assert rate.iteration_s == pytest.approx((6 + 4 * 0.1) / 6)
    assert (rate.form, rate.pauses_s) == (WALL_CLOCK, pytest.approx(5.0))


def test_a_stall_in_every_seventh_step_is_in_the_rate():
    times = [0.52] * 70
    times[6::7] = [2.92] * 10
    assert rate_of(*launch(times), (0,)).iteration_s == pytest.approx(0.52 + 2.4 / 7, rel=0.03)


def test_waiting_for_a_rank_that_begins_later_is_left_out():
    steps = np.array([[30.0, 1.0, 1.0], [1.0, 1.0, 1.0]])
    rate = rate_of(steps, np.array([[0.0, 30.0, 31.0], [29.0, 30.0, 31.0]]), (0,))
    assert rate.iteration_s == pytest.approx(1.0)


def test_without_starts_it_is_the_mean_of_the_slowest_rank_and_says_so():
    rate = rate_of(np.array([[1.0, 2.0], [3.0, 1.0]]), None, (0,))
    assert (rate.iteration_s, rate.form) == (2.5, MEAN_OF_STEPS)


@pytest.mark.parametrize("first", [3, 10, 17])
def test_blocks_of_an_older_record_are_found_by_their_rule(first):
    blocks = (0, *range(first, 80, 20))  # a tenth of a second of 5 ms
    steps, starts = launch([0.005] * 80, gap_s=1e-6, blocks=blocks, pause_s=0.002)
    assert blocks_by_rule(steps, starts) == blocks


def test_recorded_lengths_tell_the_blocks():
    assert blocks_of_lengths([10, 20, 5], 35) == (0, 10, 30)

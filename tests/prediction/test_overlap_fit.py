"""What overlapped steps took beyond their prediction."""

from dataclasses import replace

import pytest

from scaling.prediction.overlap_fit import (
    LEAST_SLOWDOWN_SD,
    SLOWDOWN,
    SLOWDOWN_SD,
    OverlapFit,
    OverlappedCell,
    fit_left_overs,
    fit_slowdowns,
)

KEY = ("net", "all_reduce", "peer access")


def step(measured_s, predicted_s=10.0, hidden_s=2.0, by_library=True, world_size=2):
    return OverlappedCell(KEY, True, by_library, world_size, measured_s, predicted_s, hidden_s)


def test_slowdown_is_that_of_the_measured_steps():
    fit = fit_slowdowns([step(10.0 + 2.0 * extra) for extra in (0.1, 0.2, 0.3)])
    assert fit.slowdowns[True][0] == pytest.approx(SLOWDOWN + 0.2)
    assert fit.slowed({"peer_access": True}, 4.0).value == pytest.approx(4.0 * (SLOWDOWN + 0.2))
    assert fit.slowed({"peer_access": False}, 4.0).value == pytest.approx(4.0 * SLOWDOWN)


def test_one_network_tells_little_of_anothers_slowdown():
    alike = [step(11.0)] * 3
    other = replace(step(11.0), key=("other", *KEY[1:]))
    assert fit_slowdowns(alike).slowdowns[True][1] == SLOWDOWN_SD
    assert fit_slowdowns([*alike, other]).slowdowns[True][1] == LEAST_SLOWDOWN_SD


def test_codecs_and_steps_that_hide_nothing_tell_no_slowdown():
    assert not fit_slowdowns([step(20.0, by_library=False)] * 3).slowdowns
    assert not fit_slowdowns([step(20.0, hidden_s=0.01)] * 3).slowdowns


def test_left_over_beyond_the_noise_stays_with_the_strategy():
    fit = fit_left_overs([step(14.0), step(14.1)], OverlapFit())
    same, twice = (fit.left_over(KEY, size) for size in (2, 4))
    assert (same.value, twice.value) == (pytest.approx(4.05, rel=0.02), same.value)
    assert twice.sd > 3 * same.sd
    assert fit.left_over(("other", *KEY[1:]), 2).value == 0.0


def test_left_over_within_the_noise_of_the_step_or_of_its_computation_is_dropped():
    def value(one):
        return fit_left_overs([one], OverlapFit()).left_over(KEY, 2).value

    assert value(step(10.1)) == value(replace(step(14.0), compute_sd_s=4.0)) == 0.0
    assert value(step(14.0)) > 3.5


def hook(access, measured_s, predicted_s):
    key = ("net", "one_bit", access)
    return OverlappedCell(key, access == "peer access", False, 2, measured_s, predicted_s, 0.0)


def test_hooks_that_are_no_slower_without_access_tell_one_time():
    fit = fit_left_overs([hook("peer access", 8.7, 3.1), hook("host-only", 6.7, 4.6)], OverlapFit())
    near, far = (fit.left_over(("net", "one_bit", access), 2) for access in ("peer access", "host-only"))
    assert 3.1 + near.value == pytest.approx(4.6 + far.value, rel=0.1)
    slower = fit_left_overs([hook("peer access", 6.7, 3.1), hook("host-only", 8.7, 4.6)], OverlapFit())
    assert slower.left_over(("net", "one_bit", "peer access"), 2).value == pytest.approx(3.6, rel=0.02)


def test_a_hook_that_was_not_measured_is_as_uncertain_as_the_host_may_hold_it_up():
    assert OverlapFit().left_over(KEY, 2, held_up_s=2.0).sd == 2.0
    assert OverlapFit().left_over(KEY, 2, held_up_s=2.0).value == 0.0

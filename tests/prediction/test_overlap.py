"""The best buckets by the model, against every partition; what overlapped steps took beyond it."""

from dataclasses import replace
from itertools import combinations, pairwise

import numpy as np
import pytest

from scaling.prediction.buckets import (
    MB,
    ExchangeCurve,
    Gradients,
    Partition,
    best_by_count,
    best_partition,
    closed_by,
    end_s,
    of_default,
    of_two_sizes,
    to_measure,
)
from scaling.prediction.overlap_fit import (
    LEAST_SLOWDOWN_SD,
    SLOWDOWN,
    SLOWDOWN_SD,
    OverlapFit,
    OverlappedCell,
    fit_left_overs,
    fit_slowdowns,
)


def drawn(seed: int, num: int) -> tuple[Gradients, ExchangeCurve]:
    """Gradients and a curve, of any form: latencies above and below what the backward pass leaves free."""
    generator = np.random.default_rng(seed)
    ready = np.sort(generator.exponential(1e-3, num)).cumsum()
    sizes = generator.integers(1, 4 * MB, num)
    points = np.sort(generator.uniform(1, 8 * MB, 4))
    seconds = np.sort(generator.exponential(generator.choice([1e-4, 1e-2]), 4))
    return Gradients(tuple(ready), tuple(map(int, sizes))), ExchangeCurve(tuple(points), tuple(seconds))


def every_partition(num: int) -> list[tuple[int, ...]]:
    return [(*cuts, num) for count in range(num) for cuts in combinations(range(1, num), count)]


@pytest.mark.sampled(4)
@pytest.mark.parametrize("seed", range(40))
def test_no_partition_is_below_the_bound_and_the_best_one_is_at_it(seed):
    num = 1 + seed % 10
    gradients, curve = drawn(seed, num)
    ends = {one: end_s(one, gradients, curve) for one in every_partition(num)}
    best = best_partition(gradients, curve)
    assert (len(ends), best.end_s) == (2 ** (num - 1), pytest.approx(min(ends.values()), rel=1e-12))
    assert best.end_s == pytest.approx(ends[best.ends], rel=1e-12)


@pytest.mark.parametrize("seed", range(20))
def test_of_each_number_of_buckets_it_is_the_best(seed):
    num = 2 + seed % 8
    gradients, curve = drawn(seed, num)
    for count, found in enumerate(best_by_count(gradients, curve), start=1):
        least = min(end_s(one, gradients, curve) for one in every_partition(num) if len(one) == count)
        assert (len(found.ends), found.end_s) == (count, pytest.approx(least, rel=1e-12))
        assert found.end_s == pytest.approx(end_s(found.ends, gradients, curve), rel=1e-12)


def test_by_hand():
    """Three gradients of 1 MiB, ready at 1, 2 and 3 s; an exchange takes 1 s, and 0.5 s more for each MiB."""
    gradients = Gradients((1.0, 2.0, 3.0), (MB, MB, MB))
    curve = ExchangeCurve((0.0, 4.0 * MB), (1.0, 3.0))
    assert end_s((1, 2, 3), gradients, curve) == 5.5  # each in turn: 1 + 3 x 1.5
    assert end_s((3,), gradients, curve) == 5.5  # all at 3 s: 3 + 2.5
    assert end_s((1, 3), gradients, curve) == 5.0  # the first one ends at 2.5, the others go at 3 s
    assert best_partition(gradients, curve) == Partition((1, 3), 5.0)
    # Without latency each goes alone, and with much of it all together.
    four, points = Gradients((1.0, 2.0, 3.0, 4.0), (MB,) * 4), (0.0, 4.0 * MB)
    assert best_partition(four, ExchangeCurve(points, (0.0, 2.0))).end_s == 4.5
    assert best_partition(four, ExchangeCurve(points, (50.0, 50.1))).ends == (4,)


def test_ddp_makes_of_the_sizes_that_it_is_given_the_buckets_that_were_meant():
    gradients, curve = drawn(3, 12)
    for found in best_by_count(gradients, curve):
        assert closed_by(found.sizes_for_ddp(gradients), gradients.num_bytes) == found.ends
    sizes = [mebibytes * 2**20 for mebibytes in (1, 20, 6, 1)]  # in the unit of torch
    assert closed_by([1.0, 25.0], sizes) == (1, 3, 4)


def test_the_curve_has_the_median_of_each_octave_and_goes_on_at_its_last_rate():
    curve = ExchangeCurve.of([(100, 2.0), (110, 1.0), (120, 3.0), (1000, 1.5), (4096, 8.0)])
    assert curve == ExchangeCurve((110, 1000, 4096), (2.0, 2.0, 8.0))
    assert list(curve.at(np.array([1.0, 110, 4096, 8192]))) == [2.0, 2.0, 8.0, 16.0]


def test_what_is_measured_differs_in_its_number_of_buckets_and_is_not_the_default():
    gradients, curve = drawn(5, 40)
    chosen = to_measure(gradients, curve, of_default([1.0, 25.0], gradients, curve), 3)
    numbers = sorted(len(one.ends) for one in chosen)
    bound = best_partition(gradients, curve)
    assert bound.end_s <= chosen[0].end_s <= 1.01 * bound.end_s
    assert len(chosen[0].ends) <= len(bound.ends)
    assert 1 < len(chosen) <= 3
    assert all(large >= 2 * small for small, large in pairwise(numbers))
    best = Partition(chosen[0].ends, chosen[0].end_s)
    assert chosen[0].ends not in {one.ends for one in to_measure(gradients, curve, best, 3)}


@pytest.mark.parametrize("seed", range(5))
def test_of_two_sizes_it_is_what_ddp_makes_and_not_below_the_bound(seed):
    gradients, curve = drawn(seed, 30)
    found = of_two_sizes(gradients, curve)
    bound = best_partition(gradients, curve).end_s
    for one in found:
        assert closed_by(one.sizes_for_ddp(gradients), gradients.num_bytes) == one.ends
        assert one.end_s >= bound * (1 - 1e-12)
    measured = to_measure(gradients, curve, of_default([1.0, 25.0], gradients, curve), 3, takes_sizes=False)
    assert all(len(one.sizes_mb) == 2 for one in measured)


KEY = ("net", "all_reduce", "peer access")


def step(measured_s, predicted_s=10.0, hidden_s=2.0, by_library=True, world_size=2):
    return OverlappedCell(KEY, True, by_library, world_size, measured_s, predicted_s, hidden_s)


def test_slowdown_is_that_of_the_measured_steps():
    fit = fit_slowdowns([step(10.0 + 2.0 * extra) for extra in (0.1, 0.2, 0.3)])
    assert fit.slowdowns[True][0] == pytest.approx(SLOWDOWN + 0.2)
    assert fit.slowed({"peer_access": True}, 4.0).value == pytest.approx(4.0 * (SLOWDOWN + 0.2))
    assert fit.slowed({"peer_access": False}, 4.0).value == pytest.approx(4.0 * SLOWDOWN)
    for tells_nothing in (step(20.0, by_library=False), step(20.0, hidden_s=0.01)):
        assert not fit_slowdowns([tells_nothing] * 3).slowdowns


def test_one_network_tells_little_of_anothers_slowdown():
    alike = [step(11.0)] * 3
    other = replace(step(11.0), key=("other", *KEY[1:]))
    assert fit_slowdowns(alike).slowdowns[True][1] == SLOWDOWN_SD
    assert fit_slowdowns([*alike, other]).slowdowns[True][1] == LEAST_SLOWDOWN_SD


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
    not_measured = OverlapFit().left_over(KEY, 2, held_up_s=2.0)  # as far as the host may hold it up
    assert (not_measured.value, not_measured.sd) == (0.0, 2.0)


def hook(access, measured_s, predicted_s):
    key = ("net", "one_bit", access)
    return OverlappedCell(key, access == "peer access", False, 2, measured_s, predicted_s, 0.0)


def test_hooks_that_are_no_slower_without_access_tell_one_time():
    fit = fit_left_overs([hook("peer access", 8.7, 3.1), hook("host-only", 6.7, 4.6)], OverlapFit())
    near, far = (fit.left_over(("net", "one_bit", access), 2) for access in ("peer access", "host-only"))
    assert 3.1 + near.value == pytest.approx(4.6 + far.value, rel=0.1)
    slower = fit_left_overs([hook("peer access", 6.7, 3.1), hook("host-only", 8.7, 4.6)], OverlapFit())
    assert slower.left_over(("net", "one_bit", "peer access"), 2).value == pytest.approx(3.6, rel=0.02)

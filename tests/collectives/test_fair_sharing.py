"""Fair shares and the times that follow from them, against examples by hand and against the definition."""

import numpy as np
import pytest

from scaling.collectives.fair_sharing import Activities, Uses, max_min_rates, ranges, run

INF = np.inf


def rates(uses, capacity, highest=None):
    """`uses[i]` is activity i's {resource: weight}."""
    return max_min_rates(
        columns(uses),
        np.array(highest if highest is not None else [INF] * len(uses), dtype=float),
        np.array(capacity, dtype=float),
    )


def columns(uses):
    rows = [(i, resource, weight) for i, of_one in enumerate(uses) for resource, weight in of_one.items()]
    return Uses.of(*zip(*rows, strict=True)) if rows else Uses.of([], [], [])


def activities(uses, work, *, delay_s=None, highest=None, follows=()):
    later, earlier = zip(*follows, strict=True) if follows else ((), ())
    return Activities(
        np.array(delay_s or [0] * len(uses), dtype=float),
        np.array(work, dtype=float),
        np.array(highest or [INF] * len(uses), dtype=float),
        columns(uses),
        (np.array(later, dtype=np.int64), np.array(earlier, dtype=np.int64)),
    )


def ends(uses, work, capacity, **rest):
    return run(activities(uses, work, **rest), np.array(capacity, dtype=float)).end_s.tolist()


RATES = {
    "two on one link get half each": ([{0: 1}, {0: 1}], [10], None, [5, 5]),
    # 0 passes both links; link 1 has three users, link 0 two.
    "the narrow link holds the long way and the others take the rest":
        ([{0: 1, 1: 1}, {0: 1}, {1: 1}, {1: 1}], [10, 6], None, [2, 8, 2, 2]),
    "who is capped leaves its share": ([{0: 1}, {0: 1}, {0: 1}], [12], [2, INF, INF], [2, 5, 5]),
    "weight is what a unit takes": ([{0: 3}, {0: 1}], [8], None, [2, 2]),  # equal rates: 3 x + x = 8
    "who uses nothing gets its highest rate": ([{}, {}], [1], [3, INF], [3, INF]),
}  # fmt: skip


class TestRates:
    @pytest.mark.parametrize(("uses", "capacity", "highest", "expected"), RATES.values(), ids=RATES)
    def test_they_are_those_found_by_hand(self, uses, capacity, highest, expected):
        assert rates(uses, capacity, highest).tolist() == expected

    def test_a_resource_that_is_passed_twice_is_taken_twice(self):
        twice = Uses.of([0, 0], [0, 0], 1)
        assert max_min_rates(twice, np.array([INF]), np.array([8.0])).tolist() == [4]

    @pytest.mark.sampled(4)
    @pytest.mark.parametrize("seed", range(100))
    def test_no_rate_can_be_raised_without_lowering_one_that_is_not_higher(self, seed):
        random = np.random.default_rng(seed)
        num_resources, num_activities = random.integers(1, 8), random.integers(1, 30)
        capacity = random.integers(1, 20, num_resources).astype(float)
        uses = []
        for _ in range(num_activities):
            used = random.choice(num_resources, random.integers(1, num_resources + 1), replace=False)
            uses.append({int(r): float(random.choice([0.5, 1, 2, 3])) for r in used})
        highest = np.where(random.random(num_activities) < 0.3, random.random(num_activities) * 5 + 0.01, INF)
        result = rates(uses, capacity, highest)
        load = columns(uses).units(result, num_resources)
        assert (load <= capacity * (1 + 1e-9)).all()
        for i, of_one in enumerate(uses):
            held_by = [
                resource
                for resource in of_one
                if load[resource] >= capacity[resource] * (1 - 1e-9)
                and all(
                    result[i] >= result[j] * (1 - 1e-9) for j, other in enumerate(uses) if resource in other
                )
            ]
            assert held_by or result[i] == pytest.approx(highest[i])


TIMES = {
    "two on one link": ([{0: 1}, {0: 1}], [10, 10], [5], {}, [4, 4]),
    # Until 2 s both at 5; then 10 of the second's 20 are left, at 10.
    "who ends early leaves its bandwidth": ([{0: 1}, {0: 1}], [10, 20], [10], {}, [2, 3]),
    # Link 0 (10/s): a, b; link 1 (4/s): b, c. b and c at 2, a at 8; a ends at 2 s; b and c go on at 2.
    "three on two links": ([{0: 1}, {0: 1, 1: 1}, {1: 1}], [16, 8, 8], [10, 4], {}, [2, 4, 4]),
    # Alone until 1 s (10 of 20 done), then half each: first ends at 3 s, the second's last 10 at 10/s.
    "who begins late shares from then on":
        ([{0: 1}, {0: 1}], [20, 20], [10], {"delay_s": [0, 1]}, [3, 4]),
    "a cap is kept to the end": ([{0: 1}, {0: 1}], [10, 12], [12], {"highest": [INF, 2]}, [1, 6]),
    "weight counts several times": ([{0: 3}], [10], [6], {}, [5]),
    "without resources": ([{}, {}], [6, 6], [], {"highest": [2, INF], "delay_s": [0, 1]}, [3, 1]),
    "infinite capacity": ([{0: 1}, {0: 1, 1: 1}], [6, 6], [INF, 3], {}, [0, 2]),
    "no work": ([{0: 1}, {0: 1}], [0, 10], [5], {"delay_s": [3, 0]}, [3, 2]),
    "nothing to do": ([], [], [1], {}, []),
}  # fmt: skip


class TestTimes:
    @pytest.mark.parametrize(("uses", "work", "capacity", "how", "expected"), TIMES.values(), ids=TIMES)
    def test_ends_are_those_found_by_hand(self, uses, work, capacity, how, expected):
        assert ends(uses, work, capacity, **how) == expected

    def test_followers_start_when_the_last_that_they_wait_for_has_ended(self):
        times = run(
            activities([{0: 1}, {1: 1}, {0: 1}], [10, 30, 10], delay_s=[0, 0, 2], follows=[(2, 0), (2, 1)]),
            np.array([10.0, 10.0]),
        )
        assert times.start_s.tolist() == [0, 0, 3]
        assert times.end_s.tolist() == [1, 3, 6]

    def test_what_would_never_end_is_refused(self):
        with pytest.raises(ValueError, match="in a circle"):
            ends([{}, {}], [1, 1], [], highest=[1, 1], follows=[(0, 1), (1, 0)])
        for capacity, highest in ((0, 1), (1, 0)):
            with pytest.raises(ValueError, match="must be positive"):
                ends([{0: 1}], [1], [capacity], highest=[highest])

    @pytest.mark.parametrize("seed", range(8))
    def test_agree_with_small_time_steps(self, seed):
        """The same with rates found in many small steps: an independent way to the same ends."""
        random = np.random.default_rng(seed)
        capacity = random.integers(1, 6, 3).astype(float)
        uses = [{int(r): 1.0 for r in random.choice(3, 2, replace=False)} for _ in range(5)]
        work, delay_s = random.integers(1, 6, 5).astype(float), random.random(5)
        step_s, now_s, rest, expected = 0.01, 0.0, work.copy(), np.full(5, np.nan)
        while (rest > 0).any():
            flowing = np.flatnonzero((rest > 0) & (delay_s <= now_s))
            rest[flowing] -= step_s * rates([uses[i] for i in flowing], capacity)
            now_s += step_s
            expected[(rest <= 0) & np.isnan(expected)] = now_s
        assert ends(uses, work, capacity, delay_s=delay_s.tolist()) == pytest.approx(expected, abs=0.1)

    @pytest.mark.parametrize("seed", range(20))
    def test_no_resource_passes_more_than_its_capacity(self, seed):
        random = np.random.default_rng(seed)
        capacity = random.integers(1, 6, 4).astype(float)
        uses = [{int(r): float(random.integers(1, 4))} for r in random.integers(0, 4, 12)]
        work = random.integers(0, 10, 12).astype(float)
        units = columns(uses).units(work, 4)
        weights = np.array([next(iter(of_one.values())) for of_one in uses])
        assert units.sum() == pytest.approx((work * weights).sum())
        # Each resource is used by one kind of activity only, and is full until its last one has ended.
        by_resource = [[i for i, of_one in enumerate(uses) if r in of_one] for r in range(4)]
        end_s = np.array(ends(uses, work, capacity))
        for r, users in enumerate(by_resource):
            assert end_s[users].max(initial=0.0) == pytest.approx(units[r] / capacity[r])


def test_ranges_follow_one_another():
    assert ranges(np.array([3, 7, 2]), np.array([5, 7, 5])).tolist() == [3, 4, 2, 3, 4]

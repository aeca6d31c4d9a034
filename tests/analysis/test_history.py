"""The watch over a machine: ranks of campaigns, evidence, the change and what it says."""

import itertools
import math

import numpy as np
import pytest

from scaling.analysis.history import (
    COMMON,
    LEARNED,
    RankDetector,
    change_in,
    first_alarm,
    host_effects,
    watch,
)
from scaling.errors import ScalingError
from scaling.store.history import Campaign


def campaigns(logs, hosts=None, names=None):
    """One of each column of [stream, campaign] logarithms."""
    return [
        Campaign(
            f"{number + 1:04d}",
            f"2026-01-{number + 1:02d}T00:00:00+00:00",
            {name: math.exp(row[number]) for name, row in zip(names or "abcdefgh", logs, strict=False)},
            tuple(hosts[number]) if hosts else ("host",),
            None,
            "",
        )
        for number in range(logs.shape[1])
    ]


def noise(count, seed=0, streams=4):
    random = np.random.default_rng(seed)
    return random.normal(0, 0.01, (1, count)) + random.normal(0, 0.003, (streams, count))


class TestDetector:
    def test_bets_are_fair(self):
        """Over all orders of n values each bet is worth 1 on average, and there are n - LEARNED of them."""
        n = LEARNED + 2
        totals = []
        for order in itertools.permutations(range(n)):
            detector = RankDetector()
            totals.append([detector.add(float(value)) for value in order][-1])
        assert np.mean(totals) == pytest.approx(n - LEARNED)

    def test_nothing_is_said_before_enough_campaigns(self):
        detector = RankDetector()
        assert [detector.add(float(value)) for value in range(LEARNED)] == [0.0] * LEARNED

    def test_scale_and_distribution_do_not_matter(self):
        values = noise(20)[0]
        one, other = RankDetector(), RankDetector()
        assert [one.add(value) for value in values] == [other.add(math.exp(50 * value)) for value in values]

    def test_equal_values_are_no_evidence(self):
        detector = RankDetector()
        evidence = [detector.add(1.0) for _ in range(40)]
        assert max(evidence) < 2


class TestWatch:
    @pytest.mark.parametrize("slowdown", [0.05, 0.1])
    def test_a_slowdown_is_found_in_three_campaigns(self, slowdown):
        logs = noise(20)
        logs[:, 12:] += math.log1p(slowdown)
        said = watch(campaigns(logs))
        assert said.alarm in (13, 14, 15)
        assert said.change.stream == COMMON
        assert said.change.first == 12
        assert said.change.earliest <= 12 <= said.change.latest
        assert said.change.low - 1 < slowdown < said.change.high - 1

    def test_without_a_change_there_is_no_alarm_but_what_would_be_found(self):
        said = watch(campaigns(noise(12)))
        assert (said.alarm, said.change) == (None, None)
        assert said.runs_to_see[0.1] <= 4

    def test_one_slow_campaign_is_no_alarm(self):
        logs = noise(20)
        logs[:, 12] += 0.5
        assert watch(campaigns(logs)).alarm is None

    def test_one_stream_of_four_is_found_and_named(self):
        logs = noise(30, streams=4)
        logs[2, 14:] += 0.2
        said = watch(campaigns(logs))
        assert said.alarm is not None
        assert "c" in (said.change.stream, *said.others)

    def test_false_alarms_are_rarer_than_stated(self):
        """With a mean of 100 campaigns until a false alarm, 38 of 60 histories of 100 would have one."""
        alarms = [first_alarm(noise(100, seed), 100)[0] for seed in range(60)]
        assert sum(alarm is not None for alarm in alarms) <= 38

    def test_streams_that_a_campaign_lacks_are_left_out_and_named(self):
        every = campaigns(noise(8))
        one = every[3]
        every[3] = Campaign(one.name, one.started, {"a": one.seconds["a"]}, one.hosts, None, "")
        said = watch(every)
        assert said.streams == ["a"]
        assert said.left_out == ["b", "c", "d"]

    def test_campaigns_without_a_common_stream_are_refused(self):
        first, second = campaigns(noise(2))
        other = Campaign(second.name, second.started, {"x": 1.0}, second.hosts, None, "")
        with pytest.raises(ScalingError, match="no cell in common"):
            watch([first, other])

    def test_a_rate_of_one_is_refused(self):
        with pytest.raises(ScalingError, match="allowed: more than 1"):
            watch(campaigns(noise(8)), 1)


class TestChange:
    def test_an_uncertain_place_is_a_wide_interval(self):
        values = noise(20, streams=1)[0]
        values[10:] += 0.01
        wide = change_in("a", values)
        values[10:] += 0.5
        narrow = change_in("a", values)
        assert narrow.earliest == narrow.latest == 10
        assert wide.latest - wide.earliest > 2


class TestHosts:
    def test_the_slow_one_of_pairs_of_nodes_is_named(self):
        pairs = list(itertools.combinations("wxyz", 2)) * 3
        logs = noise(len(pairs))
        logs += np.array([0.1 * ("y" in pair) for pair in pairs])
        found = host_effects(campaigns(logs, pairs), logs)
        assert [one.host for one in found] == ["y"]
        assert found[0].low < 1.1 < found[0].high + 0.05

    def test_equal_hosts_are_not(self):
        pairs = list(itertools.combinations("wxyz", 2)) * 3
        logs = noise(len(pairs), seed=3)
        assert host_effects(campaigns(logs, pairs), logs) == []

"""The watch over a machine: ranks of campaigns, evidence, the change and what it says."""

import itertools
import math

import numpy as np
import pytest

from scaling.analysis.environments import machine_changes
from scaling.analysis.history import COMMON, LEARNED, change_in, evidence, first_alarm, host_effects, watch
from scaling.errors import ScalingError
from scaling.measure.probe.series import size_text
from scaling.store.history import PastCampaign
from tests.made_studies import StudyFolder, iteration


def campaigns(logs, hosts=None, names="abcdefgh"):
    """One of each column of [stream, campaign] logarithms."""
    return [
        PastCampaign(
            name=f"{number + 1:04d}", started=f"2026-01-{number + 1:02d}T00:00:00+00:00",
            seconds={name: math.exp(one) for name, one in zip(names, column, strict=False)},
            hosts=[*hosts[number]] if hosts else ["host"], commit=None,
        )
        for number, column in enumerate(logs.T)
    ]  # fmt: skip


def noise(count, seed=0, streams=4):
    random = np.random.default_rng(seed)
    return random.normal(0, 0.01, (1, count)) + random.normal(0, 0.003, (streams, count))


class TestEvidence:
    def test_bets_are_fair(self):
        """Over all orders of n values each bet is worth 1 on average, and there are n - LEARNED of them."""
        n = LEARNED + 2
        orders = np.array([*itertools.permutations(range(n))], float)
        assert evidence(orders, n)[:, -1].mean() == pytest.approx(n - LEARNED)

    def test_nothing_is_said_before_enough_campaigns(self):
        found = evidence(np.arange(LEARNED + 1.0)[None], 10)
        assert found[0, :LEARNED].tolist() == [0.0] * LEARNED
        assert found[0, LEARNED] > 0

    def test_scale_and_distribution_do_not_matter_and_equal_values_are_no_evidence(self):
        values = noise(20)
        assert (evidence(values, 10) == evidence(np.exp(50 * values), 10)).all()
        assert evidence(np.ones((1, 40)), 10).max() < 2

    def test_a_campaign_multiplies_it_by_no_more_than_was_asked(self):
        values = noise(200)
        values[:, -1] = 1
        before, after = evidence(values, 4)[:, -2:].T
        assert (after <= 4 * (before + 1) + 1e-9).all()
        assert (after > 3).all()


class TestWatch:
    @pytest.mark.parametrize("slowdown", [0.05, 0.1])
    def test_a_slowdown_is_found_in_three_campaigns(self, slowdown):
        logs = noise(20)
        logs[:, 12:] += math.log1p(slowdown)
        said = watch(campaigns(logs))
        assert said.alarm in (13, 14, 15)
        assert (said.change.stream, said.change.first) == (COMMON, 12)
        assert said.change.earliest <= 12 <= said.change.latest
        low, high = said.change.ratio[1]
        assert low - 1 < slowdown < high - 1

    def test_without_a_change_there_is_no_alarm_but_what_would_be_found_or_not_yet(self):
        said = watch(campaigns(noise(12)))
        assert (said.alarm, said.change) == (None, None)
        assert said.seen[0.1] <= said.seen[0.05] <= 4
        assert watch(campaigns(20 * noise(12))).seen == {0.03: None, 0.05: None, 0.1: None}

    @pytest.mark.parametrize("count", [20, 130, 300])
    def test_one_slow_campaign_is_no_alarm_but_three_are(self, count):
        logs = noise(count + 3, seed=1)
        logs[:, count:] += 0.5
        assert first_alarm(logs[:, : count + 1], 100)[0] is None
        assert first_alarm(logs, 100)[0] in (count + 1, count + 2)

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

    def test_streams_that_a_campaign_lacks_are_left_out_and_named_and_none_in_common_is_refused(self):
        every = campaigns(noise(8))
        every[3] = every[3].model_copy(update={"seconds": {"a": every[3].seconds["a"]}})
        said = watch(every)
        assert (said.streams, said.left_out) == (["a"], ["b", "c", "d"])
        first, second = campaigns(noise(2))
        other = second.model_copy(update={"seconds": {"x": 1.0}})
        with pytest.raises(ScalingError, match="no cell in common"):
            watch([first, other])

    def test_of_messages_the_largest_that_all_have_is_watched_and_those_of_earlier_versions_apart(self):
        every = campaigns(noise(8, streams=2), names=["send [x] of 4 KiB", "send [x] of 1 MiB"])
        del every[3].seconds["send [x] of 1 MiB"]
        said = watch(every)
        assert (said.streams, said.left_out) == (["send [x] of 4 KiB"], [])
        assert watch(every[:3]).streams == ["send [x] of 1 MiB"]
        names = [f"send of 268 MB, ranks 0-{rank} [abcdef]" for rank in (1, 2)]
        names += ["all_reduce of 268 MB, ranks 0-1-2 [abcdef]", "mlp, mine of 3 B-tree@2 [012345]"]
        assert watch(campaigns(noise(8), names=names)).streams == names

    @pytest.mark.parametrize("size", [1, 1000, 4096, 5000, 3 << 20, 1234567, 256 << 20, 5 << 30])
    def test_every_size_is_of_one_stream(self, size):
        names = ["send [x] of 1 B", f"send [x] of {size_text(size)}"]
        assert watch(campaigns(noise(8, streams=2), names=names)).streams == names[-1:]

    @pytest.mark.parametrize("rate", [1, math.nan])
    def test_a_rate_that_is_none_is_refused(self, rate):
        with pytest.raises(ScalingError, match="allowed: 2 or more"):
            watch(campaigns(noise(8)), rate)

    def test_an_uncertain_place_is_a_wide_interval_and_what_became_faster_before_no_slowdown(self):
        values = noise(20, streams=1)[0]
        values[10:] += 0.01
        wide = change_in("a", values)
        values[10:] += 0.5
        narrow = change_in("a", values)
        assert narrow.earliest == narrow.latest == 10
        assert wide.latest - wide.earliest > 2
        values = noise(20, streams=1)[0]
        values[4:] -= 0.06
        values[16:] += 0.1
        assert change_in("a", values).first == 16


@pytest.mark.parametrize(("slower", "seed", "named"), [(0.1, 0, ["y"]), (0.0, 3, [])])
def test_the_slow_one_of_pairs_of_nodes_is_named(slower, seed, named):
    pairs = list(itertools.combinations("wxyz", 2)) * 3
    logs = noise(len(pairs), seed)
    logs += np.array([slower * ("y" in pair) for pair in pairs])
    found = host_effects(campaigns(logs, pairs), logs)
    assert [*found] == named
    assert all(low < 1.1 < high + 0.05 for _, (low, high) in found.values())


def recorded(path, *, width=16, count=18, cap_w=700.0, clock_hz=1980e6, queued_s=0.01, torch="2.11"):
    """What a campaign recorded of its machine."""
    made = StudyFolder(path)
    subset = [{"name": "X", "pcie_generation": 5, "pcie_current_width": width}]
    made.folder.write_environment({"versions": {"torch": torch}, "gpus": [], "gpu_subset": subset})
    links = [{"type": "pcie", "between": ["cpu0", "gpu0"]}]
    links += [{"type": "nvlink", "between": ["gpu0", "gpu1"], "count": count}] * (count > 0)
    made.folder.write_topology({"links": links})
    gpu = {"power_limit_w": cap_w, "sm_clock_after_hz": clock_hz}
    host = {"window_s": 1.0, "queued_s": queued_s}
    made.add([[[iteration(0, 0.1)]] * 2], summary={"gpu": [gpu] * 2, "host": [host] * 2}, world_size=2)
    return made.folder


@pytest.mark.parametrize(("changed", "line"), [
    ({"width": 8}, "PCIe width of GPU 0: 16 against 8"),
    ({"count": 9}, "link gpu0-gpu1: 18 x nvlink against 9 x nvlink"),
    ({"count": 0}, "link gpu0-gpu1: 18 x nvlink against nothing"),
    ({"cap_w": 500.0}, "power cap: 700 W against 500 W"),
    ({"clock_hz": 1500e6}, "GPU clock under load: 1980 against 1500 MHz"),
    ({"queued_s": 0.41}, "workers wait for a core (other programs): 1% against 41%"),
    ({"torch": "2.12"}, "versions.torch: 2.11 against 2.12"),
])  # fmt: skip
def test_each_change_of_the_machine_is_named_alone(tmp_path, changed, line):
    assert machine_changes(recorded(tmp_path / "a"), recorded(tmp_path / "b", **changed)) == [line]


def test_what_varies_from_run_to_run_or_was_not_recorded_is_no_change(tmp_path):
    before, after = recorded(tmp_path / "a"), recorded(tmp_path / "b", clock_hz=1965e6, queued_s=0.04)
    bare = StudyFolder(tmp_path / "bare")
    bare.folder.write_environment({"versions": {"torch": "2.11"}, "gpus": []})
    assert (machine_changes(before, after), machine_changes(bare.folder, before)) == ([], [])

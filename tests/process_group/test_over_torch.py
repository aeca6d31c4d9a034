"""The group over torch.distributed, in real processes over Gloo: one launch, looked at from all sides."""

from pathlib import Path

import pytest

from tests.ranks import run_ranks

WORLD_SIZE = 3

pytestmark = pytest.mark.processes


@pytest.fixture(scope="module")
def ranks(tmp_path_factory):
    """What every rank saw, in rank order: scenario -> key -> value."""
    worker = Path(__file__).with_name("torch_worker.py")
    return run_ranks(worker, WORLD_SIZE, tmp_path_factory.mktemp("torch"))


@pytest.fixture(scope="module")
def seen(ranks):
    """seen(scenario, key): of every rank, in rank order."""
    return lambda scenario, key: [rank[scenario][key] for rank in ranks]


@pytest.mark.parametrize(("scenario", "expected"), [
    ("shared_buffers", {"zeroed": True, "values": [1, 2, 3], "sizes": [24, 0], "left": []}),
    ("several_hosts", {"by_counters": False}),
    ("barriers", {"by_counters": True, "too_early": 0}),
    ("host_all_reduce", {"values": [6.0] * 12, "metered": [64, 4]}),
    ("peer_memory", {"transport": "sends", "values": [3.0] * 10}),
    ("host_sums", {"wrong": 0}),
    ("alone", {"place": [0, 1], "library": True, "made_once": True}),
    ("largest", {"one": 2.0, "several": [2.0, 0.0, 0.1], "none": [], "metered": 0}),
    ("messages", {"same": True}),
    ("host_clock", {"same_host": [0.0, 0.0]}),
])  # fmt: skip
def test_every_rank_sees_what_the_scenario_of_the_worker_says(ranks, scenario, expected):
    assert [{key: rank[scenario][key] for key in expected} for rank in ranks] == [expected] * WORLD_SIZE


def test_rank_0_makes_the_shared_buffers(seen):
    assert seen("shared_buffers", "num_created") == [2, 0, 0]


@pytest.mark.parametrize(("scenario", "said"), [
    ("several_hosts", "only 1 of 3 ranks are on this host"),
    ("peer_memory", "cannot read each other's memory here"),
])  # fmt: skip
def test_memory_that_ranks_cannot_share_is_refused(seen, scenario, said):
    for refusal in seen(scenario, "refusal"):
        assert said in refusal


def test_nobody_else_is_heard_in_the_process_group_of_a_rank(seen):
    assert seen("alone", "values") == [[float(rank)] * 3 for rank in range(WORLD_SIZE)]


def test_offset_to_another_hosts_clock_is_found_to_within_what_is_said(seen):
    errors_s, uncertainties_s = (seen("host_clock", key) for key in ("error_s", "uncertainty_s"))
    assert uncertainties_s[0] == 0
    for error_s, uncertainty_s in zip(errors_s, uncertainties_s, strict=True):
        assert error_s <= uncertainty_s + 1e-9
        assert uncertainty_s < 10


class TestWaitUntil:
    def test_ranks_see_what_the_one_before_wrote(self, seen):
        assert seen("waiting", "value") == [1, 2, 3]

    def test_wait_for_what_nobody_writes_ends_in_an_error(self, seen):
        for rank, failure in enumerate(seen("waiting_in_vain", "failure")):
            assert failure.startswith(f"rank {rank} waited ")

    @pytest.mark.parametrize("scenario", ["fails_in_wait", "fails_in_barrier"])
    def test_rank_that_fails_releases_the_others_and_its_reason_counts(self, seen, scenario):
        *others, failed = seen(scenario, "failure")
        assert failed == "RuntimeError: planted failure"
        assert others == ["TimeoutError: another rank has failed while this one waited for it"] * 2
        assert seen(scenario, "reason") == [failed] * WORLD_SIZE
        assert seen(scenario, "can_go_on") == [True] * WORLD_SIZE

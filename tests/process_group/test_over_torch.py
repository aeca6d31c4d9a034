"""The group over torch.distributed, in real processes over Gloo: one launch, looked at from all sides."""

from pathlib import Path

import pytest

from tests.ranks import run_ranks

WORLD_SIZE = 3

pytestmark = pytest.mark.processes


@pytest.fixture(scope="module")
def seen(tmp_path_factory):
    """seen(scenario, key): what every rank saw, in rank order."""
    worker = Path(__file__).with_name("torch_worker.py")
    ranks = run_ranks(worker, WORLD_SIZE, tmp_path_factory.mktemp("torch"))
    return lambda scenario, key: [rank[scenario][key] for rank in ranks]


class TestSharedBuffer:
    def test_it_is_zeroed_and_the_same_memory_on_every_rank(self, seen):
        assert seen("shared_buffers", "zeroed") == [True] * WORLD_SIZE
        assert seen("shared_buffers", "values") == [[1, 2, 3]] * WORLD_SIZE

    def test_it_has_the_size_that_was_asked_for_even_none(self, seen):
        assert seen("shared_buffers", "sizes") == [[24, 0]] * WORLD_SIZE

    def test_rank_0_makes_it_and_its_name_is_gone_at_once(self, seen):
        assert seen("shared_buffers", "num_created") == [2, 0, 0]
        assert seen("shared_buffers", "left") == [[]] * WORLD_SIZE

    def test_ranks_on_several_hosts_are_refused(self, seen):
        for refusal in seen("several_hosts", "refusal"):
            assert "only 1 of 3 ranks are on this host" in refusal


class TestBarrier:
    def test_on_one_host_it_is_by_counters_and_nobody_passes_before_all_are_there(self, seen):
        assert seen("barriers", "by_counters") == [True] * WORLD_SIZE
        assert seen("barriers", "too_early") == [0] * WORLD_SIZE

    def test_on_several_hosts_it_needs_no_shared_memory(self, seen):
        assert seen("several_hosts", "by_counters") == [False] * WORLD_SIZE


def test_all_reduce_of_host_memory_is_the_sum_and_metered_as_a_ring(seen):
    assert seen("host_all_reduce", "values") == [[6.0] * 12] * WORLD_SIZE
    assert seen("host_all_reduce", "metered") == [[64, 4]] * WORLD_SIZE


def test_cpus_have_no_peer_memory_and_auto_is_by_sends(seen):
    for refusal in seen("peer_memory", "refusal"):
        assert "cannot read each other's memory here" in refusal
    assert seen("peer_memory", "transport") == ["sends"] * WORLD_SIZE
    assert seen("peer_memory", "values") == [[3.0] * 10] * WORLD_SIZE


def test_pipelined_host_sums_of_processes_are_exact_in_every_round(seen):
    assert seen("host_sums", "wrong") == [0] * WORLD_SIZE


class TestAlone:
    def test_every_rank_has_a_process_group_of_its_own_by_the_same_library(self, seen):
        assert seen("alone", "place") == [[0, 1]] * WORLD_SIZE
        assert seen("alone", "library") == [True] * WORLD_SIZE
        assert seen("alone", "made_once") == [True] * WORLD_SIZE

    def test_nobody_else_is_heard_in_it(self, seen):
        assert seen("alone", "values") == [[float(rank)] * 3 for rank in range(WORLD_SIZE)]


def test_largest_is_by_value_and_costs_no_metered_bytes(seen):
    assert seen("largest", "one") == [2.0] * WORLD_SIZE
    assert seen("largest", "several") == [[2.0, 0.0, 0.1]] * WORLD_SIZE
    assert seen("largest", "none") == [[]] * WORLD_SIZE
    assert seen("largest", "metered") == [0] * WORLD_SIZE


class TestHostClock:
    def test_ranks_of_one_host_share_it(self, seen):
        assert seen("host_clock", "same_host") == [[0.0, 0.0]] * WORLD_SIZE

    def test_offset_to_another_hosts_is_found_to_within_what_is_said(self, seen):
        assert seen("host_clock", "uncertainty_s")[0] == 0
        for error_s, uncertainty_s in zip(
            seen("host_clock", "error_s"), seen("host_clock", "uncertainty_s"), strict=True
        ):
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

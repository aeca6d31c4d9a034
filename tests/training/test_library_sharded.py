"""torch's own sharded optimizers in two processes: the same training, checked, with a share of the state."""

import pytest

ARMS = ("zero_redundancy_optimizer", "fsdp2", "fsdp2 kept")

pytestmark = pytest.mark.processes


@pytest.fixture(scope="module")
def ranks(on_ranks):
    return on_ranks("library_sharded_worker.py", 2)


def assert_same(ranks, arm, exact):
    for rank in ranks:
        assert rank[arm]["parameters"] == pytest.approx(rank[exact]["parameters"], rel=1e-4, abs=1e-6)


@pytest.mark.parametrize("treatment", ["", "clipped"])
@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
@pytest.mark.parametrize("arm", ARMS)
def test_training_is_that_of_whole_replicas(ranks, arm, optimizer, treatment):
    assert_same(ranks, f"{arm} {optimizer} {treatment}", f"exact {optimizer} {treatment}")


@pytest.mark.parametrize("arm", ARMS)
def test_micro_batches_are_exchanged_once(ranks, arm):
    assert_same(ranks, f"{arm} micro-batches", "exact sgd ")


@pytest.mark.parametrize("arm", ARMS)
def test_a_runs_checks_see_the_exchange_and_change_nothing(ranks, arm):
    assert_same(ranks, f"{arm} checked", f"{arm} adamw ")
    for rank in ranks:
        findings = rank[f"{arm} checked"]["findings"]
        assert (findings["exchange"], findings["steps"]) == ("exact mean", 3)


@pytest.mark.parametrize("arm", ARMS)
def test_a_rank_keeps_a_share_of_the_optimizers_state(ranks, arm):
    whole = ranks[0]["exact adamw "]["state_bytes"]
    shares = [rank[f"{arm} adamw "]["state_bytes"] for rank in ranks]
    assert max(shares) < 0.7 * whole


def test_what_is_sent_is_metered(ranks):
    """Of 4 (12 15 + 15 + 2 (15 21 + 21 + 21 15 + 15) + 15 7 + 7) = 6,556 bytes; shards are of whole rows."""
    exact = ranks[0]["exact sgd "]["sent"]
    assert exact == 6556
    broadcast = [rank["zero_redundancy_optimizer sgd "]["sent"] - exact for rank in ranks]
    assert sum(broadcast) == 6556
    rows = [8 * 12, 8, *[11 * 15, 11, 8 * 21, 8] * 2, 4 * 15, 4]
    in_blocks = 2 * (11 * 15 + 11 + 8 * 21 + 8)
    for rank in ranks:
        assert rank["fsdp2 kept sgd "]["sent"] == 4 * 2 * sum(rows)
        assert rank["fsdp2 sgd "]["sent"] == 4 * (2 * sum(rows) + in_blocks)


def test_a_group_that_was_made_anew_has_shards_of_its_own(ranks):
    assert_same(ranks, "fsdp2 in another group", "exact sgd ")

"""torch's own sharded optimizers on 2 and 4 ranks train as one worker does, with a share of the state."""

import math

import pytest

ARMS = ("zero_redundancy_optimizer", "fsdp2", "fsdp2 kept", "fsdp2 kept by two", "hsdp", "hsdp kept")

pytestmark = pytest.mark.processes


@pytest.fixture(scope="module", params=[2, 4])
def ranks(request, on_ranks):
    return on_ranks("library_sharded_worker.py", request.param)


def assert_same(ranks, arm, exact):
    for rank in ranks:
        assert rank[arm]["parameters"] == pytest.approx(rank[exact]["parameters"], rel=1e-4, abs=1e-6)


@pytest.mark.parametrize("arm", ARMS)
def test_training_is_that_of_whole_replicas_and_of_one_worker(ranks, arm):
    trained = [name.removeprefix("exact ") for name in ranks[0] if name.startswith("exact ")]
    assert len(trained) == (4 if len(ranks) == 2 else 2)
    for how in trained:
        assert_same(ranks, f"{arm} {how}", f"exact {how}")
        assert_same(ranks, f"{arm} {how}", f"one worker {how}")


@pytest.mark.parametrize("how", ["sgd ", "adamw clipped"])
@pytest.mark.parametrize("arm", ARMS)
def test_a_step_that_takes_over_the_state_goes_on_with_the_same_bits(ranks, arm, how):
    for rank in ranks:
        again = rank[f"{arm} {how} resumed"]
        assert again["parameters"] == rank[f"{arm} {how}"]["parameters"]
        assert ("the saved shards of fsdp2 are of another world size" in again["refusal"]) == ("sdp" in arm)


@pytest.mark.parametrize("arm", ARMS)
def test_micro_batches_are_exchanged_once(ranks, arm):
    assert_same(ranks, f"{arm} micro-batches", "exact sgd ")


@pytest.mark.parametrize("arm", ARMS)
def test_a_runs_checks_see_the_exchange_and_change_nothing(ranks, arm):
    assert_same(ranks, f"{arm} checked", f"{arm} sgd ")
    for rank in ranks:
        findings = rank[f"{arm} checked"]["findings"]
        assert (findings["exchange"], findings["steps"]) == ("exact mean", 3)


@pytest.mark.parametrize("arm", ARMS)
def test_a_rank_keeps_a_share_of_the_optimizers_state(ranks, arm):
    whole = ranks[0]["exact adamw clipped"]["state_bytes"]
    shares = [rank[f"{arm} adamw clipped"]["state_bytes"] for rank in ranks]
    assert max(shares) < 0.7 * whole


def test_what_is_sent_is_metered(ranks):
    """Of S = 4 (12 15 + 15 + 2 (15 21 + 21 + 21 15 + 15) + 15 7 + 7) bytes; shards are of whole rows."""
    size, n = 6556, len(ranks)
    exact = ranks[0]["exact sgd "]["sent"]
    assert exact == size * 2 * (n - 1) // n
    broadcast = [rank["zero_redundancy_optimizer sgd "]["sent"] - exact for rank in ranks]
    assert sum(broadcast) == (n - 1) * size
    block = [(21, 15), (21, 1), (15, 21), (15, 1)]

    def shards(shapes, n=n):
        return sum(math.ceil(rows / n) * columns for rows, columns in shapes)

    tensors = [(15, 12), (15, 1), *block, *block, (7, 15), (7, 1)]
    whole, halves, of_blocks = shards(tensors), shards(tensors, 2), 2 * shards(block, 2)
    for rank in ranks:
        assert rank["fsdp2 kept sgd "]["sent"] == 4 * (n - 1) * 2 * whole
        assert rank["fsdp2 sgd "]["sent"] == 4 * (n - 1) * (2 * whole + 2 * shards(block))
        assert rank["fsdp2 kept by two sgd "]["sent"] == 4 * (
            (n - 1) * 2 * whole + n // 2 * 2 * shards(block)
        )
    between = 2 - 4 / n  # of two groups of two: what an all-reduce sends
    for rank in ranks:
        assert rank["hsdp kept sgd "]["sent"] == 4 * (2 + between) * halves
        assert rank["hsdp sgd "]["sent"] == 4 * ((2 + between) * halves + of_blocks)


def test_parameters_are_kept_by_as_many_ranks_between_the_passes(ranks):
    n = len(ranks)
    for rank in ranks:
        kept_by = {"fsdp2": n, "fsdp2 kept": 1, "fsdp2 kept by two": 2, "hsdp": 2, "hsdp kept": 1}
        assert rank["keepers"] == kept_by


def test_a_group_that_was_made_anew_has_shards_of_its_own(ranks):
    assert_same(ranks, "fsdp2 in another group", "exact sgd ")
    assert_same(ranks, "fsdp2 kept by two in another group", "exact sgd ")
    assert_same(ranks, "hsdp in another group", "exact sgd ")

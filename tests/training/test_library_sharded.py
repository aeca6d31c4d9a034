"""torch's own sharded optimizers on 2 and 4 ranks train as one worker does, with a share of the state."""

import itertools
import math

import pytest
import torch
from torch import nn

from scaling.aggregators.registry import create
from scaling.errors import CheckpointError
from scaling.process_group import run_in_process
from scaling.training.compute import Compute
from scaling.training.fully_sharded import FullyShardedStep, ShardedReplica
from scaling.training.gradients import GradientSettings
from scaling.training.overlapped import OverlappedStep
from scaling.training.replica import Replica, whole
from scaling.training.step_check import StepCheck
from tests.ranks import as_rank, refusal
from tests.training.small import CPU, OPTIMIZERS, eager, shared_batches

TREATMENTS = {"": GradientSettings(), "clipped": GradientSettings(clip_norm=0.05)}
ZERO = "zero_redundancy_optimizer"
KEPT_BY = {
    **{"fsdp2": lambda n: n, "fsdp2 kept": lambda n: 1, "fsdp2 kept by two": lambda n: 2},
    **{"hsdp": lambda n: 2, "hsdp kept": lambda n: 1},
}
"""By how many of n ranks a block's parameters are kept together between the passes."""
ARMS = (ZERO, *KEPT_BY)
IN_ANOTHER_GROUP = ("fsdp2", "fsdp2 kept by two", "hsdp")
NUM_STEPS = 3
OF_FOUR = [("sgd", ""), ("adamw", "clipped")]
"""What four ranks train with, and what is resumed; two train with all."""

pytestmark = pytest.mark.processes


class Net(nn.Module):
    """Two blocks, and parameters outside of them, one of which is used twice."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.first = nn.Linear(12, 15)
        blocks = (nn.Sequential(nn.Linear(15, 21), nn.ReLU(), nn.Linear(21, 15)) for _ in range(2))
        self.blocks = nn.ModuleList(blocks)
        self.last = nn.Linear(15, 7)

    def forward(self, inputs):
        hidden = self.first(inputs)
        for block in self.blocks:
            hidden = hidden + block(hidden)
        return self.last(hidden) + self.first(inputs)[:, :7]


def exact(optimizer, treatment, group):
    return eager(Net(), "all_reduce", OPTIMIZERS[optimizer], group, TREATMENTS[treatment])


def made(arm, optimizer, treatment, group, accumulate=1):
    gradients, compute = TREATMENTS[treatment], Compute(accumulate=accumulate)
    if arm == ZERO:
        inputs, targets = shared_batches(group, 1)[0]
        chosen = (Replica(Net(), compute=compute), create(arm), OPTIMIZERS[optimizer], group, gradients)
        return OverlappedStep(*chosen, bucket_mb=0.001, inputs=inputs, targets=targets)
    shard_ranks = 2 if arm.startswith("hsdp") else None
    kept_by = 2 if arm.endswith("by two") else not arm.endswith("kept")
    how = {"reshard_after_forward": kept_by, "shard_ranks": shard_ranks, "compute": compute}
    return FullyShardedStep(ShardedReplica(Net(), group, **how), OPTIMIZERS[optimizer], group, gradients)


def trained(step, group, which=slice(None)):
    for batch in shared_batches(group, NUM_STEPS)[which]:
        group.meter.reset()
        step(*batch)
    sent = group.meter.bytes_sent
    parameters = [whole(one.detach()).flatten() for one in step.replica.module.parameters()]
    state_bytes = step.optimizer_state_bytes
    return {"parameters": torch.cat(parameters).tolist(), "state_bytes": state_bytes, "sent": sent}


def resumed(arm, optimizer, treatment, group):
    """The training, of which a new step takes over the end; and what is said of shards of another size."""
    first, second = (made(arm, optimizer, treatment, group) for _ in range(2))
    trained(first, group, slice(0, 2))
    state, said = first.state_dict(), ""
    if arm != ZERO:
        others = {name: torch.cat([shard, shard]) for name, shard in state["module"].items()}
        other = {**state, "module": others}
        said = refusal(CheckpointError, lambda: second.load_state_dict(other))
    second.load_state_dict(state)
    return {**trained(second, group, slice(2, None)), "refusal": said}


def checked(arm, optimizer, group):
    """What the checks of a run say, and the training behind them."""
    step = made(arm, optimizer, "", group)
    check = StepCheck(step, create(arm.split()[0]), OPTIMIZERS[optimizer], group)
    check.steps(shared_batches(group, NUM_STEPS), 3)
    check.replicas()
    return {**trained(step, group), "findings": check.findings.as_dict()}


def keepers(arm, group):
    step = made(arm, "sgd", "", group)
    loss = step.replica.forward(*shared_batches(group, 1)[0])
    parameter = next(step.replica.module.blocks.parameters())
    number = parameter.device_mesh.size(-1) if hasattr(parameter, "device_mesh") else 1
    loss.backward()
    return int(number)


def seen_by(workers):
    group, seen = workers.group(CPU), {}
    for one in itertools.product(OPTIMIZERS, TREATMENTS) if group.world_size == 2 else OF_FOUR:
        how = " ".join(one)
        seen[f"exact {how}"] = trained(exact(*one, group), group)
        seen[f"one worker {how}"] = run_in_process(1, lambda own, one=one: trained(exact(*one, own), own))[0]
        seen |= {f"{arm} {how}": trained(made(arm, *one, group), group) for arm in ARMS}
    for arm in ARMS:
        seen[f"{arm} micro-batches"] = trained(made(arm, "sgd", "", group, accumulate=2), group)
        seen |= {f"{arm} {' '.join(one)} resumed": resumed(arm, *one, group) for one in OF_FOUR}
        seen[f"{arm} checked"] = checked(arm, "sgd", group)
    seen["keepers"] = {arm: keepers(arm, group) for arm in KEPT_BY}
    workers.leave_group()
    workers.outcome("left", None, None)
    again = workers.group(CPU)
    for arm in IN_ANOTHER_GROUP:
        seen[f"{arm} in another group"] = trained(made(arm, "sgd", "", again), again)
    return seen


@pytest.fixture(scope="module", params=[2, 4])
def ranks(request, on_ranks):
    return on_ranks(__file__, request.param)


def assert_same(ranks, arm, exact):
    for rank in ranks:
        assert rank[arm]["parameters"] == pytest.approx(rank[exact]["parameters"], rel=1e-4, abs=1e-6)


@pytest.mark.parametrize("arm", ARMS)
class TestArms:
    def test_training_is_that_of_whole_replicas_and_of_one_worker(self, ranks, arm):
        ways = [name.removeprefix("exact ") for name in ranks[0] if name.startswith("exact ")]
        assert len(ways) == (4 if len(ranks) == 2 else 2)
        for how in ways:
            assert_same(ranks, f"{arm} {how}", f"exact {how}")
            assert_same(ranks, f"{arm} {how}", f"one worker {how}")

    @pytest.mark.parametrize("how", ["sgd ", "adamw clipped"])
    def test_a_step_that_takes_over_the_state_goes_on_with_the_same_bits(self, ranks, arm, how):
        said = "the saved shards of fsdp2 are of another world size"
        for rank in ranks:
            again = rank[f"{arm} {how} resumed"]
            assert again["parameters"] == rank[f"{arm} {how}"]["parameters"]
            assert (said in again["refusal"]) == (arm != ZERO)

    def test_micro_batches_are_exchanged_once(self, ranks, arm):
        assert_same(ranks, f"{arm} micro-batches", "exact sgd ")

    def test_a_runs_checks_see_the_exchange_and_change_nothing(self, ranks, arm):
        assert_same(ranks, f"{arm} checked", f"{arm} sgd ")
        for rank in ranks:
            findings = rank[f"{arm} checked"]["findings"]
            assert (findings["exchange"], findings["steps"]) == ("exact mean", 3)

    def test_a_rank_keeps_a_share_of_the_optimizers_state(self, ranks, arm):
        shares = [rank[f"{arm} adamw clipped"]["state_bytes"] for rank in ranks]
        assert max(shares) < 0.7 * ranks[0]["exact adamw clipped"]["state_bytes"]


def test_what_is_sent_is_metered(ranks):
    """Of S = 4 (12 15 + 15 + 2 (15 21 + 21 + 21 15 + 15) + 15 7 + 7) bytes; shards are of whole rows."""
    size, n = 6556, len(ranks)
    exact = ranks[0]["exact sgd "]["sent"]
    assert exact == size * 2 * (n - 1) // n
    assert sum(rank[f"{ZERO} sgd "]["sent"] - exact for rank in ranks) == (n - 1) * size  # broadcasts
    block = [(21, 15), (21, 1), (15, 21), (15, 1)]

    def shards(shapes, n=n):
        return sum(math.ceil(rows / n) * columns for rows, columns in shapes)

    tensors = [(15, 12), (15, 1), *block, *block, (7, 15), (7, 1)]
    whole, halves, of_blocks = shards(tensors), shards(tensors, 2), 2 * shards(block, 2)
    between = 2 - 4 / n  # of two groups of two: what an all-reduce sends
    expected = {
        "fsdp2 kept": (n - 1) * 2 * whole,
        "fsdp2": (n - 1) * (2 * whole + 2 * shards(block)),
        "fsdp2 kept by two": (n - 1) * 2 * whole + n // 2 * 2 * shards(block),
        "hsdp kept": (2 + between) * halves,
        "hsdp": (2 + between) * halves + of_blocks,
    }
    for rank in ranks:
        assert {arm: rank[f"{arm} sgd "]["sent"] / 4 for arm in expected} == expected


def test_parameters_are_kept_by_as_many_ranks_between_the_passes(ranks):
    expected = {arm: of(len(ranks)) for arm, of in KEPT_BY.items()}
    assert [rank["keepers"] for rank in ranks] == [expected] * len(ranks)


@pytest.mark.parametrize("arm", IN_ANOTHER_GROUP)
def test_a_group_that_was_made_anew_has_shards_of_its_own(ranks, arm):
    assert_same(ranks, f"{arm} in another group", "exact sgd ")


if __name__ == "__main__":
    as_rank(seen_by)

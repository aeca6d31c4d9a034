"""One rank of test_library_sharded.py: trains with torch's sharded optimizers, writes what it saw as JSON."""

import itertools
from typing import Any

import torch
from torch import Tensor, nn

from scaling.aggregators.registry import create
from scaling.errors import CheckpointError
from scaling.process_group import Group, InProcessGroup, TorchGroup, run_in_process
from scaling.runtime.workers import Workers
from scaling.training.compute import Compute
from scaling.training.fully_sharded import FullyShardedStep, ShardedReplica
from scaling.training.gradients import GradientSettings
from scaling.training.optimizers import AdamSettings, SgdSettings
from scaling.training.overlapped import OverlappedStep
from scaling.training.replica import FlatReplica, Replica, whole
from scaling.training.step import EagerStep, TrainingStep
from scaling.training.step_check import StepCheck
from tests.ranks import as_rank

CPU = torch.device("cpu")
SETTINGS = {
    "sgd": SgdSettings(learning_rate=0.05, momentum=0.9, weight_decay=1e-4),
    "adamw": AdamSettings(learning_rate=1e-3, weight_decay=0.01, decoupled=True),
}
TREATMENTS = {"": GradientSettings(), "clipped": GradientSettings(clip_norm=0.05)}
ARMS = ("zero_redundancy_optimizer", "fsdp2", "fsdp2 kept", "fsdp2 kept by two", "hsdp", "hsdp kept")
NUM_STEPS, GLOBAL_BATCH = 3, 24
OF_FOUR = [("sgd", ""), ("adamw", "clipped")]
"""What four ranks train with, and what is resumed; two train with all."""


class Net(nn.Module):
    """Two blocks, and parameters outside of them, one of which is used twice."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first = nn.Linear(12, 15)
        self.blocks = nn.ModuleList(
            [nn.Sequential(nn.Linear(15, 21), nn.ReLU(), nn.Linear(21, 15)) for _ in range(2)]
        )
        self.last = nn.Linear(15, 7)

    def forward(self, inputs: Tensor) -> Tensor:
        hidden = self.first(inputs)
        for block in self.blocks:
            hidden = hidden + block(hidden)
        return self.last(hidden) + self.first(inputs)[:, :7]


def batches(group: Group) -> list[tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(3)
    share = slice(group.rank, None, group.world_size)
    drawn = [
        (
            torch.randn((GLOBAL_BATCH, 12), generator=generator),
            torch.randint(7, (GLOBAL_BATCH,), generator=generator),
        )
        for _ in range(NUM_STEPS)
    ]
    return [(inputs[share], targets[share]) for inputs, targets in drawn]


def made(arm: str, optimizer: str, treatment: str, group: TorchGroup, accumulate: int = 1) -> TrainingStep:
    gradients, compute = TREATMENTS[treatment], Compute(accumulate=accumulate)
    if arm == "zero_redundancy_optimizer":
        inputs, targets = batches(group)[0]
        replica = Replica(Net(), compute=compute)
        chosen = (replica, create(arm), SETTINGS[optimizer], group, gradients)
        return OverlappedStep(*chosen, bucket_mb=0.001, inputs=inputs, targets=targets)
    shard_ranks = 2 if arm.startswith("hsdp") else None
    kept_by = 2 if arm.endswith("by two") else not arm.endswith("kept")
    sharded = ShardedReplica(
        Net(), group, reshard_after_forward=kept_by, shard_ranks=shard_ranks, compute=compute
    )
    return FullyShardedStep(sharded, SETTINGS[optimizer], group, gradients)


def trained(step: TrainingStep, group: Group, which: slice = slice(None)) -> dict[str, Any]:
    for batch in batches(group)[which]:
        group.meter.reset()
        step(*batch)
    sent = group.meter.bytes_sent
    parameters = [whole(one.detach()).flatten() for one in step.replica.module.parameters()]
    return {
        "parameters": torch.cat(parameters).tolist(),
        "state_bytes": step.optimizer_state_bytes,
        "sent": sent,
    }


def one_worker(optimizer: str, treatment: str) -> list[float]:
    """The parameters that one worker has behind the same global batches."""

    def work(group: InProcessGroup) -> list[float]:
        flat = FlatReplica(Net())
        step = EagerStep(flat, create("all_reduce"), SETTINGS[optimizer], group, TREATMENTS[treatment])
        return trained(step, group)["parameters"]

    return run_in_process(1, work)[0]


def resumed(arm: str, optimizer: str, treatment: str, group: TorchGroup) -> dict[str, Any]:
    """The training, of which a new step takes over the end; and what is said of shards of another size."""
    first, second = (made(arm, optimizer, treatment, group) for _ in range(2))
    trained(first, group, slice(0, 2))
    state = first.state_dict()
    refusal = ""
    if arm.startswith(("fsdp2", "hsdp")):
        others = {name: torch.cat([shard, shard]) for name, shard in state["module"].items()}
        try:
            second.load_state_dict({**state, "module": others})
        except CheckpointError as error:
            refusal = str(error)
    second.load_state_dict(state)
    return {**trained(second, group, slice(2, None)), "refusal": refusal}


def checked(arm: str, optimizer: str, group: TorchGroup) -> dict[str, Any]:
    """What the checks of a run say, and the training behind them."""
    step = made(arm, optimizer, "", group)
    check = StepCheck(step, create(arm.split()[0]), SETTINGS[optimizer], group)
    check.steps(batches(group), 3)
    check.replicas()
    return {**trained(step, group), "findings": check.findings.as_dict()}


def keepers(arm: str, group: TorchGroup) -> int:
    """How many ranks keep a block's parameters together between the passes."""
    step = made(arm, "sgd", "", group)
    inputs, targets = batches(group)[0]
    loss = step.replica.forward(inputs, targets)
    module: Any = step.replica.module
    parameter = next(module.blocks.parameters())
    number = parameter.device_mesh.size(-1) if hasattr(parameter, "device_mesh") else 1
    loss.backward()
    return int(number)


def seen_by(workers: Workers) -> dict[str, Any]:
    group = workers.group(CPU)
    seen: dict[str, Any] = {}
    combinations = itertools.product(SETTINGS, TREATMENTS) if group.world_size == 2 else OF_FOUR
    for optimizer, treatment in combinations:
        flat = FlatReplica(Net())
        step = EagerStep(flat, create("all_reduce"), SETTINGS[optimizer], group, TREATMENTS[treatment])
        seen[f"exact {optimizer} {treatment}"] = trained(step, group)
        seen[f"one worker {optimizer} {treatment}"] = {"parameters": one_worker(optimizer, treatment)}
        for arm in ARMS:
            seen[f"{arm} {optimizer} {treatment}"] = trained(made(arm, optimizer, treatment, group), group)
    for arm in ARMS:
        seen[f"{arm} micro-batches"] = trained(made(arm, "sgd", "", group, accumulate=2), group)
        seen |= {f"{arm} {' '.join(one)} resumed": resumed(arm, *one, group) for one in OF_FOUR}
        seen[f"{arm} checked"] = checked(arm, "sgd", group)
    seen["keepers"] = {arm: keepers(arm, group) for arm in ARMS if "sdp" in arm}
    workers.leave_group()
    workers.outcome("left", None, None)
    again = workers.group(CPU)
    for arm in ("fsdp2", "fsdp2 kept by two", "hsdp"):
        seen[f"{arm} in another group"] = trained(made(arm, "sgd", "", again), again)
    return seen


if __name__ == "__main__":
    as_rank(seen_by)

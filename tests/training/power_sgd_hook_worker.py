"""One rank of test_power_sgd_hook.py: torch's PowerSGD hook as an arm, and by hand; writes JSON."""

from collections.abc import Callable
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook
from torch.nn.parallel import DistributedDataParallel

from scaling.aggregators.registry import create
from scaling.errors import CheckpointError, StudyError
from scaling.process_group import TorchGroup
from scaling.runtime.workers import Workers
from scaling.training.optimizers import SgdSettings
from scaling.training.overlapped import PASSES_UNTIL_BUCKETS_STAY, OverlappedStep
from scaling.training.replica import Replica
from scaling.training.step_check import StepCheck
from tests.ranks import as_rank

CPU = torch.device("cpu")
NAME = "power_sgd_hook"
SETTINGS = SgdSettings(0.05, 0.5)
NUM_STEPS = 9
ARMS: dict[str, dict[str, Any]] = {
    "usual": {},
    "later, rank 2": {"start_step": 5, "approximation_size": 2},
    "cold": {"warm_start": False},
    "without feedback": {"error_feedback": False},
    "batched": {"batched": True, "seed": 7},
}
BUCKET_MB = {"cold": 1.0}
"""torch's hook forgets the P of all buckets at the end of one unless it starts warm."""


def network() -> torch.nn.Module:
    torch.manual_seed(0)
    return torch.nn.Sequential(
        torch.nn.Linear(12, 24), torch.nn.ReLU(), torch.nn.Linear(24, 24), torch.nn.Linear(24, 6)
    )


def batch(rank: int, number: int) -> tuple[torch.Tensor, torch.Tensor]:
    inputs = torch.randn((16, 12), generator=torch.Generator().manual_seed(100 * number + rank))
    return inputs, inputs[:, :6].argmax(1)


def arm(label: str, group: TorchGroup) -> OverlappedStep:
    inputs, targets = batch(group.rank, 0)
    chosen = create(NAME, ARMS[label]), SETTINGS, group
    size = BUCKET_MB.get(label, 0.001)
    return OverlappedStep(Replica(network()), *chosen, bucket_mb=size, inputs=inputs, targets=targets)


def parameters_of(module: torch.nn.Module) -> torch.Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in module.parameters()])


def by_hand(label: str, group: TorchGroup) -> torch.Tensor:
    """The same training with torch's hook registered by hand, once DDP has settled its buckets."""
    given = ARMS[label]
    state = powerSGD_hook.PowerSGDState(
        group.data,
        matrix_approximation_rank=given.get("approximation_size", 1),
        start_powerSGD_iter=given.get("start_step", 2),
        use_error_feedback=given.get("error_feedback", True),
        warm_start=given.get("warm_start", True),
        random_seed=given.get("seed", 0),
        batch_tensors_with_same_shape=given.get("batched", False),
    )
    module = network()
    ddp = DistributedDataParallel(module, process_group=group.data, bucket_cap_mb=BUCKET_MB.get(label, 0.001))
    settled = False

    def hook(_, bucket):  # DDP reads types, and takes no Any
        future: torch.futures.Future[torch.Tensor] = torch.futures.Future()
        if settled:  # one bucket after the other: Gloo's threads would mix their messages
            future.set_result(powerSGD_hook.powerSGD_hook(state, bucket).wait())
        else:
            future.set_result(bucket.buffer())
        return future

    ddp.register_comm_hook(None, hook)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.05, momentum=0.5)
    for number in range(-PASSES_UNTIL_BUCKETS_STAY, NUM_STEPS):
        inputs, targets = batch(group.rank, max(number, 0))
        settled = number >= 0
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(ddp(inputs), targets).backward()
        if settled:
            optimizer.step()
    return parameters_of(module)


def trained(step: OverlappedStep, group: TorchGroup, steps: range = range(NUM_STEPS)) -> torch.Tensor:
    for number in steps:
        step(*batch(group.rank, number))
    return parameters_of(step.replica.module)


def agreement(group: TorchGroup) -> dict[str, Any]:
    """The parameters of each arm, and whether torch's hook by hand has the same bits."""
    seen = {}
    for label in ARMS:
        step = arm(label, group)
        ours = trained(step, group)
        seen[label] = {
            "parameters": ours.tolist(),
            "same": torch.equal(ours, by_hand(label, group)),
            "num_buckets": len(step.bucket_bytes),
        }
    return seen


def metering(group: TorchGroup) -> dict[str, Any]:
    """By step: the bytes that were metered, and those of a ring for each all-reduce that torch made."""
    seen: dict[str, Any] = {}
    all_reduce = dist.all_reduce
    for label in ("usual", "later, rank 2"):
        step = arm(label, group)
        made: list[int] = []

        def noted(tensor: torch.Tensor, *args: Any, made: list[int] = made, **keywords: Any) -> Any:
            made.append(tensor.nbytes * 2 * (group.world_size - 1) // group.world_size)
            return all_reduce(tensor, *args, **keywords)

        seen[label] = []
        for number in range(7):
            made.clear()
            group.meter.reset()
            with mock.patch.object(dist, "all_reduce", noted):
                step(*batch(group.rank, number))
            seen[label].append([group.meter.bytes_sent, sum(made)])
    return seen


def kept(group: TorchGroup) -> dict[str, Any]:
    """By arm: the number of elements of each kind that a checkpoint has, at the start and later on."""
    seen = {}
    for label in ARMS:
        step, sizes = arm(label, group), []
        for steps in (range(0), range(2), range(2, NUM_STEPS)):
            trained(step, group, steps)
            buckets = [tensors for name, tensors in step.state_dict()["aggregator"].items() if name != "hook"]
            kinds = {kind for tensors in buckets for kind in tensors} - {"bucket"}
            sizes.append(
                {kind: sum(one[kind].numel() for one in buckets if kind in one) for kind in sorted(kinds)}
            )
        seen[label] = sizes
    return seen


def resumed(group: TorchGroup) -> dict[str, bool]:
    """Whether a training that another one resumes in the middle ends with the same bits."""
    seen = {}
    for label in ARMS:
        whole = arm(label, group)
        trained(whole, group, range(6))
        saved = whole.state_dict()
        again = arm(label, group)
        again.load_state_dict(saved)
        rest = range(6, NUM_STEPS)
        seen[label] = torch.equal(trained(whole, group, rest), trained(again, group, rest))
    return seen


def checked(group: TorchGroup) -> dict[str, Any]:
    """What a run's checks say, and whether the training behind them is the one without."""
    seen = {}
    for label in ARMS:
        step = arm(label, group)
        check = StepCheck(step, create(NAME, ARMS[label]), SETTINGS, group)
        check.steps([batch(group.rank, number) for number in range(4)], 4)
        same = torch.equal(trained(step, group), trained(arm(label, group), group))
        seen[label] = {**check.findings.as_dict(), "same": same}
    return seen


def refused(group: TorchGroup) -> dict[str, str]:
    """What is said of a state of other buckets, and of a scalar parameter."""

    class Scaled(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner, self.scale = network(), torch.nn.Parameter(torch.ones(()))

        def forward(self, inputs: torch.Tensor) -> torch.Tensor:
            return self.scale * self.inner(inputs)

    def other_buckets() -> None:
        arm("usual", group).load_state_dict(arm("cold", group).state_dict())

    def scalar() -> None:
        inputs, targets = batch(group.rank, 0)
        chosen = create(NAME), SETTINGS, group
        OverlappedStep(Replica(Scaled()), *chosen, bucket_mb=1.0, inputs=inputs, targets=targets)

    def early() -> None:
        create(NAME, {"start_step": 1})

    attempts: list[Callable[[], None]] = [other_buckets, scalar, early]
    seen = {}
    for attempt in attempts:
        try:
            attempt()
        except (CheckpointError, StudyError) as error:
            seen[attempt.__name__] = str(error)
    return seen


def seen_by(workers: Workers) -> dict[str, Any]:
    group = workers.group(CPU)
    scenarios = (agreement, metering, kept, resumed, checked, refused)
    return {scenario.__name__: scenario(group) for scenario in scenarios}


if __name__ == "__main__":
    as_rank(seen_by)

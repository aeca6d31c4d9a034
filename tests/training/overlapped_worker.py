"""One rank of test_overlapped.py: trains in many ways, writes what it saw as JSON."""

import gc
import threading
import weakref
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import nn

from scaling.aggregators.base import unmarked
from scaling.aggregators.native import AllReduce
from scaling.aggregators.registry import create
from scaling.measure.clock import MonotonicClock
from scaling.measure.phases import PhaseRecorder
from scaling.process_group import TorchGroup
from scaling.runtime.workers import Workers
from scaling.training.optimizers import SgdSettings
from scaling.training.overlapped import OverlappedStep
from scaling.training.replica import FlatReplica, Replica
from scaling.training.step import EagerStep, TrainingStep
from tests.ranks import as_rank
from tests.waiting import wait_until

CPU = torch.device("cpu")
SETTINGS = SgdSettings(learning_rate=0.05, momentum=0.9, weight_decay=1e-4)
NUM_STEPS = 6
ONE_BUCKET_MB, SMALL_BUCKET_MB = 25.0, 0.001
ARMS = {
    "all_reduce": {},
    "ring": {},
    "tree": {},
    "none": {},
    "no_op": {},
    "no_op(path=hook)": {"path": "hook"},
}


@dataclass(frozen=True)
class FailsOnRank1(AllReduce):
    """The second exchange of rank 1 fails; as a hook, since it aggregates in its own way."""

    name = "fails_on_rank_1"
    num_exchanges: ClassVar[list[int]] = []

    def aggregate(self, state, gradient, phase=unmarked):
        self.num_exchanges.append(gradient.numel())
        if state.group.rank == 1 and len(self.num_exchanges) == 2:
            raise KeyError("planted failure")
        return super().aggregate(state, gradient, phase)


def create_arm(label: str) -> Any:
    return create(label.partition("(")[0], ARMS[label])


def network() -> nn.Module:
    """With statistics, and with random numbers in its forward pass."""
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(12, 40),
        nn.BatchNorm1d(40),
        nn.Dropout(0.3),
        nn.Linear(40, 40),
        nn.ReLU(),
        nn.Linear(40, 6),
    )


def batch(rank: int, number: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(100 * number + rank)
    return torch.randn((10, 12), generator=generator), torch.randint(6, (10,), generator=generator)


def overlapped(aggregator: Any, group: TorchGroup, bucket_mb: float, module: nn.Module) -> OverlappedStep:
    inputs, targets = batch(group.rank, 0)
    return OverlappedStep(
        Replica(module), aggregator, SETTINGS, group, bucket_mb=bucket_mb, inputs=inputs, targets=targets
    )


def made(label: str, group: TorchGroup, bucket_mb: float = SMALL_BUCKET_MB) -> OverlappedStep:
    return overlapped(create_arm(label), group, bucket_mb, network())


def training(step: TrainingStep, group: TorchGroup, split_from: int = NUM_STEPS) -> dict[str, Any]:
    """What comes of some steps, of which those from `split_from` on are split."""
    torch.manual_seed(group.rank)
    recorder = PhaseRecorder(MonotonicClock())
    losses, sent = [], []
    for number in range(NUM_STEPS):
        if number == split_from:
            step.prepare_profiled(recorder)
        group.meter.reset()
        with recorder.step(profiled=number >= split_from) as marks:
            losses.append(step(*batch(group.rank, number), marks).item())
        sent.append(group.meter.bytes_sent)
    state = step.replica.module.state_dict()
    flat = torch.cat([value.double().flatten() for _, value in sorted(state.items())])
    return {
        "losses": losses,
        "state": flat.tolist(),
        "random": torch.get_rng_state().sum().item(),
        "sent": sent,
        "spans": [sample.spans for sample in recorder.take()],
        "notes": step.notes,
        "num_bytes": 4 * step.replica.layout.num_elements,
    }


def trainings(group: TorchGroup) -> dict[str, Any]:
    """Every arm in every way: eager, overlapped with one bucket, with several, and split half-way."""
    seen = {}
    for label in ARMS:
        if not label.startswith("no_op"):
            eager = EagerStep(FlatReplica(network()), create_arm(label), SETTINGS, group)
            seen[f"{label} eager"] = training(eager, group)
        for way, bucket_mb in (("one bucket", ONE_BUCKET_MB), ("several", SMALL_BUCKET_MB)):
            seen[f"{label} {way}"] = training(made(label, group, bucket_mb), group)
        seen[f"{label} split"] = training(made(label, group), group, split_from=NUM_STEPS // 2)
    return seen


def dry_passes(group: TorchGroup) -> dict[str, Any]:
    """What is as before after a step was made, and made ready for split ones."""
    seen = {}
    for label in ARMS:
        module, expected = network(), network().state_dict()
        torch.manual_seed(5)
        random_state = torch.get_rng_state()
        step = overlapped(create_arm(label), group, SMALL_BUCKET_MB, module)
        step.prepare_profiled(PhaseRecorder(MonotonicClock()))
        same = {name: torch.equal(value, expected[name]) for name, value in module.state_dict().items()}
        seen[label] = {"state": same, "random": torch.equal(torch.get_rng_state(), random_state)}
    return seen


def forgotten(group: TorchGroup) -> dict[str, Any]:
    """Whether a step is gone when nobody has it any more, and the thread of its exchanges with it."""
    seen = {}
    for label in ARMS:
        for is_split in (False, True):
            step = made(label, group)
            if is_split:
                step.prepare_profiled(PhaseRecorder(MonotonicClock()))
            step(*batch(group.rank, 0))
            watched: list[weakref.ref[Any]] = [weakref.ref(step), weakref.ref(step.replica.module)]
            del step
            gc.collect()
            seen[f"{label} {is_split}"] = [one() is None for one in watched]
    wait_until(lambda: not any_exchange_thread())
    return {"steps": seen, "threads_left": any_exchange_thread()}


def any_exchange_thread() -> bool:
    return any(thread.name.startswith("exchange") for thread in threading.enumerate())


def fails(workers: Workers) -> dict[str, Any]:
    """An exchange fails on rank 1; afterwards a new group works."""
    failure = failure_of_a_step(workers.group(CPU))
    order = workers.first_failure("fails")
    workers.leave_group()
    outcome = workers.outcome("fails", failure, None, failure_order=order)
    again = training(made("ring", workers.group(CPU)), workers.group(CPU))
    return {
        "failure": failure,
        "num_exchanges": len(FailsOnRank1.num_exchanges),
        "reason": outcome.reason,
        "can_go_on": outcome.can_go_on,
        "losses_again": again["losses"],
    }


def failure_of_a_step(group: TorchGroup) -> str | None:
    step = overlapped(FailsOnRank1(), group, SMALL_BUCKET_MB, network())
    try:
        step(*batch(group.rank, 0))
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return None


def seen_by(workers: Workers) -> dict[str, Any]:
    group = workers.group(CPU)
    seen = {scenario.__name__: scenario(group) for scenario in (trainings, dry_passes, forgotten)}
    del group
    seen["fails"] = fails(workers)
    return seen


if __name__ == "__main__":
    as_rank(seen_by)

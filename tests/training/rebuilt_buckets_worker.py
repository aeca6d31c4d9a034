"""One rank of test_rebuilt_buckets.py: every codec as DDP's hook, across changes of buckets; writes JSON."""

from typing import Any

import torch
from torch import Tensor, nn

from scaling.aggregators.registry import create
from scaling.process_group import TorchGroup
from scaling.runtime.workers import Workers
from scaling.training import overlapped
from scaling.training.optimizers import SgdSettings
from scaling.training.overlapped import OverlappedStep
from scaling.training.replica import Replica
from tests.ranks import as_rank

CPU = torch.device("cpu")
BUCKETS_MB = (0.0001, 25.0, 0.004, 0.0001)
"""Several, one, fewer, and again those of the beginning."""
STEPS_EACH = 3
PARAMETERS: dict[str, dict[str, Any]] = {
    "one_bit": {},
    "one_bit_flat": {"chunk_elements": 64},
    "one_bit_momentum": {"chunk_elements": 64},
    "two_bit": {"threshold": 0.02},
    "sign": {},
    "ef_sign": {"chunk_elements": 64},
    "qsgd": {},
    "top_k": {"density": 0.1},
    "power_sgd": {},
    "fp16": {},
    "bf16": {},
}
RATES = {"sign": 0.002, "one_bit_momentum": 0.03}


class Crossed(nn.Module):
    """Layers that are used in another order than they are registered in, so that DDP has to rebuild."""

    def __init__(self) -> None:
        super().__init__()
        self.third, self.first, self.second = nn.Linear(30, 6), nn.Linear(12, 40), nn.Linear(40, 30)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.third(torch.relu(self.second(torch.relu(self.first(inputs)))))


def network() -> Crossed:
    torch.manual_seed(0)
    return Crossed()


def batch(rank: int, number: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(100 * number + rank)
    return torch.randn((32, 12), generator=generator), torch.randint(6, (32,), generator=generator)


def hooked(name: str, group: TorchGroup, bucket_mb: float) -> OverlappedStep:
    aggregator = create(name, PARAMETERS[name])
    settings = SgdSettings(RATES.get(name, 0.1), 0.0 if aggregator.own_momentum() else 0.5)
    inputs, targets = batch(group.rank, 0)
    return OverlappedStep(
        Replica(network()), aggregator, settings, group, bucket_mb=bucket_mb, inputs=inputs, targets=targets
    )


class Watch:
    """The parameters of each bucket that DDP hands to a step's hook, pass by pass."""

    def __init__(self) -> None:
        self.passes: list[list[list[str]]] = []
        self._hook = OverlappedStep._hook

    def __enter__(self) -> "Watch":
        def seen(step: OverlappedStep, bucket: Any) -> Any:
            if bucket.index() == 0:
                self.passes.append([])
            names = {id(p): name for name, p in step.replica.module.named_parameters()}
            self.passes[-1].append([names[id(p)] for p in bucket.parameters()])
            return self._hook(step, bucket)

        OverlappedStep._hook = seen  # type: ignore[assignment]
        return self

    def __exit__(self, *_: object) -> None:
        OverlappedStep._hook = self._hook


class Ledger:
    """Of each parameter: what this rank has put in, less what it got out."""

    def __init__(self, momentum: float) -> None:
        self._momentum = momentum
        self.owed: dict[str, Tensor] = {}
        self._last: dict[str, Tensor] = {}

    def step(self, step: OverlappedStep, inputs: Tensor, targets: Tensor) -> None:
        """Takes the step and books it."""
        module = step.replica.module
        names, parameters = zip(*module.named_parameters(), strict=True)
        gradients = torch.autograd.grad(step.replica.loss(module(inputs), targets), parameters)
        step(inputs, targets)
        for name, gradient, parameter in zip(names, gradients, parameters, strict=True):
            assert parameter.grad is not None
            mean, zero = parameter.grad.double(), torch.zeros_like(gradient, dtype=torch.float64)
            put_in = gradient.double() + self._momentum * self._last.get(name, zero)
            self.owed[name] = self.owed.get(name, zero) + put_in - mean
            self._last[name] = mean.clone()


def withheld(step: OverlappedStep) -> dict[str, Tensor]:
    """By parameter; nothing where nothing ever is."""
    kept: dict[str, Tensor] = {}
    for state in step._buckets._states:
        flat = state.withheld() if hasattr(state, "withheld") else state.total_residual()
        if flat is not None:
            kept |= dict(zip(state.layout.names, state.layout.views(flat), strict=True))
    return kept


def across_buckets(name: str, group: TorchGroup) -> dict[str, Any]:
    """A training whose buckets change every few steps, and what it owes and withholds at the end of each."""
    ledger = Ledger(create(name, PARAMETERS[name]).own_momentum())
    step: OverlappedStep | None = None
    number, seen = 0, []
    for bucket_mb in BUCKETS_MB:
        saved: Any = step.state_dict() if step is not None else None
        with Watch() as watch:
            step = hooked(name, group, bucket_mb)
            if saved is not None:
                step.load_state_dict(saved)
            for _ in range(STEPS_EACH):
                ledger.step(step, *batch(group.rank, number))
                number += 1
        seen.append(
            {
                "passes": watch.passes,
                "states": [list(state.layout.names) for state in step._buckets._states],
                "owed": listed(ledger.owed),
                "withheld": listed(withheld(step)),
            }
        )
    assert step is not None
    parameters = torch.cat([one.flatten() for one in step.replica.trainable])
    return {"stretches": seen, "parameters": parameters.tolist()}


def listed(tensors: dict[str, Tensor]) -> dict[str, list[float]]:
    return {name: one.double().flatten().tolist() for name, one in tensors.items()}


def set_up_too_early(group: TorchGroup) -> str:
    """What is said where states are those of the buckets before DDP rebuilds them."""
    settled, overlapped.PASSES_UNTIL_BUCKETS_STAY = overlapped.PASSES_UNTIL_BUCKETS_STAY, 1
    step = hooked("one_bit_flat", group, BUCKETS_MB[0])
    overlapped.PASSES_UNTIL_BUCKETS_STAY = settled
    try:
        step(*batch(group.rank, 0))
    except (AssertionError, RuntimeError) as error:
        return str(error)
    return ""


def seen_by(workers: Workers) -> dict[str, Any]:
    group = workers.group(CPU)
    seen: dict[str, Any] = {name: across_buckets(name, group) for name in PARAMETERS}
    seen["too early"] = set_up_too_early(group)
    return seen


if __name__ == "__main__":
    as_rank(seen_by)

"""One rank of test_codecs.py: codecs beside torch's own hooks, and as hooks themselves; writes JSON."""

from types import SimpleNamespace
from typing import Any

import torch
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook

from scaling.aggregators.registry import create
from scaling.bucket import BucketLayout
from scaling.errors import NotFiniteError
from scaling.process_group import TorchGroup
from scaling.runtime.workers import Workers
from scaling.training.optimizers import SgdSettings
from scaling.training.overlapped import OverlappedStep
from scaling.training.replica import FlatReplica, Replica
from scaling.training.step import EagerStep
from tests.ranks import as_rank

CPU = torch.device("cpu")
# Two shapes that occur twice, one that is not worth compressing, vectors; not sorted by shape.
SHAPES = {"a": (40, 30), "bias": (40,), "conv": (12, 5, 3, 3), "b": (40, 30), "small": (3, 2), "c": (30, 40)}
LAYOUT = BucketLayout.of(list(SHAPES.items()))
NUM_STEPS = 5
POWER_SGD: dict[str, dict[str, Any]] = {
    "power_sgd rank 1": {"approximation_size": 1},
    "power_sgd rank 2": {"approximation_size": 2},
    "power_sgd rank 4": {"approximation_size": 4},
    "power_sgd without feedback": {"error_feedback": False},
    "power_sgd seed 7": {"seed": 7, "minimum_compression": 4.0},
}
PARAMETERS: dict[str, dict[str, Any]] = {
    "one_bit_flat": {},
    "one_bit_momentum": {},
    "two_bit": {"threshold": 0.02},
    "sign": {},
    "ef_sign": {},
    "qsgd": {},
    "top_k": {"density": 0.1},
    "power_sgd": {},
    "fp16": {},
    "bf16": {},
}
RATES = {"sign": 0.002, "one_bit_momentum": 0.03}


def gradient_of(rank: int, step: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(100 * step + rank)
    return torch.randn(LAYOUT.num_elements, generator=generator)


def bucket_of(flat: torch.Tensor) -> Any:
    """What torch's hooks ask a bucket for."""
    return SimpleNamespace(
        buffer=lambda: flat, index=lambda: 0, gradients=lambda: LAYOUT.views(flat), is_last=lambda: True
    )


def of_ours(name: str, parameters: dict[str, Any], group: TorchGroup) -> list[torch.Tensor]:
    aggregator = create(name, parameters)
    state = aggregator.start(LAYOUT, group, torch.float32, CPU)
    means = (aggregator.aggregate(state, gradient_of(group.rank, step)) for step in range(NUM_STEPS))
    return [mean.clone() for mean in means if mean is not None]


def of_torchs(hook: Any, state: Any, group: TorchGroup) -> list[torch.Tensor]:
    return [hook(state, bucket_of(gradient_of(group.rank, s))).wait().clone() for s in range(NUM_STEPS)]


def power_sgd_state(parameters: dict[str, Any], group: TorchGroup) -> Any:
    state = powerSGD_hook.PowerSGDState(
        group.data,
        matrix_approximation_rank=parameters.get("approximation_size", 1),
        start_powerSGD_iter=2,
        min_compression_rate=parameters.get("minimum_compression", 2),
        use_error_feedback=parameters.get("error_feedback", True),
        random_seed=parameters.get("seed", 0),
        batch_tensors_with_same_shape=True,
    )
    state.iter = state.start_powerSGD_iter  # the steps before it are plain all-reduces
    return state


def beside_torch(group: TorchGroup) -> dict[str, Any]:
    """Largest difference to torch's hook, relative to the largest value, in each step."""
    hooks = {"fp16": default_hooks.fp16_compress_hook, "bf16": default_hooks.bf16_compress_hook}
    pairs = {
        name: (of_ours(name, {}, group), of_torchs(hook, group.data, group)) for name, hook in hooks.items()
    }
    for label, parameters in POWER_SGD.items():
        state = power_sgd_state(parameters, group)
        pairs[label] = (
            of_ours("power_sgd", parameters, group),
            of_torchs(powerSGD_hook.powerSGD_hook, state, group),
        )
    return {
        label: [((a - b).abs().max() / b.abs().max()).item() for a, b in zip(*steps, strict=True)]
        for label, steps in pairs.items()
    }


def batch(rank: int, number: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Learnable: the class is the largest of the first six inputs."""
    inputs = torch.randn((64, 12), generator=torch.Generator().manual_seed(100 * number + rank))
    return inputs, inputs[:, :6].argmax(1)


def network() -> torch.nn.Module:
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(12, 80), torch.nn.ReLU(), torch.nn.Linear(80, 6))


def hooked(name: str, group: TorchGroup) -> OverlappedStep:
    aggregator = create(name, PARAMETERS.get(name, {}))
    settings = SgdSettings(RATES.get(name, 0.1), 0.0 if aggregator.own_momentum() else 0.5)
    inputs, targets = batch(group.rank, 0)
    return OverlappedStep(
        Replica(network()), aggregator, settings, group, bucket_mb=0.001, inputs=inputs, targets=targets
    )


def beside_eager(group: TorchGroup) -> dict[str, Any]:
    """How far the parameters are from the eager step's, with codecs whose values no bucket decides."""
    seen = {}
    for name in ("one_bit", "two_bit"):
        step = hooked(name, group)
        eager = EagerStep(
            FlatReplica(network()), create(name, PARAMETERS.get(name, {})), SgdSettings(0.1, 0.5), group
        )
        for number in range(10):
            step(*batch(group.rank, number))
            eager(*batch(group.rank, number))
        difference = (parameters_of(step) - parameters_of(eager)).abs().max().item()
        seen[name] = {"difference": difference, "notes": step.notes}
    return seen


def parameters_of(step: OverlappedStep | EagerStep) -> torch.Tensor:
    return torch.cat([value.flatten() for value in step.replica.module.state_dict().values()])


def as_hooks(group: TorchGroup) -> dict[str, Any]:
    """A short training with several buckets, cut in the middle once, and not."""
    seen = {}
    for name in PARAMETERS:
        step = hooked(name, group)
        losses = []
        for number in range(30):
            if number == 15:
                saved = step.state_dict()
            losses.append(step(*batch(group.rank, number)).item())
        step.check()
        again = hooked(name, group)
        again.load_state_dict(saved)
        for number in range(15, 30):
            again(*batch(group.rank, number))
        seen[name] = {
            "losses": losses,
            "resumed": torch.equal(parameters_of(step), parameters_of(again)),
            "state": parameters_of(step).double().tolist(),
            "notes": step.notes,
        }
    return seen


def not_finite(group: TorchGroup) -> dict[str, Any]:
    """What each rank says of one NaN in rank 1's input."""
    seen = {}
    for name in PARAMETERS:
        step = hooked(name, group)
        inputs, targets = batch(group.rank, 0)
        if group.rank == 1:
            inputs[3, 4] = float("nan")
        step(inputs, targets)
        try:
            step.check()
            seen[name] = ""
        except NotFiniteError as error:
            seen[name] = str(error)
    return seen


def seen_by(workers: Workers) -> dict[str, Any]:
    group = workers.group(CPU)
    scenarios = (beside_torch, as_hooks, beside_eager, not_finite)
    return {scenario.__name__: scenario(group) for scenario in scenarios}


if __name__ == "__main__":
    as_rank(seen_by)

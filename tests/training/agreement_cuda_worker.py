"""One rank of test_agreement_cuda.py: the exact aggregators on GPUs, over NCCL; writes JSON."""

import gc
import hashlib
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from scaling.aggregators.registry import create
from scaling.process_group import TorchGroup
from scaling.runtime.workers import Workers
from scaling.training.batch_norm import synchronized
from scaling.training.captured import CapturedStep
from scaling.training.optimizers import SgdSettings
from scaling.training.replica import FlatReplica
from scaling.training.step import EagerStep
from scaling.workloads.base import Split
from scaling.workloads.registry import build_module, create_dataset, create_model, resolve_shape
from scaling.workloads.sampling import epoch_batches, shard
from tests.ranks import as_rank

EAGER = ("all_reduce", "ring", "tree", "host_parallel")
CAPTURED = EAGER[:-1]
"""The host's sums are in no CUDA graph."""
GLOBAL_BATCH, NUM_STEPS = 64, 100
NUM_SAMPLES = 2048
"""A batch comes back after 32 steps."""


def fcn_r() -> nn.Module:
    model = create_model("fcn-r")
    return build_module(model, resolve_shape(model, create_dataset("mnist")))


def convolutional() -> nn.Module:
    """Smooth: at the bend of a ReLU one rounding makes another gradient, and a gap that grows from there."""
    layers = [nn.Conv2d(1, 8, 5, stride=2), nn.BatchNorm2d(8), nn.Tanh(), nn.Conv2d(8, 16, 5, stride=2)]
    ends = [nn.Linear(256, 32), nn.BatchNorm1d(32), nn.Tanh(), nn.Linear(32, 10)]
    return nn.Sequential(*layers, nn.BatchNorm2d(16), nn.Tanh(), nn.Flatten(), *ends)


@dataclass(frozen=True)
class Recipe:
    """A network and how it is trained."""

    build: Callable[[], nn.Module]
    settings: SgdSettings


RECIPES = {
    "fcn-r": Recipe(fcn_r, SgdSettings(learning_rate=0.05)),
    "convolutional, sync": Recipe(convolutional, SgdSettings(0.05, momentum=0.9, weight_decay=1e-4)),
}


def samples(device: torch.device) -> Split:
    """In the shape of MNIST: a pixel is 1 more often where the picture of the sample's class has it."""
    generator = torch.Generator().manual_seed(0)
    pictures = torch.rand((10, 1, 28, 28), generator=generator) < 0.2
    targets = torch.randint(10, (NUM_SAMPLES,), generator=generator)
    chances = 0.1 + 0.7 * pictures[targets]
    inputs = (torch.rand(chances.shape, generator=generator) < chances).float()
    return Split(inputs.to(device), targets.to(device))


def trained(
    recipe: Recipe, aggregator: str, split: Split, group: TorchGroup, *, captured: bool
) -> dict[str, Any]:
    """Every step's loss over the global batch, and a digest of this rank's last parameters."""
    torch.manual_seed(0)
    module = synchronized(recipe.build().to(split.inputs.device), group)
    replica = FlatReplica(module)
    step: Any = EagerStep(replica, create(aggregator), recipe.settings, group, capturable=captured)
    epochs = -(-NUM_STEPS * GLOBAL_BATCH // len(split))
    orders = [epoch_batches(len(split), GLOBAL_BATCH, 0, epoch) for epoch in range(1, epochs + 1)]
    own = shard(torch.cat(orders)[:NUM_STEPS], group.rank, group.world_size).to(split.inputs.device)
    batches = [(split.inputs[one], split.targets[one]) for one in own]
    if captured:
        step = CapturedStep(step, *batches[0], group)
    losses = torch.stack([step(*one) for one in batches])
    step.check()
    group.all_reduce(losses)
    return {"losses": (losses / group.world_size).tolist(), "digest": digest(step.replica.parameters)}


def digest(values: Tensor) -> str:
    return hashlib.sha256(values.cpu().numpy().tobytes()).hexdigest()


def seen_by(workers: Workers) -> dict[str, Any]:
    device = torch.device("cuda", workers.info.rank)
    torch.cuda.set_device(device)
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    group, split = workers.group(device), samples(device)
    seen: dict[str, Any] = {}
    for name, recipe in RECIPES.items():
        for way, aggregators in (("eager", EAGER), ("captured", CAPTURED)):
            for aggregator in aggregators:
                key = f"{name}, {way}, {aggregator}"
                try:
                    seen[key] = trained(recipe, aggregator, split, group, captured=way == "captured")
                except Exception:
                    seen[key] = {"failed": traceback.format_exc()}
                group.release_host_buffers()
                gc.collect()
    return seen


if __name__ == "__main__":
    as_rank(seen_by)

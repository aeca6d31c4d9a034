"""On GPUs, over NCCL, the exact aggregators train alike at every world size, eager and in a CUDA graph."""

import gc
import hashlib
import traceback

import pytest
import torch
from torch import nn

from scaling.training.batch_norm import synchronized
from scaling.training.captured import CapturedStep
from scaling.training.optimizers import SgdSettings
from scaling.workloads.base import Split
from scaling.workloads.registry import build_module, create_dataset, create_model, resolve_shape
from scaling.workloads.sampling import epoch_batches, shard
from tests.ranks import as_rank
from tests.training.small import SGD, eager, relative_difference

EAGER = ("all_reduce", "ring", "tree", "host_parallel")
CAPTURED = EAGER[:-1]
"""The host's sums are in no CUDA graph."""
WAYS = [*(("eager", name) for name in EAGER), *(("captured", name) for name in CAPTURED)]
REFERENCE = "eager, all_reduce"
GLOBAL_BATCH, NUM_STEPS = 64, 100
NUM_SAMPLES = 2048
"""A batch comes back after 32 steps."""

pytestmark = [pytest.mark.gpu(2), pytest.mark.processes]


def fcn_r():
    model = create_model("fcn-r")
    return build_module(model, resolve_shape(model, create_dataset("mnist")))


def convolutional():
    """Smooth: at the bend of a ReLU one rounding makes another gradient, and a gap that grows from there."""
    layers = [nn.Conv2d(1, 8, 5, stride=2), nn.BatchNorm2d(8), nn.Tanh(), nn.Conv2d(8, 16, 5, stride=2)]
    ends = [nn.Linear(256, 32), nn.BatchNorm1d(32), nn.Tanh(), nn.Linear(32, 10)]
    return nn.Sequential(*layers, nn.BatchNorm2d(16), nn.Tanh(), nn.Flatten(), *ends)


RECIPES = {"fcn-r": (fcn_r, SgdSettings(learning_rate=0.05)), "convolutional, sync": (convolutional, SGD)}
"""How a network is built, and trained."""


def samples(device):
    """In the shape of MNIST: a pixel is 1 more often where the picture of the sample's class has it."""
    generator = torch.Generator().manual_seed(0)
    pictures = torch.rand((10, 1, 28, 28), generator=generator) < 0.2
    targets = torch.randint(10, (NUM_SAMPLES,), generator=generator)
    chances = 0.1 + 0.7 * pictures[targets]
    inputs = (torch.rand(chances.shape, generator=generator) < chances).float()
    return Split(inputs.to(device), targets.to(device))


def trained(recipe, aggregator, split, group, captured):
    """Every step's loss over the global batch, and a digest of this rank's last parameters."""
    torch.manual_seed(0)
    build, settings = recipe
    module = synchronized(build().to(split.inputs.device), group)
    step = eager(module, aggregator, settings, group, capturable=captured)
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


def digest(values):
    return hashlib.sha256(values.cpu().numpy().tobytes()).hexdigest()


def seen_by(workers):
    device = torch.device("cuda", workers.info.rank)
    torch.cuda.set_device(device)
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    group, split = workers.group(device), samples(device)
    seen = {}
    for name, recipe in RECIPES.items():
        for way, aggregator in WAYS:
            key = f"{name}, {way}, {aggregator}"
            try:
                seen[key] = trained(recipe, aggregator, split, group, captured=way == "captured")
            except Exception:
                seen[key] = {"failed": traceback.format_exc()}
            group.release_host_buffers()
            gc.collect()
    return seen


@pytest.fixture(scope="module")
def alone(on_ranks):
    """What one worker saw."""
    return on_ranks(__file__, 1)


@pytest.fixture(scope="module", params=[1, 2, pytest.param(4, marks=pytest.mark.gpu(4))])
def ranks(request, on_ranks, alone):
    """What each of several workers saw."""
    return alone if request.param == 1 else on_ranks(__file__, request.param)


def found(rank, key):
    assert "failed" not in rank[key], rank[key]["failed"]
    return rank[key]


@pytest.mark.parametrize("network", RECIPES)
def test_training_is_long_enough_and_learns(alone, network):
    losses = found(alone[0], f"{network}, {REFERENCE}")["losses"]
    assert len(losses) == NUM_STEPS
    assert sum(losses[-10:]) < 0.8 * sum(losses[:10])


@pytest.mark.parametrize(("way", "aggregator"), WAYS)
@pytest.mark.parametrize("network", RECIPES)
class TestExactAggregators:
    def test_losses_agree_with_one_worker(self, alone, ranks, network, way, aggregator):
        expected = found(alone[0], f"{network}, {REFERENCE}")["losses"]
        for rank in ranks:
            losses = found(rank, f"{network}, {way}, {aggregator}")["losses"]
            assert relative_difference(losses, expected) < 1e-5

    def test_parameters_are_the_same_bits_on_all_ranks(self, ranks, network, way, aggregator):
        assert len({found(rank, f"{network}, {way}, {aggregator}")["digest"] for rank in ranks}) == 1


if __name__ == "__main__":
    as_rank(seen_by)

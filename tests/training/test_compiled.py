"""torch.compile in eager and overlapped steps: the same training, and under DDP a graph for each bucket.

On GPUs where there is one for each rank, else on the CPU. What torch.compile traces and splits is run as it
is, by its backend aot_eager: no compiler of C++ or Triton is needed.
"""

import functools

import pytest
import torch
from torch import nn

from scaling.aggregators.registry import create
from scaling.errors import ExchangeError
from scaling.training.compute import AUTOCAST, Compute
from scaling.training.ddp import DdpSettings
from scaling.training.overlapped import OverlappedStep
from scaling.training.replica import Replica
from scaling.training.step_check import StepCheck
from tests.ranks import as_rank, refusal
from tests.training.decoder import BATCH, OPTIMIZERS, batches, network
from tests.training.small import eager

WAYS = {
    "none": ("eager", "one bucket"),
    "all_reduce": ("eager", "one bucket", "several"),
    "ring": ("one bucket", "several"),
}
CASES = [("float32", arm, way) for arm, ways in WAYS.items() for way in ways]
CASES.append(("bf16", "all_reduce", "several"))
BUCKETS_MB = {"eager": None, "one bucket": 25.0, "several": 0.1}
TOLERANCE = {"float32": 1e-5, "bf16": 2.0**-8}
SETTINGS = OPTIMIZERS["adamw"]
COMPILE = torch.compile

pytestmark = pytest.mark.processes


class Graphs:
    """Counts what torch.compile traces, and makes it run."""

    def __init__(self):
        self.number, self._backend = 0, torch._dynamo.lookup_backend("aot_eager")

    def __call__(self, graph, example):
        self.number += 1
        return self._backend(graph, example)


def overlapped(replica, arm, group, device, bucket_mb, *, compiled):
    inputs, targets = (one[: BATCH // group.world_size].to(device) for one in next(batches(1)))
    options = {"ddp": DdpSettings(compiled=compiled), "inputs": inputs, "targets": targets}
    return OverlappedStep(replica, create(arm), SETTINGS, group, bucket_mb=bucket_mb, **options)


def training(precision, arm, way, group, device, *, compiled):
    """The losses, and the number of graphs."""
    torch._dynamo.reset()
    graphs, module, compute = Graphs(), network().to(device), Compute(AUTOCAST.get(precision), accumulate=2)
    torch.compile = functools.partial(COMPILE, backend=graphs)
    if way == "eager":
        if compiled:
            module.compile(backend=graphs)
        step = eager(module, arm, SETTINGS, group, compute=compute)
    else:
        replica = Replica(module, compute=compute)
        step = overlapped(replica, arm, group, device, BUCKETS_MB[way], compiled=compiled)
    own = slice(group.rank * BATCH // group.world_size, (group.rank + 1) * BATCH // group.world_size)
    losses = [step(*(values[own].to(device) for values in batch)).item() for batch in batches(3)]
    return {"losses": losses, "graphs": graphs.number}


class RoundsOtherwise(nn.Module):
    """A network whose compiled code gives other gradients than its own."""

    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Embedding(64, 16), nn.Linear(16, 64))

    def forward(self, inputs):
        found = self.layers(inputs)
        return found * 1.02 if torch.compiler.is_compiling() else found


def checks(group, device):
    """What the check finds of a compiled step in DDP's own path, and of one whose mean is wrong there."""
    torch._dynamo.reset()
    torch.compile = functools.partial(COMPILE, backend="aot_eager")
    replica = Replica(RoundsOtherwise().to(device), compute=Compute(AUTOCAST["bf16"]))
    step = overlapped(replica, "all_reduce", group, device, 25.0, compiled=True)
    check = StepCheck(step, create("all_reduce"), SETTINGS, group)
    own = [tuple(one[: BATCH // group.world_size].to(device) for one in next(batches(1)))]
    check.steps(own, 2)
    found = {"right": check.findings.as_dict()}

    def wrong(_, bucket):
        summed = torch.distributed.all_reduce(bucket.buffer(), async_op=True).get_future()
        return summed.then(lambda done: done.value()[0].mul_(1.05 / group.world_size))

    step._ddp.register_comm_hook(None, wrong)
    return {**found, "wrong": refusal(ExchangeError, lambda: check.steps(own, 2))}


def seen_by(workers):
    on_gpus = torch.cuda.device_count() >= workers.info.world_size
    device = torch.device("cuda", workers.info.rank) if on_gpus else torch.device("cpu")
    if on_gpus:
        torch.cuda.set_device(device)
    group = workers.group(device)
    ways = {"compiled": True, "plain": False}
    trainings = {
        f"{', '.join(case)}, {way}": training(*case, group, device, compiled=compiled)
        for case in CASES
        for way, compiled in ways.items()
    }
    return {**trainings, "check": checks(group, device)}


@pytest.fixture(
    scope="module", params=[pytest.param(1, marks=pytest.mark.gpu), 2], ids=["one GPU", "two workers"]
)
def ranks(request, on_ranks):
    return on_ranks(__file__, request.param)


@pytest.mark.parametrize(("precision", "arm", "way"), CASES)
def test_a_compiled_step_learns_what_the_plain_one_does(ranks, precision, arm, way):
    for rank in ranks:
        plain, compiled = (rank[f"{precision}, {arm}, {way}, {how}"] for how in ("plain", "compiled"))
        assert compiled["losses"] == pytest.approx(plain["losses"], rel=TOLERANCE[precision])
        assert plain["graphs"] == 0 < compiled["graphs"]


@pytest.mark.parametrize("arm", ["all_reduce", "ring"])
def test_ddp_splits_the_graph_at_the_ends_of_its_buckets(ranks, arm):
    for rank in ranks:
        eager = rank["float32, all_reduce, eager, compiled"]["graphs"]
        whole, split = (rank[f"float32, {arm}, {way}, compiled"]["graphs"] for way in WAYS["ring"])
        assert (whole, split > 2) == (eager, True)


def test_the_check_compares_a_compiled_step_with_compiled_gradients_and_finds_a_wrong_mean(ranks):
    for check in (rank["check"] for rank in ranks):
        assert (check["right"]["exchange"], check["right"]["exchanges"]) == ("exact mean", 2)
        assert check["right"]["largest_error_ratio"] <= 1.0
        assert "1.05 times it, where the exact mean is" in check["wrong"]


if __name__ == "__main__":
    as_rank(seen_by)

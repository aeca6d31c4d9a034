"""DDP's buckets with their sizes one by one: they are what is exchanged, and the training stays the same."""

import pytest
import torch
from torch import nn

from scaling.aggregators.registry import create
from scaling.errors import LaunchError
from scaling.measure.clock import clock_for
from scaling.measure.phases import PhaseRecorder
from scaling.training import ddp as wrapping
from scaling.training.ddp import TAKES_SIZES, DdpSettings
from scaling.training.optimizers import SgdSettings
from tests.ranks import as_rank
from tests.training.small import CPU, batch_of, flat, overlapped

KIB, MB = 1024, 2.0**20
WIDTH, DEPTH = 16, 8  # each layer has 1 KiB of weights
ONE_BY_ONE = (2 * KIB / MB, KIB / MB, 4 * KIB / MB)
TWO = DdpSettings(bucket_sizes_mb=(KIB / MB, 3 * KIB / MB))
NAMES = ("all_reduce", "ring")
WAYS = {
    "one size": DdpSettings(),
    "one by one": DdpSettings(bucket_sizes_mb=ONE_BY_ONE),
    "first and others": TWO,
}

pytestmark = pytest.mark.processes


def trained(name, group, ddp):
    torch.manual_seed(0)
    layers = [nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(DEPTH)]
    module = nn.Sequential(*(part for layer in layers for part in (layer, nn.ReLU())))
    data = [batch_of(100 * number + group.rank, 8, WIDTH, WIDTH) for number in range(3)]
    chosen = (module, create(name), SgdSettings(0.1, 0.5), group, data[0])
    step = overlapped(*chosen, bucket_mb=25.0, ddp=ddp)
    for one in data:
        step(*one)
    step.prepare_profiled(PhaseRecorder(clock_for(CPU)))
    return {"bytes": step.bucket_bytes, "parameters": flat(module).tolist()}


def seen_by(workers):
    group, seen = workers.group(CPU), {}
    try:
        unused = DdpSettings(bucket_sizes_mb=ONE_BY_ONE, find_unused_parameters=True)
        trained("all_reduce", group, unused)
    except LaunchError as error:
        seen["refused"] = str(error)
    for name in NAMES:
        seen[name] = {way: trained(name, group, ddp) for way, ddp in WAYS.items()}
    wrapping.TAKES_SIZES = False
    for name in NAMES:
        seen[name]["in older torch"] = trained(name, group, TWO)
    return seen


@pytest.fixture(scope="module")
def ranks(on_ranks):
    return on_ranks(__file__, 2)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    ("way", "sizes"),
    [
        ("one size", [8 * KIB]),
        pytest.param(
            "one by one",
            [2 * KIB, KIB, 4 * KIB, KIB],
            marks=pytest.mark.skipif(not TAKES_SIZES, reason="this torch takes two sizes"),
        ),
        ("first and others", [KIB, 3 * KIB, 3 * KIB, KIB]),
        ("in older torch", [KIB, 3 * KIB, 3 * KIB, KIB]),
    ],
)
def test_buckets_are_of_the_sizes_of_which_the_last_is_repeated_and_change_no_training(
    ranks, name, way, sizes
):
    for rank in ranks:
        expected = rank[name]["one size"]["parameters"]
        assert rank[name][way]["bytes"] == sizes
        assert rank[name][way]["parameters"] == pytest.approx(expected, rel=1e-6, abs=1e-7)


def test_unused_parameters_are_not_looked_for_where_sizes_are_those_of_gradients_in_their_order(ranks):
    assert all("needs a loss that depends on every parameter" in rank["refused"] for rank in ranks)


if __name__ == "__main__":
    as_rank(seen_by)

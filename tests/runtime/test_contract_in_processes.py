"""Aggregators of MPI and Horovod keep the contract, in processes that a real launcher starts."""

import json
import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from launchers.rank_info import RankInfo
from scaling import conformance
from scaling.aggregators.registry import create
from scaling.bucket import BucketLayout
from scaling.errors import LaunchError
from scaling.runtime import LaunchLibraries
from scaling.runtime.meeting import own_address
from scaling.runtime.workers import Workers

CPU = torch.device("cpu")
REFUSED = (torch.bfloat16, torch.float16)
FP16 = {"compression": "fp16"}
ROOT = Path(__file__).parents[2]

pytestmark = pytest.mark.processes


def checked(aggregator, case, run):
    """What does not hold, or None; and whether there are residuals."""
    try:
        return None, conformance.check(aggregator, case, run)
    except AssertionError as error:
        return str(error) or "an assertion", False


def cases(world_size):
    """Those of float32 that are fixed, one that is resumed, and buckets of few elements."""
    whole, *others = [case for case in conformance.fixed_cases(world_size) if case.dtype == torch.float32]
    small = [replace(whole.until(2), shapes=(shape,)) for shape in ((1,), (10,))]
    return [replace(whole, resume_after=5), *others, *small]


def refusals(aggregator, group):
    """What is said of each 16-bit type; None where it is taken."""

    def start(dtype):
        try:
            aggregator.start(BucketLayout.of([("values", (4,))]), group, dtype, CPU)
        except LaunchError as error:
            return str(error)
        return None

    return {str(dtype).removeprefix("torch."): start(dtype) for dtype in REFUSED}


def cast_mean(aggregator, group):
    """The largest error of a mean that is cast on the way, and whether the ranks' bits are the same."""
    case = conformance.Case(group.world_size, torch.float32, ((1000,),), ("normal",))
    gradients = case.gradients(0)
    state = aggregator.start(case.layout, group, torch.float32, CPU)
    mean = aggregator.aggregate(state, gradients[group.rank].clone())
    return float((mean - torch.stack(gradients).double().mean(0)).abs().max()), mean.tolist()


def main(out, names):
    """One rank."""
    info = RankInfo.from_env(os.environ)
    libraries = LaunchLibraries(info)
    workers = Workers(info, libraries.share(), own_address(info, os.environ))
    libraries.offer(workers)
    group = workers.group(CPU)

    def gathered(value):
        values = [None] * info.world_size
        dist.all_gather_object(values, value)
        return values

    def run(world_size, work):
        assert world_size == info.world_size
        return gathered(work(group))

    seen: dict[str, Any] = {"launcher": info.launcher, "size": info.world_size, "aggregators": {}}
    seen["libraries"] = libraries.record()
    for name in names:
        aggregator = create(name)
        results = [checked(aggregator, case, run) for case in cases(info.world_size)]
        seen["aggregators"][name] = {
            "failures": [failure for failure, _ in results if failure],
            "has_residuals": any(has_residuals for _, has_residuals in results),
            "refusals": refusals(aggregator, group),
        }
        if "horovod" in name:
            error, bits = cast_mean(create(name, FP16), group)
            every = set(map(tuple, gathered(bits)))
            seen["aggregators"][name] |= {"fp16_error": error, "fp16_bits": len(every)}
    if info.rank == 0:
        out.write_text(json.dumps(seen))
    workers.close()


@pytest.fixture
def seen(tmp_path):
    """seen(launcher, world size, *names): what rank 0 wrote of these aggregators."""

    def run(launcher, world_size, *names):
        out = tmp_path / "seen.json"
        done = launcher.run(world_size, __file__, str(out), *names, cwd=ROOT, env={"PYTHONPATH": str(ROOT)})
        assert done.returncode == 0, done.stdout + done.stderr
        told = json.loads(out.read_text())
        assert (told["launcher"], told["size"]) == (launcher.name, world_size)
        assert set(told["aggregators"]) == set(names)
        return told

    return run


def test_aggregators_over_mpi_keep_the_contract_and_refuse_what_mpi_cannot_add(seen, mpirun):
    told = seen(mpirun, 4, "mpi", "mpi_one_bit")
    versions = {"openmpi": "Open MPI v", "mpich": "MPICH Version"}
    assert told["libraries"]["mpi"].startswith(versions[mpirun.name])
    whole, one_bit = told["aggregators"]["mpi"], told["aggregators"]["mpi_one_bit"]
    assert whole["failures"] == one_bit["failures"] == []
    assert one_bit["has_residuals"]
    assert set(whole["refusals"]) == {"bfloat16", "float16"}
    for name, message in whole["refusals"].items():
        assert message.startswith(f"MPI cannot add {name}; it adds float32, float64, int32, int64")
    assert set(one_bit["refusals"].values()) == {None}, "its messages are bits, which nobody adds"


def test_aggregators_over_horovod_keep_the_contract_and_their_replicas_agree_in_16_bits(seen, horovodrun):
    told = seen(horovodrun, 3, "horovod", "horovod_optimizer")["aggregators"]
    for name, one in told.items():
        assert one["failures"] == [], name
        assert one["fp16_bits"] == 1, f"{name}: ranks differ"
        # Some roundings of values of the order of one to 11 bits.
        assert 0 < one["fp16_error"] < 3e-3, name
        said = "Horovod cannot average bfloat16; it averages float32, float64, float16"
        assert one["refusals"] == {"bfloat16": said, "float16": None}


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])

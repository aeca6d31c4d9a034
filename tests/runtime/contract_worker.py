"""One rank of test_contract_in_processes.py: puts aggregators of other libraries through the contract."""

import json
import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

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


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])

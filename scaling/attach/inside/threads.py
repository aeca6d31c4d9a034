"""As many threads as fit on the cores of a rank."""

import json
import os
from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import torch
import torch.distributed as dist


def place() -> dict[str, Any]:
    if hasattr(os, "sched_getaffinity"):
        cores = sorted(os.sched_getaffinity(0))
    else:
        cores = list(range(os.cpu_count() or 1))
    return {"host": os.uname().nodename, "affinity": cores}


def threads_that_fit(own: dict[str, Any], places: Sequence[dict[str, Any]]) -> int:
    """So many threads that each has a core, and the ranks that share cores have equal parts of them."""
    here = [set(other["affinity"]) for other in places if other["host"] == own["host"]]
    share = sum(Fraction(1, max(1, sum(core in other for other in here))) for core in own["affinity"])
    return max(1, int(share))


def fit_threads() -> None:
    own = place()
    torch.set_num_threads(threads_that_fit(own, _places(own)))
    pid, set_num_threads = os.getpid(), torch.set_num_threads

    def fitted(nthreads: int) -> None:
        if os.getpid() != pid:  # a loader's worker, which takes one
            set_num_threads(nthreads)

    torch.set_num_threads = fitted


def _places(own: dict[str, Any]) -> list[dict[str, Any]]:
    """The place of every rank; launchers bind ranks to cores or leave them all to each of them."""
    if not dist.is_initialized():
        return [own]
    try:
        store, name = dist.distributed_c10d._get_default_store(), "scaling_attach_place_{}"
        store.set(name.format(dist.get_rank()), json.dumps(own))
        return [json.loads(store.get(name.format(rank))) for rank in range(dist.get_world_size())]
    except RuntimeError:  # it has no store any more
        return [own] * int(os.environ.get("LOCAL_WORLD_SIZE") or dist.get_world_size())

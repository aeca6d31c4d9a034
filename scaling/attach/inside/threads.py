"""As many threads as fit on the cores of a rank."""

import json
import os
from typing import Any

import torch
import torch.distributed as dist

from .cores import place, threads_that_fit


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

"""What an arm changes in a process of the script."""

import json
import math
import os
import sys
from contextlib import nullcontext
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import GradBucket
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import dataloader

from .agent import Agent
from .alone import without_bitmap
from .cores import place, threads_that_fit
from .repeats import Repeats


def local(_: Any, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
    """Exchanges nothing."""
    # torch checks the annotations of a hook, so this file has them as objects, not as text.
    done: torch.futures.Future[torch.Tensor] = torch.futures.Future()
    done.set_result(bucket.buffer())
    return done


def all_reduce(_: Any, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
    """What DDP does without a hook."""
    buffer = bucket.buffer().div_(dist.get_world_size())
    future = dist.all_reduce(buffer, async_op=True).get_future()
    return future.then(lambda done: done.value()[0])  # type: ignore[no-any-return]


WITHOUT_EXCHANGE = ("no_exchange", "marked")
HOOKS = {"no_exchange": local, "marked": local, "hook_control": all_reduce}

ZERO = "torch.distributed.optim.zero_redundancy_optimizer"
"""Its optimizer sends every rank's part of the parameters to all others after each step."""


def change(agent: Agent) -> None:
    """Makes the process that of the agent's arm."""
    _watch_models(agent)
    _refuse_join(agent)
    if agent.arm == "cached_input":
        _cache_input(agent)
    if agent.arm == "threads":
        agent.when_armed.append(_fit_threads)


def _watch_models(agent: Agent) -> None:
    """Tells the agent of each model that is wrapped; in arms with a hook the script's own is left out."""
    begin, register_hook = DistributedDataParallel.__init__, DistributedDataParallel.register_comm_hook
    register_builtin = DistributedDataParallel._register_builtin_comm_hook

    def init(self: Any, module: Any, *arguments: Any, **options: Any) -> None:
        if agent.bucket_mb is not None:
            options["bucket_cap_mb"] = agent.bucket_mb
        with without_bitmap(agent, self) if agent.arm in WITHOUT_EXCHANGE else nullcontext():
            begin(self, module, *arguments, **options)
        # Buffers are exchanged too; the control differs from the baseline by its hook alone.
        if agent.arm in WITHOUT_EXCHANGE and not any(
            isinstance(layer, torch.nn.SyncBatchNorm) for layer in module.modules()
        ):
            self.broadcast_buffers = False
        agent.wraps(self)
        if agent.arm in HOOKS:
            register_hook(self, None, HOOKS[agent.arm])
        if agent.arm in WITHOUT_EXCHANGE and (zero := sys.modules.get(ZERO)) is not None:
            zero.ZeroRedundancyOptimizer._sync_params = lambda self: None

    def register(self: Any, state: Any, hook: Any) -> None:
        agent.facts["script_hook"] = getattr(hook, "__name__", str(hook))
        if agent.arm not in HOOKS:
            register_hook(self, state, hook)

    def builtin(self: Any, comm_hook_type: Any) -> None:
        agent.facts["script_hook"] = str(comm_hook_type).rpartition(".")[2]
        if agent.arm not in HOOKS:
            register_builtin(self, comm_hook_type)  # type: ignore[no-untyped-call]

    DistributedDataParallel._register_builtin_comm_hook = builtin  # type: ignore[method-assign]
    DistributedDataParallel.__init__ = init  # type: ignore[method-assign]
    DistributedDataParallel.register_comm_hook = register  # type: ignore[method-assign]


def _fit_threads() -> None:
    """So many threads that all ranks of this host have cores of their own, whatever the script asks for."""
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


def _refuse_join(agent: Agent) -> None:
    """Under Join a rank that has no batch left goes on exchanging: it makes no steps of its own."""
    from torch.distributed.algorithms.join import Join

    def enter(self: Any) -> Any:
        agent.refuse("it trains under Join (uneven inputs), in which ranks make different numbers of steps")

    Join.__enter__ = enter  # type: ignore[method-assign]


class Repeated(dataloader._BaseDataLoaderIter):
    """An epoch of a loader that repeats its batch: no worker is started for it and nothing is loaded.

    Args:
        loader: it has its batch.
    """

    def __init__(self, loader: Any) -> None:
        self._attach_loader, self._attach_drawn = loader, 0
        self._num_workers = loader.num_workers
        self._index_sampler = loader._index_sampler


def _cache_input(agent: Agent) -> None:
    """Every batch after a loader's first one repeats that one; epochs keep their length.

    A stream has no length: its epoch does not end. What an evaluation draws is loaded as ever.
    """
    _follow_epochs()
    iterator, iterate = dataloader._BaseDataLoaderIter, dataloader.DataLoader.__iter__
    draw = iterator.__next__

    def iterating(self: Any) -> Any:
        return Repeated(self) if agent.is_training and hasattr(self, "_attach_first") else iterate(self)

    def following(self: Any) -> Any:
        loader: Any = getattr(self, "_attach_loader", None)
        has_first = hasattr(loader, "_attach_first")
        if has_first and (agent.is_training or isinstance(self, Repeated)):
            if self._attach_drawn >= _length(loader):
                raise StopIteration
            self._attach_drawn += 1
            return loader._attach_first.give()
        batch = draw(self)
        if loader is not None:
            self._attach_drawn += 1
        if loader is not None and agent.is_training:
            loader._attach_first = Repeats(batch)
            agent.facts["has_cached_input"] = True
        return batch

    dataloader.DataLoader.__iter__ = iterating  # type: ignore[method-assign]
    iterator.__next__ = following  # type: ignore[method-assign]


def _follow_epochs() -> None:
    """Each iterator knows its loader, and how much of the epoch it has drawn."""
    iterator = dataloader._BaseDataLoaderIter
    begin, reset = iterator.__init__, iterator._reset

    def init(self: Any, loader: Any) -> None:
        begin(self, loader)
        self._attach_loader, self._attach_drawn = loader, 0

    def again(self: Any, *arguments: Any, **options: Any) -> None:
        reset(self, *arguments, **options)  # of workers that are kept
        self._attach_drawn = 0

    iterator.__init__, iterator._reset = init, again  # type: ignore[method-assign]


def _length(loader: Any) -> float:
    """The batches of an epoch; infinite where that is not known."""
    try:
        return len(loader)
    except Exception:  # noqa: BLE001 # a stream, or a sampler without a length
        return math.inf

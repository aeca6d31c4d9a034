"""What an arm changes in a process of the script."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from importlib import import_module
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.algorithms.join
from torch._C import _distributed_c10d
from torch._C._distributed_c10d import GradBucket
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DistributedSampler, RandomSampler

from .agent import Agent
from .arms import ARMS, NO_SWITCH
from .cached import cache_input
from .libraries import around
from .settings import watch_anomalies


class Alone(dist.ProcessGroup):
    """The script's group while the arm exchanges; else collectives leave tensors as they are."""

    agent: Agent
    group: dist.ProcessGroup

    def getBackendName(self) -> str:  # noqa: N802
        return "alone"

    def allreduce(self, tensors: Any, opts: Any = None) -> Any:  # type: ignore[override]
        return self.group.allreduce(tensors, opts) if self.agent.arm.exchanges else _done(tensors)

    def broadcast(self, tensors: Any, opts: Any = None) -> Any:  # type: ignore[override]
        return self.group.broadcast(tensors, opts) if self.agent.arm.exchanges else _done(tensors)


_groups: list[Alone] = []  # the groups: torch itself holds no reference to the Python objects


def _done(tensors: Any) -> Any:
    c10d: Any = _distributed_c10d
    future: torch.futures.Future[Any] = torch.futures.Future()
    future.set_result(tensors)
    return c10d._create_work_from_future(future)


@contextmanager
def without_bitmap(agent: Agent, model: Any) -> Iterator[None]:
    """With `find_unused_parameters` DDP's reducer exchanges in each backward pass which parameters were used;
    here it has a group that asks the arm. The module keeps the script's, to send parameters to the others."""
    module: Any = dist  # where DDP looks the reducer up
    original = module.Reducer

    def reducer(*arguments: Any, **options: Any) -> Any:
        if not model.find_unused_parameters:
            return original(*arguments, **options)
        agent.facts["exchanges_used"] = False
        try:
            at = next(i for i, argument in enumerate(arguments) if isinstance(argument, dist.ProcessGroup))
            group = Alone(arguments[at].rank(), arguments[at].size())  # type: ignore[call-arg]
            group.agent, group.group = agent, arguments[at]
            _groups.append(group)
            return original(*arguments[:at], group, *arguments[at + 1 :], **options)
        except (RuntimeError, TypeError, StopIteration):  # another torch
            agent.facts["exchanges_used"] = True
            return original(*arguments, **options)

    module.Reducer = reducer
    try:
        yield
    finally:
        module.Reducer = original


def local(bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
    buffer = bucket.buffer()
    devices: Any = [buffer.device] if buffer.is_cuda else None
    done: torch.futures.Future[torch.Tensor] = torch.futures.Future(devices=devices)
    done.set_result(buffer)
    return done


def _reduced(bucket: GradBucket, dtype: torch.dtype | None) -> torch.futures.Future[torch.Tensor]:
    """What DDP does without a hook; or its `fp16_compress_hook` and `bf16_compress_hook`."""
    buffer = bucket.buffer()
    sent = buffer.to(dtype or buffer.dtype).div_(dist.get_world_size())
    future = _all_reduce(sent, async_op=True).get_future()
    return future.then(lambda done: done.value()[0] if dtype is None else buffer.copy_(done.value()[0]))


_all_reduce = dist.all_reduce  # before the script's own calls are counted

HOOKS: dict[str, Callable[[GradBucket], torch.futures.Future[torch.Tensor]]] = {  # by what a row names
    "local": local,
    "all_reduce": lambda bucket: _reduced(bucket, None),
    "fp16": lambda bucket: _reduced(bucket, torch.float16),
    "bf16": lambda bucket: _reduced(bucket, torch.bfloat16),
}
# Its optimizer sends every rank's part of the parameters to all others after each step.
ZERO = "torch.distributed.optim.zero_redundancy_optimizer"
BROADCAST_BYTES = 250 * 2**20


def change(agent: Agent) -> None:
    _watch_models(agent)
    if agent.arm.is_alone:
        _start_one()
    if agent.arm.is_bare:
        return
    watch_anomalies()
    joins = "it trains under Join (uneven inputs), in which ranks make different numbers of steps"
    around(dist.algorithms.join.Join, "__enter__")(lambda *_: agent.refuse(joins))
    _draw_other_samples(agent)
    if any(ARMS[name].is_cached for name in agent.plan.arms):
        cache_input(agent)
    agent.when_exchanging.append(lambda: _exchange_or_not(agent))


def _start_one() -> None:
    """Of a script that starts its ranks itself, where no option of its command says how many."""
    around(sys.modules["torch.multiprocessing.spawn"], "start_processes")(
        lambda start, fn, args=(), nprocs=1, *more, **named: start(fn, args, 1, *more, **named)
    )

    @around(dist, "init_process_group")
    def _(begin: Any, *arguments: Any, **named: Any) -> None:
        if "world_size" in named:
            named |= {"world_size": 1, "rank": 0}
        begin(*arguments, **named)


def _watch_models(agent: Agent) -> None:
    """Models have a hook that asks which arm is on, but in most runs of one; the script's own excludes it."""
    register_ours = DistributedDataParallel.register_comm_hook
    is_hooked = agent.plan.is_switched or not agent.arm.exchanges or agent.arm.replaces_hook
    aggregators = {ARMS[name].hook for name in agent.plan.arms} - HOOKS.keys()

    def hook(ours: dict[str, Any], bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
        if ours and len(agent.plan.labels) < agent.warmup:  # its exchanges are set up and checked
            return next(iter(ours.values())).exchange(bucket)
        name = agent.arm.hook
        return ours[name].exchange(bucket) if name in ours else HOOKS[name](bucket)

    @around(DistributedDataParallel, "__init__")
    def _(begin: Any, self: Any, module: Any, *arguments: Any, **options: Any) -> None:
        if agent.arm.bucket_mb is not None:
            options["bucket_cap_mb"] = agent.arm.bucket_mb
        if agent.plan.is_switched and options.get("static_graph"):
            agent.refuse(f"{NO_SWITCH}its model has a static graph")
        with without_bitmap(agent, self) if is_hooked else nullcontext():
            begin(self, module, *arguments, **options)
        agent.facts["find_unused"] = bool(self.find_unused_parameters)
        # Batch normalization that is synchronized needs its buffers to be the same.
        self._attach_broadcasts = self.broadcast_buffers
        kinds = map(type, module.modules())
        self._attach_is_synchronized = any(issubclass(kind, torch.nn.SyncBatchNorm) for kind in kinds)
        agent.wraps(self)
        if is_hooked:
            # Only in these runs: to import it takes a second.
            made = {name: import_module("scaling").comm_hook(name, self)[0] for name in sorted(aggregators)}
            self._attach_hooks = made
            register_ours(self, made, hook)
        _exchange_or_not(agent)

    for name in ("register_comm_hook", "_register_builtin_comm_hook"):

        @around(DistributedDataParallel, name)
        def _(register: Any, self: Any, *arguments: Any, **named: Any) -> None:
            own = named.get("hook", named.get("comm_hook_type", arguments[-1] if arguments else None))
            agent.facts["script_hook"] = known = getattr(own, "__name__", str(own).rpartition(".")[2])
            if agent.plan.is_switched:
                agent.refuse(f"{NO_SWITCH}the script has a communication hook of its own, {known}")
            if not is_hooked:
                register(self, *arguments, **named)


def require_exchange(agent: Agent) -> None:
    """An arm of an aggregator: its exchanges are what was asked for."""
    for model in agent.ddp():
        hooks: Any = model._attach_hooks
        if hooks[agent.arm.hook].fallback:
            agent.refuse(f"aggregator {agent.arm.hook}: {hooks[agent.arm.hook].fallback}")


def _exchange_or_not(agent: Agent) -> None:
    """Buffers and shards of the parameters are exchanged too; what has drifted is made equal again before."""
    for model in agent.ddp():
        is_left_out = not agent.arm.exchanges and not model._attach_is_synchronized
        model.broadcast_buffers = bool(model._attach_broadcasts) and not is_left_out
        if agent.arm.exchanges and agent.plan.is_switched and len(agent.plan.labels) >= agent.warmup:
            _make_equal(agent, model)
    kind: Any = getattr(sys.modules.get(ZERO), "ZeroRedundancyOptimizer", None)
    if kind is not None and not hasattr(kind, "_attach_sync"):
        kind._attach_sync = kind._sync_params
        kind._sync_params = lambda self: self._attach_sync() if agent.arm.exchanges else None


def _make_equal(agent: Agent, model: Any) -> None:
    """Parameters and buffers are those of rank 0 again, and so is the scale of gradients."""
    with torch.no_grad():
        tensors = [tensor.detach() for tensor in (*model.module.parameters(), *model.module.buffers())]
        numbers = [tensor for tensor in tensors if tensor.is_floating_point()]
        if not all(bool(norm.isfinite()) for norm in torch._foreach_norm(numbers)):
            agent.facts["not_finite"] = len(agent.plan.labels)
        for scaler in agent.scalers:
            tensors += [value for value in (scaler._scale, scaler._growth_tracker) if value is not None]
        by_kind: dict[Any, list[torch.Tensor]] = {}
        for tensor in tensors:
            by_kind.setdefault((tensor.device, tensor.dtype), []).append(tensor)
        for same in by_kind.values():
            dist._broadcast_coalesced(model.process_group, same, BROADCAST_BYTES, 0)  # type: ignore[attr-defined]


def _draw_other_samples(agent: Agent) -> None:
    """A launch has samples of its own, or what the script's order makes of steps would be in each of them."""

    @around(DistributedSampler, "__init__")
    def _(begin: Any, self: Any, *arguments: Any, **options: Any) -> None:
        begin(self, *arguments, **options)
        self.seed += agent.seed

    @around(RandomSampler, "__iter__")
    def _(draw: Any, self: Any) -> Any:
        if agent.seed:  # else as the script draws
            seed = int(torch.empty((), dtype=torch.int64).random_(generator=self.generator)) // 2
            self.generator = torch.Generator().manual_seed(seed + agent.seed)
        return draw(self)

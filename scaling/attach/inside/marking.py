"""Counts what a step consists of; in some arms also when each part of it was."""

import os
import threading
import time
from collections import Counter
from typing import Any

import torch
import torch.distributed as dist
from torch.optim.optimizer import Optimizer, register_optimizer_step_pre_hook
from torch.utils.data import BatchSampler, RandomSampler, SequentialSampler, dataloader
from torch.utils.data._utils import fetch

from .agent import BACKWARD, Agent
from .arms import SAFE
from .batches import mapped
from .libraries import around
from .settings import asks_for_anomalies

# Of the script's own: in arms with phases the agent's hook exchanges nothing.
COLLECTIVES = (
    *SAFE, "all_to_all", "all_to_all_single", "broadcast", "broadcast_object_list", "gather", "gather_object",
    "reduce", "reduce_scatter", "reduce_scatter_tensor", "scatter", "monitored_barrier",
)  # fmt: skip
DIGESTED, SAMPLES, NUMBERS = 8, 64, 64  # batches of whose first samples' first numbers a digest is kept

# Calls that have not ended, by name and thread; of backward passes those of all threads together.
_open = Counter[tuple[str, int]]()


def mark(agent: Agent) -> None:
    """Wraps what is counted; in the arm with nothing but a clock, what tells kinds of steps apart."""
    backward, grad = torch.autograd.backward, torch.autograd.grad
    if not agent.arm.is_bare:
        backward, grad = (_counted(agent, "backward", call) for call in (backward, grad))
    torch.autograd.backward = _stepping(agent, backward, backward)
    torch.autograd.grad = _stepping(agent, grad, torch.autograd.grad, is_grad=True)
    _batches(agent)
    _evaluations(agent)
    for name in COLLECTIVES:
        call = own_or_left_out(agent, name, getattr(dist, name))
        setattr(dist, name, call if agent.arm.is_bare else _counted(agent, "collective", call))
    if agent.arm.is_bare:
        return

    @around(torch.autocast, "__enter__")
    def _(enter: Any, self: Any) -> Any:
        agent.facts["autocasts"] = True
        return enter(self)

    @around(torch.amp.GradScaler, "step")
    def _(step: Any, self: Any, optimizer: Any, *arguments: Any, **options: Any) -> Any:
        before = agent.done["update"]
        if self not in agent.scalers:
            agent.scalers.append(self)
        result = step(self, optimizer, *arguments, **options)
        if agent.is_armed and agent.done["update"] == before:
            agent.after_step(optimizer)  # it was skipped, for infinite gradients
        return result

    dist.Work.wait = _counted(agent, "collective", dist.Work.wait)  # type: ignore[method-assign]
    _fetches(agent)
    _updates(agent)


def _stepping(agent: Agent, counted: Any, call: Any, *, is_grad: bool = False) -> Any:
    """A backward pass; `torch.autograd.grad` is one where nothing else is."""

    def stepping(*arguments: Any, **options: Any) -> Any:
        if is_grad and (agent.calls_backward or agent.optimizers or agent.steps_without):
            return call(*arguments, **options)
        agent.calls_backward = agent.calls_backward or not is_grad
        result = counted(*arguments, **options)
        agent.after_part(BACKWARD)
        return result

    return stepping


def own_or_left_out(agent: Agent, name: str, call: Any) -> Any:
    """A collective of the script's own; while they are left out, its result is of this rank alone."""

    def called(*arguments: Any, **options: Any) -> Any:
        agent.after_part(name)
        if agent.is_armed:
            agent.collectives[name] += 1
            given = (*arguments[:1], *options.values())
            agent.passed += sum(one.numel() for one in given if torch.is_tensor(one))
        if not agent.leaves_out_collectives or name not in SAFE or options.get("async_op"):
            return call(*arguments, **options)
        if name.startswith("all_gather"):
            values = [*arguments, *options.values()]
            if isinstance(values[0], torch.Tensor):
                values[0].view(-1, *values[1].shape)[:] = values[1]
            elif name == "all_gather":
                for place in values[0]:
                    place.copy_(values[1])
            else:
                values[0][:] = [values[1]] * len(values[0])
        return None

    return called


def _updates(agent: Agent) -> None:
    """When an optimizer's step begins, after its closure if it has one; it ends with the agent's mark."""

    def begins(optimizer: Optimizer) -> None:
        if agent.arm.is_settled and agent.device == "cuda":
            torch.cuda.synchronize()
        agent.updates[id(optimizer)] = time.perf_counter()

    def before_step(optimizer: Optimizer, arguments: Any, options: Any) -> Any:
        if not agent.is_armed or not agent.arm.has_phases:
            return None
        begins(optimizer)
        closure = options.get("closure", arguments[1] if len(arguments) > 1 else None)
        if not callable(closure):
            return None

        def closed() -> Any:
            agent.facts["has_closure"] = True
            try:
                return closure()
            finally:
                begins(optimizer)

        if "closure" in options:
            return arguments, {**options, "closure": closed}
        return (arguments[0], closed, *arguments[2:]), options

    register_optimizer_step_pre_hook(before_step)


def _counted(agent: Agent, name: str, call: Any) -> Any:
    """The call; counted where a step's signature has it. A call inside another one is part of that:
    checkpointed layers run a backward pass of their own in it, in another thread on a GPU."""

    def counted(*arguments: Any, **options: Any) -> Any:
        key = name, 0 if name == "backward" else threading.get_ident()
        _open[key] += 1
        is_outermost = _open[key] == 1
        is_timed = is_outermost and agent.arm.has_phases and agent.is_armed
        # Work that a GPU still has is part of the phase that asked for it; in the arm for that alone.
        is_settled = is_timed and agent.arm.is_settled and agent.device == "cuda"
        if is_settled:
            torch.cuda.synchronize()
        start = time.perf_counter()
        try:
            if is_outermost and name == "backward":
                agent.done[name] += 1
                if any(not model.require_backward_grad_sync for model in agent.ddp()):
                    agent.facts["skips_exchange"] = True  # left to a later pass, as under `no_sync`
                if asks_for_anomalies():
                    agent.facts["anomaly detection"] = True
                agent.own_s += time.perf_counter() - start
            return call(*arguments, **options)
        finally:
            if is_settled:
                torch.cuda.synchronize()
            if is_timed:
                agent.phases.append((name, start, time.perf_counter()))
            _open[key] -= 1

    return counted


def _sizes(batch: Any) -> tuple[int, int]:
    tensors = (tensor for tensor in tensors_of(batch) if tensor.dim() and len(tensor))
    return next(((len(tensor), tensor.numel()) for tensor in tensors), (0, 0))


def _digests(batch: Any) -> list[int]:
    for one in tensors_of(batch):
        if one.dim() and one.numel() and one.layout == torch.strided:
            samples = one.detach()[:SAMPLES]
            return [hash(tuple(of)) for of in samples.reshape(len(samples), -1)[:, :NUMBERS].tolist()]
    return []


def tensors_of(batch: Any) -> list[torch.Tensor]:
    found: list[Any] = []
    mapped(batch, lambda value: found.append(value) or value)  # type: ignore[func-returns-value]
    return [value for value in found if isinstance(value, torch.Tensor)]


def _batches(agent: Agent) -> None:
    """Counts the batches that a loader gives, and the iterators over it, but for those of an evaluation. What
    another thread draws ahead belongs to no step: its size alone is noted. Drawing is input, and so is to
    start and to stop a loader's workers."""

    def timed(call: Any, self: Any) -> Any:
        start = time.perf_counter()
        try:
            return call(self)
        finally:
            if agent.arm.has_phases and agent.is_armed and agent.is_own_thread:
                agent.phases.append(("input", start, time.perf_counter()))

    @around(dataloader._BaseDataLoaderIter, "__next__")
    def _(draw: Any, self: Any) -> Any:
        if agent.is_armed and agent.is_own_thread:
            # Some scripts evaluate by `no_grad` alone: they draw from another loader than in training.
            is_other = bool(agent.batches) and not getattr(self, "_attach_trains", False)
            agent.evaluates(is_other and not agent.may_train)
        try:
            batch = timed(draw, self)
        except StopIteration:
            if agent.is_training:
                agent.facts["exhausted"] = agent.facts.get("exhausted", 0) + 1
                agent.plan.waits_for_epoch = False
            raise
        start, is_own = time.perf_counter(), agent.is_own_thread
        if is_own:
            agent.done["input"] += 1
        if agent.is_training:
            self._attach_trains = True
            is_cached = agent.arm.is_cached
            (agent.cached_batches if is_cached else agent.batches).append(_sizes(batch))
            if len(agent.batches) <= DIGESTED and not is_cached:
                agent.digests += _digests(batch)
            agent.facts.setdefault("loader_workers", getattr(self, "_num_workers", 0))
            if not is_own:
                agent.facts["draws_in_thread"] = True
        if is_own:
            agent.own_s += time.perf_counter() - start
        return batch

    @around(dataloader.DataLoader, "__iter__")
    def _(iterate: Any, self: Any) -> Any:
        if agent.is_training:
            agent.facts["iterators"] = agent.facts.get("iterators", 0) + 1
            known = {name: bool(getattr(self, name)) for name in ("pin_memory", "persistent_workers")}
            agent.facts |= {**known, "unshared_samples": _unshared(self)}
        return timed(iterate, self)

    @around(dataloader._MultiProcessingDataLoaderIter, "_shutdown_workers")
    def _(shut_down: Any, self: Any) -> None:
        # A second call does nothing. Python makes one where it deletes the iterator, wherever that is.
        if getattr(self, "_shutdown", True):
            shut_down(self)
        else:
            timed(shut_down, self)


def _unshared(loader: Any) -> int:
    """The length of a data set that a loader draws from without regard to other ranks; 0 of others."""
    batches = loader.batch_sampler
    is_plain = type(batches) is BatchSampler and type(batches.sampler) in (RandomSampler, SequentialSampler)
    return len(loader.dataset) if is_plain else 0


def _queued_s() -> float:
    """How long this thread has waited for a processor so far; 0 where the system does not say."""
    try:
        with open("/proc/thread-self/schedstat") as file:
            return int(file.read().split()[1]) / 1e9
    except (OSError, ValueError, IndexError):
        return 0.0


def _fetches(agent: Agent) -> None:
    """What it takes to make a batch: computation, waiting for a processor, other waiting; in workers too."""
    files: dict[int, int] = {}

    @around(fetch._MapDatasetFetcher, "fetch")
    def _(fetch_batch: Any, self: Any, indices: Any) -> Any:
        if not agent.is_armed:
            return fetch_batch(self, indices)
        pid = os.getpid()
        # Decoding may have threads of its own; next to a thread of the script that draws, others train.
        is_main = threading.current_thread() is threading.main_thread()
        clock = time.process_time if is_main else time.thread_time
        wall_s, cpu_s, queued_s = time.perf_counter(), clock(), _queued_s()
        batch = fetch_batch(self, indices)
        queued_s = _queued_s() - queued_s  # within the time on the wall, or it may be more than that
        wall_s, cpu_s = time.perf_counter() - wall_s, clock() - cpu_s
        if pid not in files:
            name = agent.out / f"fetch-{pid if pid == agent.pid else os.getppid()}-{pid}"
            files[pid] = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.write(files[pid], f"{wall_s:.6f} {cpu_s:.6f} {queued_s:.6f}\n".encode())
        return batch


def _evaluations(agent: Agent) -> None:
    """An evaluation is from the model's `eval` to its next `train`, or to the end of the step."""

    def is_model(module: Any) -> bool:
        own = set(map(id, module.parameters()))
        if not agent.models:
            return not own.isdisjoint(agent.parameters)
        return any(own.issuperset(map(id, model.parameters())) for model in agent.models)

    @around(torch.nn.Module, "eval")
    def _(evaluate: Any, self: Any) -> Any:
        if agent.is_armed and agent.evaluating_since is None and is_model(self):
            agent.evaluates(True)
            agent.is_evaluation_called = True
        return evaluate(self)

    @around(torch.nn.Module, "train")
    def _(train: Any, self: Any, mode: bool = True) -> Any:
        if mode and agent.evaluating_since is not None and is_model(self):
            agent.is_evaluation_called = False
            agent.evaluates(False)
        return train(self, mode)

"""What runs inside each process of the script: marks its steps, changes what the arm changes, and stops it.

Loaded by file, without this project's package. Nothing is changed before the script wraps a model by
DistributedDataParallel: torchrun's agent and loaders' workers have torch too.
"""

import json
import multiprocessing
import os
import sys
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import GradBucket
from torch.nn.parallel import DistributedDataParallel
from torch.optim.optimizer import Optimizer, register_optimizer_step_post_hook
from torch.utils.data import dataloader

MEET_S = 20.0
"""How long a rank that is done waits for the others."""

REFUSED = {
    "deepspeed.runtime.engine": "DeepSpeed",
    "megatron.core": "Megatron",
    "horovod.torch": "Horovod",
}
"""Modules that a script in which no DDP model steps has loaded -> what it uses instead."""

SAVERS = (
    ("safetensors.torch", "", "save_file"),
    ("transformers.trainer", "Trainer", "_save_checkpoint"),
    ("transformers.trainer", "Trainer", "save_model"),
    ("accelerate.accelerator", "Accelerator", "save_state"),
    ("lightning.pytorch.trainer.trainer", "Trainer", "save_checkpoint"),
    ("pytorch_lightning.trainer.trainer", "Trainer", "save_checkpoint"),
)
"""Module, class and function of what else writes or deletes checkpoints."""

WITH_PHASES = ("marked", "no_exchange")


class Agent:
    """One process of one run.

    Attributes:
        step_s: seconds of the clock at the end of every step, by optimizer.
        counts: of backward calls, batches drawn, evaluations begun and optimizer steps up to then, likewise.
        phases: of the arms with phases: (name, start, end) in seconds.
    """

    def __init__(self, order: dict[str, Any]) -> None:
        self.out = Path(order["out"])
        self.arm = str(order["arm"])
        self.warmup, self.steps = int(order["warmup"]), int(order["steps"])
        self.step_s: dict[int, list[float]] = {}
        self.counts: dict[int, list[list[int]]] = {}
        self.done = {"backward": 0, "input": 0, "evaluation": 0, "update": 0}
        self.phases: list[tuple[str, float, float]] = []
        self.parameters: set[int] = set()
        self.facts: dict[str, Any] = {}
        self.model: DistributedDataParallel | None = None
        self.optimizers: list[Optimizer] = []
        self.steps_without = 0
        self.device = "cpu"
        self.batch = 0

    def after_init(self, model: DistributedDataParallel) -> None:
        """The script has wrapped a model: from here on its steps count."""
        self.model = model
        self.parameters.update(id(parameter) for parameter in model.parameters())
        self.device = next(model.parameters()).device.type
        _save_nothing()
        if self.arm in HOOKS:
            _REGISTER(model, None, HOOKS[self.arm])

    def after_step(self, optimizer: Optimizer, *_: Any) -> None:
        """The global hook after every optimizer's step."""
        now = time.perf_counter()
        if self.model is None:
            self.steps_without += 1
            if self.steps_without >= self.warmup + self.steps:
                self.refuse(_what_it_uses(optimizer) or "it makes steps without DistributedDataParallel")
            return
        if not any(id(one) in self.parameters for group in optimizer.param_groups for one in group["params"]):
            return
        if not any(one is optimizer for one in self.optimizers):
            self.optimizers.append(optimizer)
        self.done["update"] += 1
        index = next(i for i, one in enumerate(self.optimizers) if one is optimizer)
        marks = self.step_s.setdefault(index, [])
        fewest = min(len(other) for other in self.step_s.values())
        is_edge = len(marks) == fewest and fewest + 1 in (self.warmup, self.warmup + self.steps)
        if _uses_gpu() and (is_edge or self.arm == "marked"):
            torch.cuda.synchronize()
            now = time.perf_counter()
        marks.append(now)
        self.counts.setdefault(index, []).append(list(self.done.values()))
        if min(len(other) for other in self.step_s.values()) >= self.warmup + self.steps:
            self.stop()

    def refuse(self, reason: str) -> None:
        """Ends the process; the arm is not measured."""
        self.facts["refused"] = reason
        self.stop()

    def stop(self) -> None:
        """Writes the record, meets the other ranks and ends the process, without the script's own ending."""
        rank = dist.get_rank() if dist.is_initialized() else int(os.environ.get("RANK", "0"))
        record = {
            "rank": rank,
            "world_size": dist.get_world_size() if dist.is_initialized() else 1,
            "arm": self.arm,
            "warmup": self.warmup,
            "step_s": list(self.step_s.values()),
            "counts": list(self.counts.values()),
            "phases": self.phases,
            "device": self.device,
            "batch": self.batch,
            "threads": torch.get_num_threads(),
            "gradients": self._gradients(),
            **self.facts,
        }
        unfinished = self.out / f".rank{rank}.json"
        unfinished.write_text(json.dumps(record))
        unfinished.rename(self.out / f"rank{rank}.json")
        if dist.is_initialized():
            _meet(rank, dist.get_world_size())
        for child in multiprocessing.active_children():
            child.terminate()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)

    def _gradients(self) -> list[list[int]]:
        """The shapes of what is exchanged."""
        if self.model is None:
            return []
        return [list(one.shape) for one in self.model.parameters() if one.requires_grad]


def _what_it_uses(optimizer: Optimizer) -> str | None:
    """What the script uses in place of DDP, where that is known."""
    kinds = {type(one).__name__ for group in optimizer.param_groups for one in group["params"]}
    if "DTensor" in kinds:
        return "it uses FSDP2 or tensor parallelism, which have no exchange that can be left out"
    if "FlatParameter" in kinds:
        return "it uses FSDP, which has no exchange that can be left out"
    used = next((name for module, name in REFUSED.items() if module in sys.modules), None)
    return used and f"it uses {used} in place of DistributedDataParallel"


def _meet(rank: int, world_size: int) -> None:
    """Waits until every rank has written; rank 0 leaves last, for it may hold the store."""
    deadline = time.monotonic() + MEET_S
    try:
        store = dist.distributed_c10d._get_default_store()
        store.add("scaling_attach_written", 1)
        while store.add("scaling_attach_written", 0) < world_size and time.monotonic() < deadline:
            time.sleep(0.02)
        store.add("scaling_attach_left", 1)
        while rank == 0 and store.add("scaling_attach_left", 0) < world_size and time.monotonic() < deadline:
            time.sleep(0.02)
    except RuntimeError:  # the store's holder has ended: the record is written all the same
        return


def _local(_: Any, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
    # torch checks the annotations of a hook, so this file has them as objects, not as text.
    done: torch.futures.Future[torch.Tensor] = torch.futures.Future()
    done.set_result(bucket.buffer())
    return done


def _all_reduce(_: Any, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
    buffer = bucket.buffer().div_(dist.get_world_size())
    future = dist.all_reduce(buffer, async_op=True).get_future()
    return future.then(lambda done: done.value()[0])  # type: ignore[no-any-return]


HOOKS = {"no_exchange": _local, "hook_control": _all_reduce}
_REGISTER = DistributedDataParallel.register_comm_hook


def _copy(batch: Any) -> Any:
    if isinstance(batch, torch.Tensor):
        return batch.clone()
    if isinstance(batch, dict):
        return {key: _copy(value) for key, value in batch.items()}
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):
        return type(batch)(*map(_copy, batch))
    return type(batch)(map(_copy, batch)) if isinstance(batch, (list, tuple)) else batch


def _samples(batch: Any) -> int:
    """The length of a batch's first tensor; 0 where it has none."""
    if isinstance(batch, torch.Tensor):
        return len(batch) if batch.dim() else 1
    if isinstance(batch, dict):
        batch = list(batch.values())
    return next(filter(None, map(_samples, batch)), 0) if isinstance(batch, (list, tuple)) else 0


def _cache_input(agent: Agent) -> None:
    """Every batch after a loader's first one is a copy of that one; epochs keep their length."""
    iterator = dataloader._BaseDataLoaderIter
    begin, draw = iterator.__init__, iterator.__next__
    first: dict[int, Any] = {}

    def init(self: Any, loader: Any) -> None:
        begin(self, loader)
        self._attach_loader, self._attach_drawn = loader, 0

    def following(self: Any) -> Any:
        loader = self._attach_loader
        if agent.model is None or id(loader) not in first:
            batch = draw(self)
            self._attach_drawn += 1
            if agent.model is not None:
                first[id(loader)] = _copy(batch)
                agent.facts["has_cached_input"] = True
            return batch
        try:
            length = len(loader)
        except TypeError:  # a stream has no length: it goes on
            length = None
        if length is not None and self._attach_drawn >= length:
            raise StopIteration
        self._attach_drawn += 1
        return _copy(first[id(loader)])

    iterator.__init__, iterator.__next__ = init, following  # type: ignore[method-assign]


def _count(agent: Agent) -> None:
    """Counts what a step consists of, in every arm; arms with phases keep when it was."""

    def counted(name: str, call: Any) -> Any:
        def timed(*arguments: Any, **named: Any) -> Any:
            agent.done[name] += 1
            if agent.arm not in WITH_PHASES or agent.model is None:
                return call(*arguments, **named)
            _settle(agent)
            start = time.perf_counter()
            try:
                return call(*arguments, **named)
            finally:
                _settle(agent)
                agent.phases.append((name, start, time.perf_counter()))

        return timed

    iterator = dataloader._BaseDataLoaderIter
    draw = iterator.__next__

    def sized(self: Any) -> Any:
        batch = draw(self)
        if agent.model is not None and agent.model.training and not agent.batch:
            agent.batch = _samples(batch)
        return batch

    iterator.__next__ = sized  # type: ignore[method-assign]
    iterator.__next__ = counted("input", iterator.__next__)  # type: ignore[method-assign]
    torch.autograd.backward = counted("backward", torch.autograd.backward)
    torch.nn.Module.eval = counted("evaluation", torch.nn.Module.eval)  # type: ignore[method-assign]
    step = torch.amp.GradScaler.step

    def scaled(self: Any, optimizer: Any, *arguments: Any, **named: Any) -> Any:
        before = agent.done["update"]
        result = step(self, optimizer, *arguments, **named)
        if agent.model is not None and agent.done["update"] == before:  # gradients were infinite: skipped
            agent.after_step(optimizer)
        return result

    torch.amp.GradScaler.step = scaled  # type: ignore[method-assign]


def _uses_gpu() -> bool:
    return bool(torch.cuda.is_initialized())  # type: ignore[no-untyped-call]


def _settle(agent: Agent) -> None:
    """Work that a GPU still has is part of the phase that asked for it; in the arm for that alone."""
    if agent.arm == "marked" and _uses_gpu():
        torch.cuda.synchronize()


def _watch_models(agent: Agent) -> None:
    """Tells the agent of each model that is wrapped; in arms with a hook the script's own is left out."""
    begin = DistributedDataParallel.__init__

    def init(self: Any, module: Any, *arguments: Any, **named: Any) -> None:
        if agent.arm in HOOKS and not any(
            isinstance(one, torch.nn.SyncBatchNorm) for one in module.modules()
        ):
            named["broadcast_buffers"] = False
        begin(self, module, *arguments, **named)
        agent.after_init(self)

    def register(self: Any, state: Any, hook: Any) -> None:
        agent.facts["script_hook"] = getattr(hook, "__name__", str(hook))
        if agent.arm not in HOOKS:
            _REGISTER(self, state, hook)

    DistributedDataParallel.__init__ = init  # type: ignore[method-assign]
    DistributedDataParallel.register_comm_hook = register  # type: ignore[method-assign]


def _save_nothing() -> None:
    """No checkpoint of a run that is stopped after some steps, and none deleted for its sake."""

    def save(*_: Any, **__: Any) -> None:
        return None

    torch.save = save
    for module, owner, name in SAVERS:
        holder = sys.modules.get(module)
        holder = getattr(holder, owner, None) if owner else holder
        if holder is not None and hasattr(holder, name):
            setattr(holder, name, save)


def start() -> None:
    """Readies this process, once torch is loaded."""
    agent = Agent(json.loads(os.environ["SCALING_ATTACH"]))
    register_optimizer_step_post_hook(agent.after_step)
    _watch_models(agent)
    if agent.arm == "cached_input":
        _cache_input(agent)
    _count(agent)

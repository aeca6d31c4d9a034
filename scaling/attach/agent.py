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
from torch.nn.parallel import DistributedDataParallel
from torch.optim.optimizer import Optimizer, register_optimizer_step_post_hook
from torch.utils.data import dataloader

MEET_S = 20.0
"""How long a rank that is done waits for the others."""

REFUSED = {
    "deepspeed": "DeepSpeed", "megatron": "Megatron", "horovod": "Horovod",
}  # fmt: skip


class Agent:
    """One process of one run.

    Attributes:
        step_s: seconds since the clock's start at the end of every step, by optimizer.
        phases: of an arm "marked": (name, start, end) in seconds.
    """

    def __init__(self, order: dict[str, Any]) -> None:
        self.out = Path(order["out"])
        self.arm = str(order["arm"])
        self.warmup, self.steps = int(order["warmup"]), int(order["steps"])
        self.step_s: dict[int, list[float]] = {}
        self.phases: list[tuple[str, float, float]] = []
        self.parameters: set[int] = set()
        self.facts: dict[str, Any] = {}
        self.model: DistributedDataParallel | None = None
        self.optimizers: list[Optimizer] = []
        self.steps_without = 0

    def after_init(self, model: DistributedDataParallel) -> None:
        """The script has wrapped a model: from here on its steps count."""
        self.model = model
        self.parameters.update(id(parameter) for parameter in model.parameters())
        if self.arm in HOOKS:
            _REGISTER(model, None, HOOKS[self.arm])

    def after_step(self, optimizer: Optimizer, *_: Any) -> None:
        """The global hook after every optimizer's step."""
        now = time.perf_counter()
        if self.model is None:
            self.steps_without += 1
            if self.steps_without >= self.warmup + self.steps:
                self.refuse(f"{self.steps_without} optimizer steps without a DistributedDataParallel model")
            return
        if not any(id(one) in self.parameters for group in optimizer.param_groups for one in group["params"]):
            return
        if not any(one is optimizer for one in self.optimizers):
            self.optimizers.append(optimizer)
            self._refuse_what_is_in_use()
        index = next(i for i, one in enumerate(self.optimizers) if one is optimizer)
        marks = self.step_s.setdefault(index, [])
        fewest = min(len(other) for other in self.step_s.values())
        is_edge = len(marks) == fewest and fewest + 1 in (self.warmup, self.warmup + self.steps)
        if is_edge and torch.cuda.is_initialized():
            torch.cuda.synchronize()
            now = time.perf_counter()
        marks.append(now)
        if min(len(other) for other in self.step_s.values()) >= self.warmup + self.steps:
            self.stop()

    def _refuse_what_is_in_use(self) -> None:
        for module, name in REFUSED.items():
            if module in sys.modules and module != "deepspeed":
                self.refuse(f"the script uses {name}")
        engine = sys.modules.get("deepspeed.runtime.engine")
        if engine is not None and isinstance(self.model, engine.DeepSpeedEngine):
            self.refuse("the script uses DeepSpeed")

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
            "phases": self.phases,
            "gradient_bytes": self._gradient_bytes(),
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

    def _gradient_bytes(self) -> int:
        if self.model is None:
            return 0
        return sum(p.numel() * p.element_size() for p in self.model.parameters() if p.requires_grad)


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


def _local(_: Any, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    # torch checks the annotations of a hook, so this file has them as objects, not as text.
    done: torch.futures.Future[torch.Tensor] = torch.futures.Future()
    done.set_result(bucket.buffer())
    return done


def _all_reduce(_: Any, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
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


def _mark_phases(agent: Agent) -> None:
    def marked(name: str, call: Any) -> Any:
        def timed(*arguments: Any, **named: Any) -> Any:
            start = time.perf_counter()
            try:
                return call(*arguments, **named)
            finally:
                if agent.model is not None:
                    agent.phases.append((name, start, time.perf_counter()))

        return timed

    iterator = dataloader._BaseDataLoaderIter
    iterator.__next__ = marked("input", iterator.__next__)  # type: ignore[method-assign]
    torch.autograd.backward = marked("backward", torch.autograd.backward)


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
    def save(*_: Any, **__: Any) -> None:
        """No checkpoint of a run that is stopped after some steps."""

    torch.save = save


def start() -> None:
    """Readies this process, once torch is loaded."""
    agent = Agent(json.loads(os.environ["SCALING_ATTACH"]))
    register_optimizer_step_post_hook(agent.after_step)
    _watch_models(agent)
    _save_nothing()
    if agent.arm == "cached_input":
        _cache_input(agent)
    if agent.arm == "marked":
        _mark_phases(agent)

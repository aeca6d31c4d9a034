"""One process of one run: keeps marks of its steps, changes arms, ends it when there are enough. Nothing is
changed before the script wraps a model in DDP: torchrun's agent and loaders' workers have torch too."""

import gc
import multiprocessing
import multiprocessing.util
import os
import sys
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.optim.optimizer import Optimizer, register_optimizer_step_post_hook

from .arms import ARMS, NO_STEP, NO_SWITCH, TRACED_STEPS, Arm
from .plan import Plan
from .record import write

BACKWARD = "backward pass"
UNWRAPPED = 3  # steps before those of a script without DDP count: a model may be wrapped after some

# Modules that a script without DDP has loaded, classes it has objects of -> what it uses, or is to use.
USES = {
    "deepspeed.runtime.engine": "DeepSpeed; its wall_clock_breakdown shows where a step's time goes",
    "megatron.core": "Megatron; its --timing-log-level 2 shows where a step's time goes",
    "horovod.torch": "Horovod; HOROVOD_TIMELINE=FILE writes what it does",
}
_TRACE = "its exchange cannot be left out; take a trace with torch.profiler"
HOLDS = {
    "DTensor": f"FSDP2 or tensor parallelism: {_TRACE}",
    **dict.fromkeys(("FlatParameter", "FullyShardedDataParallel"), f"FSDP: {_TRACE}"),
    "DataParallel": "DataParallel, one process for all; DistributedDataParallel under torchrun is faster",
}

ONE_PROCESS = (
    "it makes steps without DistributedDataParallel, in one process; start it in several: "
    "torchrun --nproc-per-node=2, or accelerate launch --multi_gpu --num_processes=2"
)


def _parameters(optimizer: Optimizer) -> list[torch.Tensor]:
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def what_it_uses(optimizer: Optimizer) -> str | None:
    modules = [thing for thing in gc.get_objects() if issubclass(type(thing), torch.nn.Module)]
    kinds = {type(thing).__name__ for thing in (*_parameters(optimizer), *modules)}
    used = [text for module, text in USES.items() if module in sys.modules]
    return next(iter([*(text for name, text in HOLDS.items() if name in kinds), *used]), None)


class Agent:
    def __init__(self, order: dict[str, Any]) -> None:
        self.out = Path(order["out"])
        self.plan = Plan(order)
        self.arm: Arm = ARMS[self.plan.first]
        self.warmup, self.steps = int(order["warmup"]), int(order["steps"])
        self.deadline = time.monotonic() + float(order["deadline_s"])
        self.seed = int(order.get("seed", 0))  # of arms and samples; another in each such launch
        self.done = {"backward": 0, "input": 0, "evaluation": 0, "update": 0}
        self.phases: list[tuple[str, float, float]] = []  # of all that is timed: its name, start and end
        self.updates: dict[int, float] = {}  # when each optimizer began its step, in arms with phases
        # (samples, elements) of those drawn for training
        self.batches, self.cached_batches = list[tuple[int, int]](), list[tuple[int, int]]()
        self.digests, self.scalers, self.models = list[int](), list[Any](), list[Any]()
        self.collectives: Counter[str] = Counter()
        self.passed, self.own_s = 0, 0.0  # numbers given to own collectives, seconds of marks
        self.facts: dict[str, Any] = {}
        self.is_armed = self.is_stopping = self.all_used = self.leaves_out_collectives = False
        self.when_exchanging: list[Callable[[], None]] = []
        self.threads: set[int] = set()  # of this process, those that have wrapped a model or made a step
        self.evaluating_since: float | None = None
        self.is_evaluation_called = self.calls_backward = False  # or its gradients are of `autograd.grad`
        self.device = "cpu"
        self.marks: dict[int, list[float]] = {}
        self.events: dict[int, list[Any]] = {}
        self.counts_of: dict[int, list[list[int]]] = {}
        self.parameters: set[int] = set()  # of models that are wrapped, or of the optimizer, by `id`
        self.optimizers: list[Optimizer] = []
        self.steps_without = self._drawn = 0
        self._without = Counter[str]()  # what may be steps where no optimizer of torch steps
        self.place = (int(os.environ.get("RANK", "0")), 1)
        self._profiler: Any = None
        self._traced_from = 0
        register_optimizer_step_post_hook(self.after_step)
        self.pid = 0  # of the process that makes the steps; it may fork loaders' workers

    def wraps(self, model: DistributedDataParallel) -> None:
        if dist.get_world_size(model.process_group) != dist.get_world_size():
            self.refuse("its DistributedDataParallel spans some of the ranks (tensor or pipeline parallel?)")
        own = set(map(id, model.parameters()))
        self.models = [known for known in self.models if not own.issuperset(map(id, known.parameters()))]
        self.arm_with(model)

    def take(self, model: Any, optimizer: Any) -> None:
        if model not in self.models:
            why, arm = NO_SWITCH if self.plan.is_switched else "", self.arm
            if why or not arm.exchanges or arm.bucket_mb or arm.at_start:
                # Wrapped before this: what the arm changes would be no more than its name.
                self.refuse(f"{why}the model was wrapped before `attached` could change it")
            self.arm_with(model)
        self.parameters.update(map(id, _parameters(optimizer)))

    def arm_with(self, model: Any) -> None:
        is_first = not self.models
        self.models.append(model)
        self.is_armed = True
        self.threads.add(threading.get_ident())
        self._watch_exit()
        if is_first:
            self.arm.on(self)
        self.parameters.update(map(id, model.parameters()))
        self.device = next(model.parameters()).device.type
        if dist.is_initialized():
            self.place = (dist.get_rank(), dist.get_world_size())

    @property
    def is_training(self) -> bool:
        return self.is_armed and self.evaluating_since is None and self.may_train

    @property
    def may_train(self) -> bool:
        return torch.is_grad_enabled() or self.facts.get("steps_are", BACKWARD) != BACKWARD

    def evaluates(self, is_evaluation: bool) -> None:
        """An evaluation begins, goes on or is over; one that the model's `eval` began ends by its `train`."""
        now = time.perf_counter()
        if is_evaluation and self.evaluating_since is None:
            self.done["evaluation"] += 1
            self.evaluating_since = now
        elif not is_evaluation and self.evaluating_since is not None and not self.is_evaluation_called:
            self.phases.append(("evaluation", self.evaluating_since, now))
            self.evaluating_since = None

    @property
    def is_own_thread(self) -> bool:
        """Whether this thread makes the steps; another one may draw batches ahead of them."""
        return not self.threads or threading.get_ident() in self.threads

    def after_step(self, optimizer: Optimizer, *_: Any) -> None:
        if self.is_stopping or (not self.is_armed and self._passes(optimizer)):
            return
        index = next((i for i, known in enumerate(self.optimizers) if known is optimizer), None)
        if index is None:
            owned = set(map(id, _parameters(optimizer)))
            if self.parameters and not owned & self.parameters:
                self.steps_without += 1
                if self.marks or self.steps_without < self.warmup:
                    return
                self.parameters |= owned  # no other one steps: they are copies (fp32 master weights)
            index = len(self.optimizers)
            self.optimizers.append(optimizer)
        self._begin_again()  # it accumulated: backward passes were no steps
        self._mark(index, optimizer)

    def _mark(self, index: int, optimizer: Optimizer | None) -> None:
        """The end of a step of this optimizer; -1: of a backward pass."""
        now = time.perf_counter()
        self.done["update"] += 1
        self.threads.add(threading.get_ident())
        self.is_evaluation_called = False
        self.evaluates(False)
        marks = self.marks.setdefault(index, [])
        if self.device == "cuda":
            if self.arm.is_settled:
                torch.cuda.synchronize()
                now = time.perf_counter()
            event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
            event.record()
            self.events.setdefault(index, []).append(event)
        if optimizer is not None and id(optimizer) in self.updates:
            self.phases.append(("update", self.updates.pop(id(optimizer)), now))
        marks.append(now)
        self.counts_of.setdefault(index, []).append(list(self.done.values()))
        made = self._made(marks)
        if made == self.warmup:
            trained = [one for model in self.ddp() for one in model.parameters() if one.requires_grad]
            self.all_used = all(parameter.grad is not None for parameter in trained)
        self.own_s += time.perf_counter() - now
        if self.arm.is_traced:
            self._trace(made)
        elif self.plan.is_switched:
            self._follow(made)
        elif made >= self.warmup + self.steps and not self.plan.waits_for_epoch:
            self.stop()

    def _follow(self, made: int) -> None:
        if len(self.plan.labels) >= made:
            return  # of several optimizers, another one makes the step
        if self.device == "cuda" and made >= self.warmup and not (made - self.warmup) % self.plan.block:
            torch.cuda.synchronize()  # no arm begins while steps of another one wait
        place, at = self.plan.next(made, self.warmup, min(self.marks.values(), key=len), self.place[0])
        if at == 0 and self.plan.rounds:
            write(self)
        if place == "stop":
            self.stop()
        elif place != self.arm.name:
            self.switch(ARMS[place])

    def switch(self, arm: Arm) -> None:
        before, self.arm = self.arm, arm
        before.off(self)
        if before.exchanges != arm.exchanges:
            for call in self.when_exchanging:
                call()
        if before.is_settled and self.device == "cuda":
            torch.cuda.synchronize()
        arm.on(self)

    def _made(self, marks: list[float]) -> int:
        """The steps of the optimizer that fires least; one that a script has replaced fires no more."""
        if len(marks) >= self.warmup + self.steps:
            since_s = marks[-self.warmup - self.steps]
            for index in [index for index, others in self.marks.items() if others[-1] < since_s]:
                self._forget(index)
        return min(map(len, self.marks.values()))

    def _forget(self, index: int) -> None:
        for kept in (self.marks, self.counts_of, self.events):
            kept.pop(index, None)

    def _passes(self, optimizer: Optimizer) -> bool:
        """A step without a model that is wrapped; whether it is none of ours."""
        is_alone = self.arm.is_alone  # a script may wrap its model only for several
        self._watch_exit()
        self.steps_without += 1
        if self.steps_without == 1 and not is_alone and (used := what_it_uses(optimizer)):
            self.refuse(f"it uses {used}")
        if is_alone or (self.steps_without > UNWRAPPED and self._begin_without()):
            self.is_armed = True
            own = _parameters(optimizer)
            self.device, self.parameters = own[0].device.type, set(map(id, own))
            self.facts["num_parameters"] = sum(parameter.numel() for parameter in own)
            return False
        if self.steps_without >= self.warmup + self.steps:
            self.refuse(ONE_PROCESS)
        return True

    def _begin_without(self) -> bool:
        """Whether steps of ranks without DDP count; `no_exchange` is then without their own collectives."""
        if self.arm.is_alone or not dist.is_initialized() or dist.get_world_size() < 2:
            return self.arm.is_alone
        self.facts["without_ddp"] = True
        self.place = (dist.get_rank(), dist.get_world_size())
        self.when_exchanging.append(lambda: setattr(self, "leaves_out_collectives", not self.arm.exchanges))
        return True

    def _begin_again(self) -> None:
        if -1 in self.marks:
            self._forget(-1)
            del self.facts["steps_are"]
            self.plan.labels.clear()

    def after_part(self, part: str) -> None:
        """Where no optimizer of torch steps, backward passes are the steps; without those, and without DDP,
        collectives of one name that follow a batch."""
        is_backward, drawn, last = part == BACKWARD, self.done["input"], self._drawn
        if self.optimizers or self.is_stopping or (is_backward and not torch.is_grad_enabled()):
            return
        if not is_backward and (self.models or self._without[BACKWARD] or drawn == last):
            return
        self._drawn = drawn
        self._without[part] += 1
        if is_backward and self.facts.get("steps_are", part) != part:
            self._begin_again()
        if self._without[part] <= 3 * self.warmup or not (self.is_armed or self._begin_without()):
            return
        if not self.is_armed:
            self.is_armed, self.device = True, "cuda" if torch.cuda.is_initialized() else "cpu"  # type: ignore[no-untyped-call]
            self._watch_exit()
        if self.facts.setdefault("steps_are", part) == part:
            self._mark(-1, None)

    def _trace(self, made: int) -> None:
        if made >= self.warmup and self._profiler is None:
            self._profiler, self._traced_from = torch.profiler.profile(), made
            self._profiler.start()
        elif self._profiler is not None and made >= self._traced_from + TRACED_STEPS:
            if self.device == "cuda":
                torch.cuda.synchronize()
            self._profiler.stop()
            self._profiler.export_chrome_trace(str(self.out / f"trace-rank{self.place[0]}.json.gz"))
            self.stop()

    def refuse(self, reason: str) -> None:
        self.facts["refused"] = reason
        self.stop()

    def _watch_exit(self) -> None:
        """Of this process, and of none that it forks."""
        if self.pid != os.getpid():
            self.pid = os.getpid()
            multiprocessing.util.Finalize(None, self.at_exit, exitpriority=1000)

    def at_exit(self) -> None:
        if self.is_stopping or os.getpid() != self.pid:
            return
        error = getattr(sys, "last_value", None)
        if error is not None:
            last = traceback.extract_tb(error.__traceback__)[-1:]
            where = f" at `{last[0].line}`" if last and isinstance(error, AssertionError) else ""
            said = f": {error}" if str(error) else ""
            self.facts["raised"] = [time.time(), f"{type(error).__name__}{said}{where}"[:300]]
        if self.marks:
            self.facts["ended_after"] = min(map(len, self.marks.values()))
        elif error is None and (self.steps_without or self.is_armed):
            few = f"it ended by itself after {made} steps" if (made := self.steps_without) else NO_STEP
            several = int(os.environ.get("WORLD_SIZE", "1")) > 1  # groups may have ended
            self.facts["refused"] = few if several or not made else ONE_PROCESS
        elif error is None:  # it says more than that there were no steps
            return
        self.is_stopping = True
        write(self)

    def stop(self) -> None:
        """Writes the record, meets the other ranks and ends the process, without the script's own ending."""
        self.is_stopping = True
        write(self)
        if dist.is_initialized():
            self._meet()
        for child in multiprocessing.active_children():
            child.terminate()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)

    def ddp(self) -> list[DistributedDataParallel]:
        return [model for model in self.models if isinstance(model, DistributedDataParallel)]

    def _meet(self) -> None:
        """Waits until every rank has written; rank 0 leaves last, for it may hold the store."""
        rank, world_size = self.place
        try:
            store = dist.distributed_c10d._get_default_store()
            for key, waits in (("scaling_attach_written", True), ("scaling_attach_left", rank == 0)):
                store.add(key, 1)
                while waits and store.add(key, 0) < world_size and time.monotonic() < self.deadline:
                    time.sleep(0.02)
        except RuntimeError:  # the store's holder has ended: the record is written all the same
            return

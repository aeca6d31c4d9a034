"""Saves of the script: where they go, how often they are and how long they take."""

import io
import sys
import threading
import time
from collections import Counter
from functools import partial
from typing import Any

import torch

from .agent import Agent
from .guard import CACHES, QUIET, Guard
from .libraries import around, redirect

LIGHTNING = ("lightning.pytorch", "pytorch_lightning")
SAVERS = (  # module, class and functions of what else writes or deletes checkpoints
    ("safetensors.torch", "", "save_file"),
    ("torch.distributed.checkpoint", "", "save async_save"),
    ("torch.export", "", "save"),
    ("torch.onnx", "", "export"),
    ("transformers.trainer", "Trainer", "_save_checkpoint save_model"),
    ("transformers.modeling_utils", "PreTrainedModel", "save_pretrained"),
    ("accelerate.accelerator", "Accelerator", "save_state save_model"),
    *((f"{name}.trainer.trainer", "Trainer", "save_checkpoint") for name in LIGHTNING),
    *((f"{name}.strategies.strategy", "Strategy", "save_checkpoint remove_checkpoint") for name in LIGHTNING),
)
_open = Counter[int]()  # saves of a thread that have not ended: those within one are part of it


def watch_saves(agent: Agent, guard: Guard) -> None:
    """Saves write what they would, to new files; `torch.save` may write by a path in C++, past the guard."""

    guard.refuse = agent.refuse  # type: ignore[method-assign]
    guard.watch = lambda opened: _watched_file(agent, opened)
    for holder in (torch, torch.jit):
        redirect(holder, "load", 0, "f", guard.latest)  # it may read by a path in C++ too
        redirect(holder, "save", 1, "f", guard.emptied)
        around(holder, "save")(partial(_timed, agent))

    @around(agent, "_watch_exit")
    def _(watch_exit: Any) -> None:
        watch_exit()
        _watch_libraries(agent)


def _timed(agent: Agent, save: Any, *arguments: Any, **named: Any) -> Any:
    in_memory = any(isinstance(value, io.BytesIO) for value in (*arguments, *named.values()))
    start_s, thread = time.perf_counter(), threading.get_ident()
    _open[thread] += 1
    try:
        return save(*arguments, **named)
    finally:
        _open[thread] -= 1
        if not in_memory:
            _saved(agent, start_s)


def _saved(agent: Agent, start_s: float) -> None:
    """A save has ended; those since its start are part of it. In another thread it makes no step longer."""
    if not agent.is_armed or _open[threading.get_ident()]:
        return
    if not agent.is_own_thread:
        agent.facts["saves_in_thread"] = agent.facts.get("saves_in_thread", 0) + 1
        return
    while agent.phases and agent.phases[-1][0] == "save" and agent.phases[-1][1] >= start_s:
        agent.phases.pop()
    agent.phases.append(("save", start_s, time.perf_counter()))


class _Closing:
    """Of a file that is written: what passes until it is closed, in the same step, is a save."""

    began: tuple[Agent, float, int]  # when, and after how many steps

    def close(self) -> None:
        was_open = not self.closed  # type: ignore[attr-defined]
        super().close()  # type: ignore[misc]
        agent, start_s, made = self.began
        if was_open and made == agent.done["update"]:
            _saved(agent, start_s)


_KINDS: dict[Any, Any] = {
    kind: type(kind.__name__, (_Closing, kind), {}) for kind in (io.BufferedWriter, io.BufferedRandom)
}


def _watched_file(agent: Agent, opened: Any) -> Any:
    kind = _KINDS.get(type(opened))
    name = str(getattr(opened, "name", ""))
    if kind is None or name.startswith(QUIET) or any(part in name for part in CACHES):
        return opened
    watched = kind(opened.detach(), 2**17)
    watched.began = agent, time.perf_counter(), agent.done["update"]
    return watched


def _watch_libraries(agent: Agent) -> None:
    for module, owner, names in SAVERS:
        holder = sys.modules.get(module)
        holder = getattr(holder, owner, None) if owner else holder
        for name in names.split():
            if hasattr(holder, name) and not hasattr(getattr(holder, name), "_attach_watched"):
                around(holder, name)(partial(_timed, agent))._attach_watched = True

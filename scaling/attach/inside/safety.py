"""No checkpoint of a run that is stopped after some steps, and a list of what it writes."""

import functools
import io
import os
import sys
import tempfile
from typing import Any

import torch

from .agent import Agent
from .guard import QUIET, Guard

SAVERS = (
    ("safetensors.torch", "", "save_file"),
    ("torch.distributed.checkpoint", "", "save"),
    ("torch.distributed.checkpoint", "", "async_save"),
    ("torch.export", "", "save"),
    ("torch.onnx", "", "export"),
    ("transformers.trainer", "Trainer", "_save_checkpoint"),
    ("transformers.trainer", "Trainer", "save_model"),
    ("transformers.trainer", "Trainer", "push_to_hub"),
    ("transformers.modeling_utils", "PreTrainedModel", "save_pretrained"),
    ("transformers.modeling_utils", "PreTrainedModel", "push_to_hub"),
    ("accelerate.accelerator", "Accelerator", "save_state"),
    ("accelerate.accelerator", "Accelerator", "save_model"),
    ("huggingface_hub.hf_api", "HfApi", "upload_folder"),
    ("huggingface_hub.hf_api", "HfApi", "upload_file"),
    *(
        (f"{name}.trainer.trainer", "Trainer", "save_checkpoint")
        for name in ("lightning.pytorch", "pytorch_lightning")
    ),
    *(
        (f"{name}.strategies.strategy", "Strategy", call)
        for name in ("lightning.pytorch", "pytorch_lightning")
        for call in ("save_checkpoint", "remove_checkpoint")
    ),
)
"""Module, class and function of what else writes, deletes or sends checkpoints."""

MOST_WRITTEN = 1000


def save_nothing(agent: Agent, guard: Guard) -> None:
    """From the first model that is wrapped on; a script may have taken `torch.save` by name before.

    What torch saves before the first step in the system's temporary folder is written: all ranks load it as
    their start. It writes by a path in C++, past the guard, so that is asked here.
    """

    def saving(save: Any) -> Any:
        def saved(*arguments: Any, **named: Any) -> Any:
            target = named.get("f", arguments[1] if len(arguments) > 1 else None)
            if isinstance(target, io.BytesIO):  # no file: it is sent to other ranks, or copied
                return save(*arguments, **named)
            if guard.leaves_out(target):
                return None
            if "f" in named:
                named["f"] = guard.instead(named["f"], is_emptied=True)
            else:
                arguments = (*arguments[:1], guard.instead(arguments[1], is_emptied=True), *arguments[2:])
            return save(*arguments, **named)

        return saved

    def is_without_saves(path: Any) -> bool:
        return agent.is_armed and bool(agent.done["update"] or not _is_temporary(path))

    guard.refuse, guard.is_without_saves = agent.refuse, is_without_saves
    torch.save, torch.jit.save = saving(torch.save), saving(torch.jit.save)
    torch.load, torch.jit.load = _loading(torch.load, guard), _loading(torch.jit.load, guard)
    arm_with = agent.arm_with

    def armed(model: Any) -> None:
        arm_with(model)
        _block()

    agent.arm_with = armed  # type: ignore[method-assign]
    _list_written(agent)


def _loading(load: Any, guard: Guard) -> Any:
    """It may read by a path in C++ too."""

    def loaded(f: Any, *arguments: Any, **named: Any) -> Any:
        return load(guard.latest(f), *arguments, **named)

    return functools.update_wrapper(loaded, load)


def _is_temporary(path: Any) -> bool:
    is_path = isinstance(path, (str, os.PathLike))
    return is_path and os.path.dirname(os.path.abspath(path)) == tempfile.gettempdir()


def _block() -> None:
    for module, owner, name in SAVERS:
        holder = sys.modules.get(module)
        holder = getattr(holder, owner, None) if owner else holder
        if holder is not None and hasattr(holder, name):
            setattr(holder, name, lambda *_, **__: None)


def _list_written(agent: Agent) -> None:
    """Every file that Python opens for writing; the last is listed as of now."""
    run_folder = str(agent.out)
    written: set[str] = set()
    agent.facts["written"] = []

    def heard(event: str, arguments: tuple[Any, ...]) -> None:
        if event != "open" or not isinstance(arguments[0], str):
            return
        mode, flags = arguments[1], arguments[2]
        if not (any(letter in mode for letter in "wax+") if mode else flags & (os.O_WRONLY | os.O_RDWR)):
            return
        path = os.path.abspath(arguments[0])
        if path.startswith((run_folder, *QUIET)) or "__pycache__" in path or len(written) >= MOST_WRITTEN:
            return
        if path not in written:
            written.add(path)
            agent.facts["written"].append(path)

    sys.addaudithook(heard)

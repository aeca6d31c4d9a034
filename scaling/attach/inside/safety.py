"""No checkpoint of a run that is stopped after some steps, and a list of what it writes.

What was there before the run is neither deleted nor written over.
"""

import builtins
import functools
import io
import os
import shutil
import stat
import sys
import zlib
from typing import Any

import torch

from .agent import Agent

SAVERS = (
    ("safetensors.torch", "", "save_file"),
    ("torch.distributed.checkpoint", "", "save"),
    ("torch.distributed.checkpoint", "", "async_save"),
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
MOST_COPIED = 256 * 2**20
"""Bytes of an older file that a run changes in a copy; a larger one is not copied for each run."""
_QUIET = ("/dev/", "/proc/", "/sys/", "/tmp/torchinductor", "/tmp/torchelastic")  # noqa: S108
"""Where every run writes."""


def save_nothing(agent: Agent) -> None:
    """From the first model that is wrapped on; a script may have taken `torch.save` by name before."""
    save = torch.save

    def saved(*arguments: Any, **named: Any) -> Any:
        return None if agent.is_armed else save(*arguments, **named)

    torch.save = saved
    arm_with = agent.arm_with

    def armed(model: Any) -> None:
        arm_with(model)
        _block()

    agent.arm_with = armed  # type: ignore[method-assign]
    _keep_older(agent)
    if agent.arm == "marked":
        _list_written(agent)


def _block() -> None:
    for module, owner, name in SAVERS:
        holder = sys.modules.get(module)
        holder = getattr(holder, owner, None) if owner else holder
        if holder is not None and hasattr(holder, name):
            setattr(holder, name, lambda *_, **__: None)


class _Builtin:
    """A function that is bound to no object, as builtins are."""

    def __init__(self, call: Any, original: Any) -> None:
        self._call = call
        functools.update_wrapper(self, original)

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        return self._call(*arguments, **named)


def _keep_older(agent: Agent) -> None:
    """Calls that would delete, replace or write over an older file do nothing, or write elsewhere.

    A file that is not there is none to delete or rename either: it may be a checkpoint that was not saved.
    """
    kept: list[str] = agent.facts.setdefault("kept", [])

    def age(path: Any, dir_fd: int | None = None) -> str:
        try:
            found = os.stat(path, dir_fd=dir_fd, follow_symlinks=False)
        except (OSError, ValueError, TypeError):
            return "missing"
        is_ours = stat.S_ISREG(found.st_mode) or stat.S_ISLNK(found.st_mode) or stat.S_ISDIR(found.st_mode)
        return "older" if is_ours and found.st_ctime < agent.began_s else "newer"

    def keep(path: Any) -> None:
        name = os.path.abspath(os.fspath(path))
        if not name.startswith(_QUIET) and name not in kept and len(kept) < MOST_WRITTEN:
            kept.append(name)

    def removal(call: Any) -> Any:
        def remove(path: Any, *arguments: Any, dir_fd: int | None = None, **named: Any) -> Any:
            state = age(path, dir_fd)
            if state == "older":
                keep(path)
            elif state == "newer":
                more = {} if dir_fd is None else {"dir_fd": dir_fd}
                call(path, *arguments, **more, **named)

        return remove

    def renaming(call: Any) -> Any:
        def rename(src: Any, dst: Any, *arguments: Any, **named: Any) -> Any:
            ages = age(src, named.get("src_dir_fd")), age(dst, named.get("dst_dir_fd"))
            if ages[0] == "newer" and ages[1] != "older":
                return call(src, dst, *arguments, **named)
            for path, its_age in zip((src, dst), ages, strict=True):
                if its_age == "older":
                    keep(path)
            return dst

        return rename

    remove_tree = shutil.rmtree

    def tree(path: Any, *arguments: Any, **named: Any) -> None:
        walked = os.walk(path)
        inside = [
            os.path.join(place, name) for place, folders, files in walked for name in (*folders, *files)
        ]
        if any(age(one) == "older" for one in inside or [path]):
            keep(path)
        elif os.path.lexists(path):
            remove_tree(path, *arguments, **named)

    write = builtins.open

    def opened(file: Any, mode: str = "r", *arguments: Any, **named: Any) -> Any:
        changes = any(letter in mode for letter in "wa+") and isinstance(file, (str, os.PathLike))
        if changes and age(file) == "older" and os.path.isfile(file):
            keep(file)
            digest = zlib.crc32(os.path.abspath(os.fspath(file)).encode(errors="surrogateescape"))
            place = agent.out / f"instead-{os.getpid()}-{digest:x}-{os.path.basename(os.fspath(file))}"
            if "w" not in mode and not place.exists():
                if (size := os.path.getsize(file)) > MOST_COPIED:
                    agent.refuse(
                        f"it opens {file} ({size} bytes) to change it; open it to read, or change a copy"
                    )
                shutil.copyfile(file, place)
            file = place
        return write(file, mode, *arguments, **named)

    for name in ("remove", "unlink", "rmdir"):
        setattr(os, name, _Builtin(removal(getattr(os, name)), getattr(os, name)))
    for holder, name in ((os, "rename"), (os, "replace"), (shutil, "move")):
        setattr(holder, name, renaming(getattr(holder, name)))
    shutil.rmtree = tree  # type: ignore[assignment]
    builtins.open = io.open = opened


def _list_written(agent: Agent) -> None:
    """Every file that Python opens for writing; the last is listed as of now."""
    own = str(agent.out)
    written: set[str] = set()
    agent.facts["written"] = []

    def heard(event: str, arguments: tuple[Any, ...]) -> None:
        if event != "open" or not isinstance(arguments[0], str):
            return
        mode, flags = arguments[1], arguments[2]
        if not (any(letter in mode for letter in "wax+") if mode else flags & (os.O_WRONLY | os.O_RDWR)):
            return
        path = os.path.abspath(arguments[0])
        if path.startswith((own, *_QUIET)) or "__pycache__" in path or len(written) >= MOST_WRITTEN:
            return
        if path not in written:
            written.add(path)
            agent.facts["written"].append(path)

    sys.addaudithook(heard)

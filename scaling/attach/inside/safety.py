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

    def saved(*arguments: Any, **options: Any) -> Any:
        return None if agent.is_armed else save(*arguments, **options)

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

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        return self._call(*arguments, **options)


class _OlderFiles:
    """Calls that would delete, replace or write over an older file do nothing, or write elsewhere.

    A file that is not there is none to delete or rename either: it may be a checkpoint that was not saved.
    """

    def __init__(self, agent: Agent) -> None:
        self._agent = agent
        self._kept: list[str] = agent.facts.setdefault("kept", [])

    def _age(self, path: Any, dir_fd: int | None = None) -> str:
        try:
            status = os.stat(path, dir_fd=dir_fd, follow_symlinks=False)
        except (OSError, ValueError, TypeError):
            return "missing"
        mode = status.st_mode
        is_guarded = stat.S_ISREG(mode) or stat.S_ISLNK(mode) or stat.S_ISDIR(mode)
        return "older" if is_guarded and status.st_ctime < self._agent.began_s else "newer"

    def _keep(self, path: Any) -> None:
        name = os.path.abspath(os.fspath(path))
        if not name.startswith(_QUIET) and name not in self._kept and len(self._kept) < MOST_WRITTEN:
            self._kept.append(name)

    def removal(self, call: Any) -> Any:
        """Of `os.remove` and its like."""

        def remove(path: Any, *arguments: Any, dir_fd: int | None = None, **options: Any) -> Any:
            age = self._age(path, dir_fd)
            if age == "older":
                self._keep(path)
            elif age == "newer":
                more = {} if dir_fd is None else {"dir_fd": dir_fd}
                call(path, *arguments, **more, **options)

        return remove

    def renaming(self, call: Any) -> Any:
        """Of `os.rename` and its like."""

        def rename(src: Any, dst: Any, *arguments: Any, **options: Any) -> Any:
            ages = self._age(src, options.get("src_dir_fd")), self._age(dst, options.get("dst_dir_fd"))
            if ages[0] == "newer" and ages[1] != "older":
                return call(src, dst, *arguments, **options)
            for path, age in zip((src, dst), ages, strict=True):
                if age == "older":
                    self._keep(path)
            return dst

        return rename

    def tree_removal(self, call: Any) -> Any:
        """Of `shutil.rmtree`."""

        def remove_tree(path: Any, *arguments: Any, **options: Any) -> None:
            walked = os.walk(path)
            inside = [
                os.path.join(place, name) for place, folders, files in walked for name in (*folders, *files)
            ]
            if any(self._age(name) == "older" for name in inside or [path]):
                self._keep(path)
            elif os.path.lexists(path):
                call(path, *arguments, **options)

        return remove_tree

    def opening(self, call: Any) -> Any:
        """Of `open`."""

        def opened(file: Any, mode: str = "r", *arguments: Any, **options: Any) -> Any:
            changes = any(letter in mode for letter in "wa+") and isinstance(file, (str, os.PathLike))
            if changes and self._age(file) == "older" and os.path.isfile(file):
                self._keep(file)
                file = self._instead(file, mode)
            return call(file, mode, *arguments, **options)

        return opened

    def _instead(self, file: Any, mode: str) -> Any:
        """The file to open instead of an older one: a copy, unless the mode empties it."""
        digest = zlib.crc32(os.path.abspath(os.fspath(file)).encode(errors="surrogateescape"))
        place = self._agent.out / f"instead-{os.getpid()}-{digest:x}-{os.path.basename(os.fspath(file))}"
        if "w" not in mode and not place.exists():
            if (size := os.path.getsize(file)) > MOST_COPIED:
                self._agent.refuse(
                    f"it opens {file} ({size} bytes) to change it; open it to read, or change a copy"
                )
            shutil.copyfile(file, place)
        return place


def _keep_older(agent: Agent) -> None:
    older = _OlderFiles(agent)
    for name in ("remove", "unlink", "rmdir"):
        setattr(os, name, _Builtin(older.removal(getattr(os, name)), getattr(os, name)))
    for holder, name in ((os, "rename"), (os, "replace"), (shutil, "move")):
        setattr(holder, name, older.renaming(getattr(holder, name)))
    shutil.rmtree = older.tree_removal(shutil.rmtree)
    builtins.open = io.open = older.opening(builtins.open)


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
        if path.startswith((run_folder, *_QUIET)) or "__pycache__" in path or len(written) >= MOST_WRITTEN:
            return
        if path not in written:
            written.add(path)
            agent.facts["written"].append(path)

    sys.addaudithook(heard)

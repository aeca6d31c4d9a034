"""What a cell's code may leave changed in its process, where other cells run after it: compared, put back."""

from __future__ import annotations

import gc
import os
import signal
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.nn.modules import module

SET_BY_IMPORTS = ("KMP_INIT_AT_FORK", "KMP_DUPLICATE_LIB_OK", "TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR")
"""Variables that scikit-learn and torch's compiler set."""

CLOCKS = ("time", "monotonic", "perf_counter", "perf_counter_ns", "sleep")
CLOCK = "the functions of the time module"


@dataclass(frozen=True)
class _Part:
    """A part of the state: how it is read and put back, and what of it counts as a change."""

    read: Callable[[], Any]
    put_back: Callable[[Any], object]
    counts: Callable[[Any], Any] = lambda value: value


def _attribute(owner: Any, name: str) -> _Part:
    return _Part(lambda: getattr(owner, name), lambda value: setattr(owner, name, value))


def _handlers() -> dict[int, Any]:
    """That of SIGCHLD is left to torch: its first loader with workers sets it, once a process."""
    return {number: signal.getsignal(number) for number in signal.valid_signals() - {signal.SIGCHLD}}


def _handle(before: dict[int, Any]) -> None:
    for number, handler in _handlers().items():
        if handler != before[number] and before[number] is not None:
            signal.signal(number, before[number])


def _folder() -> str | None:
    try:
        return os.getcwd()
    except FileNotFoundError:
        return None


def _go_back(folder: str | None) -> None:
    with suppress(OSError):
        os.chdir(folder or os.curdir)


def _set_variables(before: dict[str, str]) -> None:
    for name in os.environ.keys() - before.keys() - set(SET_BY_IMPORTS):
        del os.environ[name]
    os.environ.update(before)


def _hooks() -> dict[str, dict[Any, Any]]:
    return {
        name: dict(hooks)
        for name, hooks in vars(module).items()
        if name.startswith("_global_") and isinstance(hooks, dict)
    }


def _put_hooks(before: dict[str, dict[Any, Any]]) -> None:
    for name, hooks in before.items():
        getattr(module, name).clear()
        getattr(module, name).update(hooks)


def _umask() -> int:
    """It can be read only by setting it."""
    mask = os.umask(0o077)
    os.umask(mask)
    return mask


def _use_cores(before: set[int]) -> None:
    with suppress(OSError):  # the system has taken some since
        os.sched_setaffinity(0, before)


def _put_filters(before: list[Any]) -> None:
    warnings.filters[:] = before  # type: ignore[index]
    warnings._filters_mutated()  # type: ignore[attr-defined]


_PARTS = {
    "the gradient mode": _Part(torch.is_grad_enabled, torch.set_grad_enabled),
    "the default dtype": _Part(torch.get_default_dtype, torch.set_default_dtype),
    "the default device": _Part(torch.get_default_device, lambda _: torch.set_default_device(None)),
    "the number of threads": _Part(torch.get_num_threads, torch.set_num_threads),
    "deterministic algorithms": _Part(
        lambda: (
            torch.are_deterministic_algorithms_enabled(),
            torch.is_deterministic_algorithms_warn_only_enabled(),
        ),
        lambda both: torch.use_deterministic_algorithms(both[0], warn_only=both[1]),
    ),
    "anomaly detection": _Part(torch.is_anomaly_enabled, torch.autograd.set_detect_anomaly),
    "cudnn.benchmark": _attribute(torch.backends.cudnn, "benchmark"),
    "cudnn.deterministic": _attribute(torch.backends.cudnn, "deterministic"),
    "cudnn.allow_tf32": _attribute(torch.backends.cudnn, "allow_tf32"),
    "matmul.allow_tf32": _attribute(torch.backends.cuda.matmul, "allow_tf32"),
    "hooks on nn.Module": _Part(_hooks, _put_hooks),
    "the working folder": _Part(_folder, _go_back),
    "signal handlers": _Part(_handlers, _handle),
    "environment variables": _Part(
        lambda: dict(os.environ),
        _set_variables,
        lambda values: {name: value for name, value in values.items() if name not in SET_BY_IMPORTS},
    ),
    "warnings filters": _Part(  # libraries add some of their own warnings as they are imported
        lambda: list(warnings.filters),
        _put_filters,
        lambda filters: [one for one in filters if one[0] == "error" or one[1:4] == (None, Warning, None)],
    ),
    "the garbage collector": _Part(gc.isenabled, lambda is_on: gc.enable() if is_on else gc.disable()),
    "the recursion limit": _Part(sys.getrecursionlimit, sys.setrecursionlimit),
    "the umask": _Part(_umask, os.umask),
    "numpy's handling of errors": _Part(np.geterr, lambda before: np.seterr(**before)),
    "standard output": _attribute(sys, "stdout"),
    "standard error": _attribute(sys, "stderr"),
    **(
        {"the cores it may use": _Part(lambda: os.sched_getaffinity(0), _use_cores)}
        if hasattr(os, "sched_setaffinity")
        else {}
    ),
    CLOCK: _Part(
        lambda: [getattr(time, name) for name in CLOCKS],
        lambda before: vars(time).update(zip(CLOCKS, before, strict=True)),
    ),
}


class ProcessState:
    def __init__(self) -> None:
        self._before = {name: part.read() for name, part in _PARTS.items()}

    def put_back(self) -> list[str]:
        """Makes it again as it was; returns what had changed, in words."""
        changed = []
        for name, part in _PARTS.items():
            before, now = self._before[name], part.read()
            if part.counts(now) != part.counts(before):
                changed.append(name)
                part.put_back(before)
        return changed


@contextmanager
def kept_state() -> Iterator[None]:
    """Puts back what code inside changes in this process, as a model that is built to be counted."""
    state = ProcessState()
    try:
        yield
    finally:
        state.put_back()

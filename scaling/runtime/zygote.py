"""The zygote's own process: `python -m scaling.runtime.zygote MODULE[,MODULE...]` (see `launchers.zygote`).

It imports the modules, with one thread and without CUDA, and hides what they made from the garbage collector.
For each line on its standard input it forks a leader, which forks the ranks, waits for them, and holds the
store at which they meet. CUDA, NCCL and Gloo start in the rank, after the launch's environment is in force; a
rank sets its threads by a call, as OpenMP and MKL have read their settings here.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import importlib
import json
import os
import signal
import socket
import sys
import time
import traceback
from collections.abc import Callable, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any, NoReturn

import torch
from torch.distributed import TCPStore  # type: ignore[attr-defined]  # not in its list of names

from launchers import processes
from scaling.runtime.meeting import say_pids

STANDARD_INPUT, STANDARD_OUTPUT, STANDARD_ERROR = 0, 1, 2
END_LIMIT_S = processes.GRACE_S - 2.0  # between asking and force: less than the command's patience

POLL_S = 0.02
WATCHERS_END_S = 3.0
NVIDIA_DEVICES = "/dev/nvidia"


def main() -> NoReturn:
    """Imports, and forks a launch for each request until there are no more."""
    reports = os.dup(STANDARD_OUTPUT)
    os.dup2(STANDARD_ERROR, STANDARD_OUTPUT)  # what imports print
    gc.disable()  # while the imports make hundreds of thousands of objects that stay
    for module in sys.argv[1].split(","):
        importlib.import_module(module)
    gc.collect()
    gc.freeze()
    gc.enable()
    processes.adopt_orphans()
    _report(reports, imported=True)
    with open(STANDARD_INPUT, "rb", buffering=0, closefd=False) as requests:
        while line := requests.readline():
            _serve(json.loads(line), reports)
    sys.exit(0)


def _serve(request: Mapping[str, Any], reports: int) -> None:
    if why := why_not_fork():
        _report(reports, refused=why)
        return
    if (leader := os.fork()) == 0:
        _lead(request, reports)
    _, status = os.waitpid(leader, 0)
    # A leader that was killed leaves ranks, which the kernel kills: they are this process's children now.
    processes.kill_group(leader)
    with contextlib.suppress(ChildProcessError):
        while True:
            os.waitpid(-leader, 0)
    _reap_watchers()
    if os.WIFSIGNALED(status):
        _report(reports, leader_killed=os.WTERMSIG(status))
    _report(reports, ended=os.waitstatus_to_exitcode(status))


def _reap_watchers() -> None:
    """Waits for what killed ranks have left (`launchers.watch`), which ends with the last of them."""
    until = time.monotonic() + WATCHERS_END_S
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0] or time.monotonic() < until:
            time.sleep(POLL_S / 10)


def why_not_fork() -> str | None:
    """What a forked process could not live with, or None: threads, a CUDA context, an open GPU."""
    if (threads := len(os.listdir("/proc/self/task"))) != 1:
        return f"what was imported has started {threads - 1} threads"
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        return "what was imported has initialised CUDA"
    for descriptor in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):
            if (target := os.readlink(descriptor)).startswith(NVIDIA_DEVICES):
                return f"what was imported has opened {target}"
    return None


def _report(descriptor: int, **facts: Any) -> None:
    os.write(descriptor, json.dumps(facts).encode() + b"\n")  # one write: reports are not mixed


def _lead(request: Mapping[str, Any], reports: int) -> NoReturn:
    """The leader of a launch: forks the ranks, waits for them, and ends all when one has failed."""
    zygote = os.getppid()
    os.setsid()
    processes.signal_at_parents_death(signal.SIGTERM)
    if os.getppid() != zygote:
        os._exit(1)
    signal.signal(signal.SIGTERM, _raise_ended)
    _take_environment(request)
    listener = socket.create_server(("127.0.0.1", 0))
    _report(reports, leader=os.getpid())
    ranks: dict[int, int] = {}
    try:
        for rank in range(request["world_size"]):
            if (pid := os.fork()) == 0:
                os.close(reports)
                _be_rank(rank, request, listener)
            ranks[pid] = rank
        _report(reports, ranks=list(ranks))
        # From here on this process has threads, and forks no more.
        store = _store(listener)
        say_pids(store, list(ranks))
        code = _wait(ranks, reports)
        del store
    except _EndedError:
        _report(reports, leader_killed=signal.SIGTERM)
        code = 128 + signal.SIGTERM
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    _end(ranks, reports)
    os._exit(code)


class _EndedError(Exception):
    """The leader was asked to end."""


def _raise_ended(number: int, frame: object) -> None:
    raise _EndedError


def _take_environment(request: Mapping[str, Any]) -> None:
    """Puts the launch's environment and log in the place of the zygote's."""
    os.environ.clear()
    os.environ.update(request["environment"])
    log = os.open(request["log"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, STANDARD_INPUT)
    for descriptor in (STANDARD_OUTPUT, STANDARD_ERROR):
        os.dup2(log, descriptor)
    os.close(log)
    os.close(nothing)


def _store(listener: socket.socket) -> TCPStore:
    """The store at which the ranks meet; it outlives each of them, as torchrun's does."""
    port = listener.getsockname()[1]
    return TCPStore(
        "127.0.0.1",
        port,
        is_master=True,
        wait_for_workers=False,
        timeout=timedelta(minutes=30),
        master_listen_fd=listener.detach(),
    )


def _wait(ranks: dict[int, int], reports: int) -> int:
    """The launch's exit code, once all ranks have ended or one has failed; takes out who has ended."""
    while ranks:
        pid, status = os.wait()
        if pid in ranks and (code := _ended(ranks, pid, status, reports)):
            return code if code > 0 else 128 - code
    return 0


def _ended(ranks: dict[int, int], pid: int, status: int, reports: int) -> int:
    rank, code = ranks.pop(pid), os.waitstatus_to_exitcode(status)
    _report(reports, rank=rank, code=code)
    if code:
        how = f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
        with contextlib.suppress(OSError):  # the log may be on a full disk
            # One write: watchers write to the same log.
            os.write(STANDARD_ERROR, f"rank {rank} (pid {pid}) {how}\n".encode())
    return code


def _end(ranks: dict[int, int], reports: int) -> None:
    """Ends the ranks that are left, first by asking."""
    until = time.monotonic() + END_LIMIT_S
    _send(ranks, signal.SIGTERM)
    while ranks:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if pid in ranks:
            _ended(ranks, pid, status, reports)
        elif time.monotonic() > until:
            _send(ranks, signal.SIGKILL)
            until = float("inf")
        else:
            time.sleep(POLL_S)


def _send(ranks: Mapping[int, int], number: int) -> None:
    for pid in ranks:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


def _be_rank(rank: int, request: Mapping[str, Any], listener: socket.socket) -> NoReturn:
    """A worker: the module's `main`, in the environment that torchrun would give it."""
    leader = os.getppid()
    processes.killed_with_parent()
    if os.getppid() != leader:
        os._exit(1)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    os.environ.update(rank_variables(rank, request["world_size"], listener.getsockname()[1]))
    listener.close()
    module, arguments = request["module"], list(request["arguments"])
    _show_command_line([sys.executable, "-u", "-m", module, *arguments])
    sys.argv = [module, *arguments]
    if torch.cuda._is_in_bad_fork():
        print("error: CUDA was asked for its devices before the fork", file=sys.stderr, flush=True)
        os._exit(2)
    torch.set_num_threads(request["threads"])
    processes.end_this(_code_of(lambda: importlib.import_module(module).main(arguments)))


def _code_of(run: Callable[[], int | None]) -> int:
    """The exit code of a program, as `sys.exit` gives it; what it raises is printed."""
    try:
        return run() or 0
    except SystemExit as ended:
        if ended.code is None or isinstance(ended.code, int):
            return ended.code or 0
        print(ended.code, file=sys.stderr)
    except BaseException:  # noqa: BLE001 (this is the end of the process)
        traceback.print_exc()
    return 1


def rank_variables(rank: int, world_size: int, port: int) -> dict[str, str]:
    """What torchrun sets for a worker of one host (torch/distributed/elastic/agent/server)."""
    error_handling = os.environ.get("TORCH_NCCL_ASYNC_ERROR_HANDLING", "1")
    return {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(world_size),
        "LOCAL_WORLD_SIZE": str(world_size),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "TORCHELASTIC_USE_AGENT_STORE": "True",  # the leader holds the store
        "TORCHELASTIC_RESTART_COUNT": "0",
        "TORCH_NCCL_ASYNC_ERROR_HANDLING": error_handling,
    }


def _show_command_line(words: list[str]) -> None:
    """Has ps and nvidia-smi show these words for this process."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        fields = Path("/proc/self/stat").read_text(encoding="ascii").rpartition(")")[2].split()
        start, end = int(fields[45]), int(fields[46])  # arg_start and arg_end of proc(5)
        text = b"\0".join(os.fsencode(word) for word in words)[: end - start - 1]
        if 0 < start < end:
            ctypes.memmove(start, text.ljust(end - start, b"\0"), end - start)


if __name__ == "__main__":
    main()

"""Runs a launch to its end so that nothing of it is left behind, however it ends."""

from __future__ import annotations

import atexit
import ctypes
import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import IO, NoReturn, Protocol

GRACE_S = 10.0  # what a launch has between the request to end and the end by force
PR_SET_PDEATHSIG = 1  # linux/prctl.h
PR_SET_CHILD_SUBREAPER = 36

_LIBC = ctypes.CDLL(None) if sys.platform == "linux" else None


class Running(Protocol):
    """`subprocess.Popen` or `launchers.zygote.ForkedLaunch`. `pid`: also that of its process group."""

    pid: int

    def poll(self) -> int | None:
        """Its exit code; None while it runs."""

    def wait(self, timeout: float | None = None) -> int:
        """Its exit code, once it has ended; subprocess.TimeoutExpired after that many seconds."""


def start(
    command: Sequence[str],
    environment: Mapping[str, str],
    output: IO[bytes],
    folder: Path | None = None,
    pass_fds: Sequence[int] = (),
) -> subprocess.Popen[bytes]:
    """Starts a launch, which ends when this process dies; whoever leaves it early calls `end`."""
    return subprocess.Popen(
        command,
        env=environment,
        cwd=folder,
        pass_fds=pass_fds,
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=subprocess.STDOUT,
        start_new_session=True,  # Ctrl-C reaches this process alone, which then ends the launch in order
        preexec_fn=partial(signal_at_parents_death, signal.SIGTERM),  # noqa: PLW1509 (one system call)
    )


def start_any(
    command: Sequence[str], environment: Mapping[str, str], output: IO[bytes], folder: Path
) -> subprocess.Popen[bytes]:
    """All that it starts ends with it (`launchers.keeper`). As of `start`. OSError: it does not start."""
    reader, writer = os.pipe()
    keeper = str(Path(__file__).with_name("keeper.py"))
    try:
        words = [sys.executable, "-I", "-S", keeper, str(writer), *command]
        process = start(words, environment, output, folder, (writer,))
    finally:
        os.close(writer)
    with open(reader, "rb") as said:
        if number := said.read():
            process.wait()
            raise OSError(int(number), os.strerror(int(number)))
    return process


def run_to_end(
    command: Sequence[str], environment: Mapping[str, str], output: IO[bytes], limit_s: float
) -> int | None:
    """Its exit code; None if it ran past `limit_s` seconds and was ended with all that it started."""
    process = start(command, environment, output)
    try:
        return process.wait(limit_s)
    except subprocess.TimeoutExpired:
        end(process)
        return None
    except BaseException:
        end(process)
        raise


def killed_with_parent() -> None:
    signal_at_parents_death(signal.SIGKILL)


def signal_at_parents_death(number: int) -> None:
    """Has the kernel send this process that signal when its parent dies (Linux)."""
    if _LIBC is not None:
        _LIBC.prctl(PR_SET_PDEATHSIG, number, 0, 0, 0)


def adopt_orphans() -> None:
    """Has this process become the parent of what its children leave behind, so that it can wait for them."""
    if _LIBC is not None:
        _LIBC.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def die_with_parent(exit_code: int = 1) -> None:
    """In a worker: has the kernel end it when the launcher dies; exits with `exit_code` if it has already."""
    if _LIBC is not None:
        killed_with_parent()
        if os.getppid() == 1:  # it died before
            sys.exit(exit_code)


@contextmanager
def interrupts_hurry(process: Running) -> Iterator[None]:
    """Within it Ctrl-C kills the launch at once, and what is under way goes on to its end."""

    def kill(number: int, frame: object) -> None:
        kill_group(process.pid)

    before = signal.signal(signal.SIGINT, kill)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def kill_group(leader: int) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(leader, signal.SIGKILL)


def descendants(pid: int) -> list[int]:
    children: dict[int, list[int]] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):  # it has ended
            parent = path.read_text(errors="replace").rpartition(")")[2].split()[1]
            children.setdefault(int(parent), []).append(int(path.parent.name))
    found = list(children.get(pid, []))
    for process in found:
        found += children.get(process, [])
    return found


def end(process: Running) -> None:
    """With sessions of its own too. It is asked first; what outlives the launch is killed."""
    below = []
    for pid in [] if process.poll() is not None else descendants(process.pid):
        with suppress(OSError):  # it has ended
            below.append(os.pidfd_open(pid))
    for number in (signal.SIGTERM, signal.SIGKILL):
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, number)
        with suppress(subprocess.TimeoutExpired):
            process.wait(GRACE_S)
    for one in below:
        with suppress(ProcessLookupError, PermissionError):  # it has ended, or is another user's
            signal.pidfd_send_signal(one, signal.SIGKILL)
    until_s = time.monotonic() + GRACE_S
    for one in below:
        ending = select.poll()
        ending.register(one, select.POLLIN)
        ending.poll(max(0.0, 1000 * (until_s - time.monotonic())))
        os.close(one)


def say_line(text: str) -> None:
    """A line to standard error in one write; `print` may write its end apart, after other ranks' lines."""
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()


EXIT_S = 60.0  # for exit functions, which libraries and a user's model register


def _end_late(code: int) -> None:
    say_line(f"exit functions of a model or library have run for {EXIT_S:g} s: the process ends without them")
    os._exit(code)


def end_this(code: int) -> NoReturn:
    """Without taking modules apart: some libraries wait in it for devices that are lost, and others print
    what they have left. MPI alone has its part there: mpi4py ends it after the interpreter."""
    if "mpi4py.MPI" in sys.modules:
        sys.exit(code)
    late = threading.Timer(EXIT_S, _end_late, (code,))
    late.daemon = True
    late.start()
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):  # a full disk; closed
            stream.flush()
    os._exit(code)

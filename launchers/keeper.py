"""Runs a command and ends all that it has started: when it ends, when asked to, and when its own parent dies.

    python -I launchers/keeper.py DESCRIPTOR COMMAND...

What the command leaves behind becomes this process's child (Linux). Exit code or signal are the command's.
Why it does not start goes to the descriptor, as the system's number of the error.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

sys.path.insert(0, str(Path(__file__).parents[1]))  # started by its file: the command's PYTHONPATH is its own

from launchers import processes

POLL_S = 0.02
END_LIMIT_S = processes.GRACE_S - 2.0  # before `processes.end` ends this process by force
LEFT_S = 2.0  # what a command that has ended leaves behind has so long

ASKED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


class _AskedError(Exception):
    """This process is to end."""


def _ask(number: int, _: object) -> NoReturn:
    raise _AskedError


def main() -> NoReturn:
    descriptor, command = int(sys.argv[1]), sys.argv[2:]
    code, limit_s = 128 + signal.SIGTERM, END_LIMIT_S
    try:
        for number in ASKED:
            signal.signal(number, _ask)
        processes.adopt_orphans()
        if os.getppid() == 1:  # it died before the kernel was asked to say so
            raise _AskedError
        try:
            process = subprocess.Popen(command)
        except OSError as error:
            os.write(descriptor, str(error.errno).encode())
            sys.exit(127)
        os.close(descriptor)
        code = _code_of(process.pid)
        limit_s = LEFT_S
    except _AskedError:
        pass
    for number in ASKED:
        signal.signal(number, signal.SIG_IGN)
    end_descendants(limit_s)
    if code < 0:
        with suppress(OSError, ValueError):  # SIGKILL has no handler
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    sys.exit(code)


def _code_of(pid: int) -> int:
    while True:
        ended, status = os.waitpid(-1, 0)
        if ended == pid:
            return os.waitstatus_to_exitcode(status)


def end_descendants(limit_s: float) -> None:
    """Ends what this process has below it: asks, and after that time by force."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        until = time.monotonic() + limit_s
        for pid in processes.descendants(os.getpid()):
            with suppress(OSError):  # it has ended
                os.kill(pid, number)
        while time.monotonic() < until:
            with suppress(ChildProcessError):
                while os.waitpid(-1, os.WNOHANG)[0]:
                    pass
            if not processes.descendants(os.getpid()):
                return
            time.sleep(POLL_S)


if __name__ == "__main__":
    main()

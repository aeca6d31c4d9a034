"""Starts the watcher of a host, and ends it."""

from __future__ import annotations

import json
import os
import platform
import socket
import subprocess
import sys
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path

from launchers.processes import say_line
from launchers.watch.peers import TOKEN_VARIABLE, Meeting

END_S = 5.0
"""What the watcher has to end when the rank that started it leaves in order."""

PROGRAM = """
import sys
sys.path.insert(0, sys.argv[1])
from launchers.watch.process import main
main(sys.argv[2:])
"""


def start_watcher(
    ranks: Mapping[int, tuple[int, int]],
    num_ranks: int,
    meeting: Meeting | None = None,
    listener: socket.socket | None = None,
) -> subprocess.Popen[bytes]:
    """Starts it, with what it reads of its ranks open: one that ends right now can still be named.

    Args:
        ranks: rank -> pid, and the descriptor of its page there (`SharedHeartbeat`); of this host.
        meeting: where the watchers of several hosts meet; None: there is one.
        listener: of the meeting, for rank 0's watcher.
    """
    root = Path(__file__).parents[2]
    with ExitStack() as opened:
        watched, descriptors = [], []
        for rank, (pid, descriptor) in ranks.items():
            try:
                handle = os.pidfd_open(pid)
                opened.callback(os.close, handle)
                page = os.open(f"/proc/{pid}/fd/{descriptor}", os.O_RDONLY)
                opened.callback(os.close, page)
            except OSError as error:
                reason = f"rank {rank} (pid {pid}) is not watched: {error.strerror}"
                say_line(reason)
                continue
            descriptors += [handle, page]
            watched.append([rank, pid, handle, page])
        options = {
            "host": platform.node(),
            "num_ranks": num_ranks,
            "ranks": watched,
            "meeting": meeting and [meeting.host, meeting.port],
            "listener": listener and listener.fileno(),
        }
        return subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", PROGRAM, str(root), json.dumps(options)],
            env={**os.environ, TOKEN_VARIABLE: meeting.token if meeting else ""},
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            pass_fds=[*descriptors, *([listener.fileno()] if listener else [])],
            start_new_session=True,  # what ends the ranks is not to end it before it has said so
        )


def end_watcher(watcher: subprocess.Popen[bytes]) -> None:
    assert watcher.stdin is not None
    watcher.stdin.close()
    try:
        watcher.wait(END_S)
    except subprocess.TimeoutExpired:
        watcher.kill()
        watcher.wait()

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
from dataclasses import dataclass, field
from pathlib import Path

from launchers.processes import say_line
from launchers.rank_info import RankError, RankInfo
from launchers.watch.heartbeat import stat_fields
from launchers.watch.peers import TOKEN_VARIABLE, Meeting

END_S = 5.0

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
    """Starts it, with what it reads of its ranks open: one that ends right now can still be named. `ranks`:
    rank -> pid, and the descriptor of its page there (`SharedHeartbeat`); of this host; `meeting`: where the
    watchers of several hosts meet (None: there is one); `listener`: of the meeting, for rank 0's watcher."""
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
                say_line(f"rank {rank} (pid {pid}) is not watched: {error.strerror}")
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


GRACE_S = 5.0
"""A launcher starts the ranks of a host one after another; one that nobody has seen may still come."""

LAUNCHED_AT_ONCE = {
    "torchrun": "TORCHELASTIC_RUN_ID",
    "openmpi": "OMPI_COMM_WORLD_RANK",
    "mpich": "PMI_RANK",
    "srun": "SLURM_STEP_ID",
}
"""Table of `rank_info` -> a variable of a launcher that starts all ranks of a host as its children."""


@dataclass
class Present:
    info: RankInfo
    began_s: float
    pids: dict[int, int] = field(default_factory=dict)
    _stopped_s: dict[int, float] = field(default_factory=dict)

    @property
    def local(self) -> range:
        first = self.info.rank - self.info.local_rank
        return range(first, first + self.info.local_world_size)

    def look(self) -> None:
        if not self._is_at_once():
            return
        parent = os.getppid()
        for path in Path("/proc").glob("[0-9]*"):
            pid = int(path.name)
            if stat_fields(pid)[1:2] == [str(parent)] and (rank := self._rank_of(pid)) is not None:
                self.pids[rank] = pid

    def trouble(self, now_s: float, stall_timeout_s: float) -> tuple[int, str] | None:
        """A rank of this host for which the others wait in vain, and how it is; it is ended."""
        for rank, pid in self.pids.items():
            state = stat_fields(pid)[:1]
            if state in ([], ["Z"], ["X"]):
                return rank, "left first"
            if state != ["T"]:
                self._stopped_s.pop(rank, None)
            elif now_s - self._stopped_s.setdefault(rank, now_s) >= stall_timeout_s:
                return rank, "stopped"
        is_late = self._is_at_once() and now_s - self.began_s > GRACE_S
        if is_late and self.info.rank in self.pids and len(self.pids) < len(self.local):
            return next(rank for rank in self.local if rank not in self.pids), "left first"
        return None

    def _is_at_once(self) -> bool:
        """Whether a launcher starts all ranks here as its children, with no program between it and each."""
        has_launcher = LAUNCHED_AT_ONCE.get(self.info.table, "") in os.environ
        return has_launcher and self._rank_of(os.getppid()) is None

    def _rank_of(self, pid: int) -> int | None:
        """The rank of this host that a process was started as by the same launcher; None: none."""
        try:
            content = Path(f"/proc/{pid}/environ").read_bytes().decode(errors="replace")
            variables = dict(text.split("=", 1) for text in content.split("\0") if "=" in text)
            place = RankInfo.from_env(variables)
        except (OSError, RankError):
            return None
        return place.rank if place.table == self.info.table and place.rank in self.local else None

"""The watcher: a process of one host that looks at its ranks, and ends them when the launch cannot go on.

1. It hears at once when a rank ends (pidfd). One that has not said that it leaves is named, with its exit
   code; the others would wait for it in vain, and are killed.
2. It looks at the ranks' heartbeats about once a second. When one has not moved for longer than it may
   (`judgement`), the stacks of all are asked for, who is behind is named, and all are killed.

It ends with the last rank. The run that was cut off is the run loop's business, which reads what was printed.
"""

from __future__ import annotations

import select
import signal
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from launchers.watch.heartbeat import STACK_SIGNAL, Reader
from launchers.watch.judgement import PREFIX, Pace, Seen, left_report, main_thread, stall_report

STDIN = 0  # its other end is with the rank that started this process
LOOK_S = 1.0
SHORTEST_LOOK_S = 0.05
LOOKS_A_TIMEOUT = 20
STACK_S = 2.0
"""What ranks have to write their stacks, and to end by themselves after one has left."""


class _Rank:
    """One rank as the watcher has it."""

    def __init__(self, number: int, pid: int, handle: int, page: int) -> None:
        self.number, self.pid, self.handle = number, pid, handle
        self.reader = Reader(page)
        self.pace = Pace(self.reader.position(), time.monotonic())

    def state(self) -> list[str]:
        """The fields of /proc/<pid>/stat from the state on; empty where the process is gone."""
        try:
            return Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            return []

    def is_stopped(self) -> bool:
        return self.state()[:1] == ["T"]

    def status(self) -> int | None:
        """As waitpid gives it; None where somebody else has already asked for it."""
        fields = self.state()
        return int(fields[-1]) if fields[:1] == ["Z"] else None

    def send(self, number: signal.Signals) -> None:
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(self.handle, number)


class Watcher:
    """Watches the ranks of this host to their end.

    Args:
        ranks: of each: rank, pid, and the descriptors of its process and of its page.
        num_ranks: of the launch, on all hosts.
        host: its name, for people.
    """

    def __init__(self, ranks: Sequence[Sequence[int]], num_ranks: int, host: str) -> None:
        self._num_ranks, self._host = num_ranks, host
        self._ranks = {handle: _Rank(number, pid, handle, page) for number, pid, handle, page in ranks}
        self._poll = select.poll()
        for handle in self._ranks:
            self._poll.register(handle, select.POLLIN)
        self._starter = next(iter(self._ranks.values()), None)
        self._poll.register(STDIN, 0)

    def run(self) -> None:
        """Returns when no rank is left, or when the one that started this process leaves in order."""
        looked_s = time.monotonic()
        while self._ranks and not self._is_over():
            period_s = self._period_s()
            ended = self._ended(period_s)
            silent = [one for one in ended if not one.reader.position().has_left]
            if silent:
                self._name_who_left(silent)
                return
            now_s = time.monotonic()
            if now_s - looked_s > period_s + max(1.0, period_s):  # this process was stopped too
                for rank in self._ranks.values():
                    rank.pace.excuse(now_s)
            looked_s = now_s
            if self._ranks and (still_s := self._stands_still(now_s)):
                self._end_stall(still_s)
                return

    def _period_s(self) -> float:
        timeouts = [one.reader.position().stall_timeout_s for one in self._ranks.values()]
        shortest_s = min((one for one in timeouts if one > 0), default=LOOK_S * LOOKS_A_TIMEOUT)
        return max(SHORTEST_LOOK_S, min(LOOK_S, shortest_s / LOOKS_A_TIMEOUT))

    def _is_over(self) -> bool:
        return self._starter is not None and self._starter.reader.position().has_left

    def _ended(self, wait_s: float) -> list[_Rank]:
        """The ranks that end within that time, as soon as one does; they are no longer watched."""
        handles = [handle for handle, _ in self._poll.poll(wait_s * 1e3)]
        for handle in handles:
            self._poll.unregister(handle)
        return [self._ranks.pop(handle) for handle in handles if handle != STDIN]

    def _name_who_left(self, silent: Sequence[_Rank]) -> None:
        """Says who was first, and ends the others unless their launcher does."""
        statuses = {one.number: one.status() for one in silent}
        first = min(silent, key=lambda one: statuses[one.number] == signal.SIGTERM)  # which a launcher sends
        report = left_report(first.number, statuses[first.number], first.reader.position(), self._host)
        self._say([report])
        until_s = time.monotonic() + STACK_S
        while self._ranks and (left_s := until_s - time.monotonic()) > 0:
            self._ended(left_s)
        self._kill()

    def _stands_still(self, now_s: float) -> float | None:
        """For how long a rank has not moved, where that is longer than it may."""
        for rank in self._ranks.values():
            still_s = rank.pace.look(rank.reader.position(), now_s)
            timeout_s = rank.reader.position().stall_timeout_s
            if timeout_s and still_s > timeout_s and still_s > rank.pace.limit_s(stopped=rank.is_stopped()):
                return still_s
        return None

    def _end_stall(self, still_s: float) -> None:
        stopped = {one.number for one in self._ranks.values() if one.is_stopped()}
        for rank in self._ranks.values():
            rank.send(STACK_SIGNAL)
            if rank.number in stopped:
                rank.send(signal.SIGCONT)  # it writes its stack before it does anything else
        until_s = time.monotonic() + STACK_S
        while time.monotonic() < until_s and not all(one.reader.stack() for one in self._ranks.values()):
            time.sleep(SHORTEST_LOOK_S)
        seen = {
            one.number: Seen(one.reader.position(), one.number in stopped, main_thread(one.reader.stack()))
            for one in sorted(self._ranks.values(), key=lambda one: one.number)
        }
        self._say(stall_report(seen, still_s, self._host, self._num_ranks))
        self._kill()

    def _kill(self) -> None:
        for rank in self._ranks.values():
            rank.send(signal.SIGKILL)
        while self._ranks:
            self._ended(LOOK_S)

    def _say(self, lines: Sequence[str]) -> None:
        with suppress(OSError):  # a log on a full disk
            sys.stderr.write("".join(f"{PREFIX}{line}\n" for line in lines))  # one write
            sys.stderr.flush()


def main(arguments: Sequence[str]) -> None:
    """`HOST NUM_RANKS RANK:PID:PROCESS:PAGE ...`: watches these until they have ended."""
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1):
        signal.signal(number, signal.SIG_IGN)  # it ends with the ranks
    host, num_ranks, *ranks = arguments
    Watcher([[int(word) for word in rank.split(":")] for rank in ranks], int(num_ranks), host).run()

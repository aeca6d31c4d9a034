"""The watcher: a process of one host that looks at its ranks, and ends them when the launch cannot go on.

It hears at once when a rank ends (pidfd); one that has not said that it leaves is named, and the others,
which would wait in vain, are killed. About once a second it looks at the heartbeats; when one stands still
for too long (`judgement`), stacks are asked for, who is behind is named, and all are killed. On several hosts
rank 0's watcher decides for all (`peers`); one that does not hear of it speaks for itself.
"""

from __future__ import annotations

import json
import re
import select
import signal
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path

from launchers.watch.heartbeat import STACK_SIGNAL, Position, Reader, stat_fields
from launchers.watch.judgement import PREFIX, Pace, Seen, gone_report, left_report, main_thread, stall_report
from launchers.watch.peers import GONE, Message, Peers

STDIN = 0  # its other end is with the rank that started this process
LOOK_S = 1.0
SHORTEST_LOOK_S = 0.05
LOOKS_A_TIMEOUT = 20
STACK_S = 2.0  # what ranks have to write their stacks, and to end by themselves after one has left
ANSWER_S = 2 * STACK_S  # what the watchers of other hosts have to say how their ranks are


class _Rank:
    def __init__(self, number: int, pid: int, handle: int, page: int) -> None:
        self.number, self.pid, self.handle = number, pid, handle
        self.reader = Reader(page)
        self.pace = Pace(self.reader.position(), time.monotonic())

    def is_stopped(self) -> bool:
        return stat_fields(self.pid)[:1] == ["T"]

    def can_write_stack(self) -> bool:
        with suppress(OSError):
            caught = re.search(r"^SigCgt:\s*([0-9a-f]+)$", Path(f"/proc/{self.pid}/status").read_text(), re.M)
            return caught is not None and bool(int(caught[1], 16) >> (STACK_SIGNAL - 1) & 1)
        return False

    def status(self) -> int | None:
        fields = stat_fields(self.pid)
        return int(fields[-1]) if fields[:1] == ["Z"] else None

    def send(self, number: signal.Signals) -> None:
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(self.handle, number)


class Watcher:
    """`ranks`: of each of this host: rank, pid, and the descriptors of its process and of its page."""

    def __init__(self, ranks: Sequence[Sequence[int]], num_ranks: int, host: str, peers: Peers) -> None:
        self._num_ranks, self._host, self._peers = num_ranks, host, peers
        self._ranks = {handle: _Rank(number, pid, handle, page) for number, pid, handle, page in ranks}
        self._num_watched = len(self._ranks)
        self._starter = next(iter(self._ranks.values()), None)
        self._messages: list[Message] = []

    def run(self) -> None:
        """Returns when no rank is left, or when the one that started this process leaves in order."""
        looked_s = time.monotonic()
        while self._ranks and not (self._starter is not None and self._starter.reader.position().has_left):
            period_s = self._period_s()
            ended = self._ended(period_s)
            silent = [rank for rank in ended if not rank.reader.position().has_left]
            if silent:
                self._end([self._who_left(silent)], STACK_S)
                return
            if self._messages and self._has_heard():
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
        timeouts = [rank.reader.position().stall_timeout_s for rank in self._ranks.values()]
        shortest_s = min(filter(None, timeouts), default=LOOK_S * LOOKS_A_TIMEOUT)
        return max(SHORTEST_LOOK_S, min(LOOK_S, shortest_s / LOOKS_A_TIMEOUT))

    def _ended(self, wait_s: float) -> list[_Rank]:
        poll = select.poll()
        for descriptor in (*self._ranks, *self._peers.descriptors):
            poll.register(descriptor, select.POLLIN)
        if self._starter is not None and self._starter.handle in self._ranks:
            poll.register(STDIN, 0)  # at once when it leaves in order; always ready after its end
        ready = [descriptor for descriptor, _ in poll.poll(wait_s * 1e3)]
        for descriptor in ready:
            if descriptor not in self._ranks and descriptor != STDIN:
                self._messages += self._peers.take(descriptor)
        return [self._ranks.pop(handle) for handle in ready if handle in self._ranks]

    def _next_message(self, until_s: float, *keys: str) -> Message | None:
        while True:
            while self._messages:
                if any(key in (message := self._messages.pop(0)) for key in keys):
                    return message
            if (left_s := until_s - time.monotonic()) <= 0:
                return None
            self._ended(left_s)

    def _has_heard(self) -> bool:
        message = self._messages.pop(0)
        if lines := message.get("left") or message.get("verdict"):
            self._end(lines, STACK_S)
        elif GONE in message:
            self._end([gone_report(message[GONE], message["ranks"])], STACK_S)
        elif "still_s" in message:
            self._end_stall(message["still_s"])
        elif "ask" in message:
            self._answer()
        else:
            return False
        return True

    def _who_left(self, silent: Sequence[_Rank]) -> str:
        statuses = {rank.number: rank.status() for rank in silent}
        first = min(silent, key=lambda rank: statuses[rank.number] == signal.SIGTERM)  # launchers send it
        return left_report(first.number, statuses[first.number], first.reader.position(), self._host)

    def _end(self, lines: Sequence[str], leave_s: float = 0.0) -> None:
        """Here and for others; ends the ranks unless their launcher does. `lines`: found here, or heard."""
        if not self._peers.decides:
            self._peers.say(left=list(lines))
            answer = self._next_message(time.monotonic() + ANSWER_S, "verdict")
            lines = lines if answer is None else answer["verdict"]
        else:
            self._peers.say(verdict=list(lines))
        self._say(lines)
        until_s = time.monotonic() + leave_s
        while self._ranks and (left_s := until_s - time.monotonic()) > 0:
            self._ended(left_s)
        self._kill()
        self._tell_the_late()

    def _tell_the_late(self) -> None:
        """Watchers of other hosts may still be on their way to rank 0's: they hear the verdict then."""
        until_s = time.monotonic() + ANSWER_S
        num_elsewhere = self._num_ranks - self._num_watched
        while self._peers.listens and len(self._peers.ranks) < num_elsewhere:
            if (left_s := until_s - time.monotonic()) <= 0:
                return
            self._ended(left_s)

    def _stands_still(self, now_s: float) -> float | None:
        """For how long a rank has not moved, where that is longer than it may."""
        for rank in self._ranks.values():
            still_s = rank.pace.look(rank.reader.position(), now_s)
            timeout_s = rank.reader.position().stall_timeout_s
            if timeout_s and still_s > timeout_s and still_s > rank.pace.limit_s(stopped=rank.is_stopped()):
                return still_s
        return None

    def _end_stall(self, still_s: float) -> None:
        """Ends a launch that stands still: rank 0's watcher asks all, the others tell it."""
        if not self._peers.decides:
            self._peers.say(still_s=still_s)
            message = self._next_message(time.monotonic() + ANSWER_S, "ask", "verdict")
            if message is not None and "ask" in message:
                self._answer()
                return
            seen = self._seen()
            self._say(message["verdict"] if message else stall_report(seen, still_s, self._num_ranks))
            self._kill()
            return
        awaited = self._peers.num_members
        self._peers.say(ask=True)
        seen, until_s = self._seen(), time.monotonic() + ANSWER_S
        while awaited and (message := self._next_message(until_s, "seen")):
            states = {rank: {**of, "position": Position(**of["position"])} for rank, of in message["seen"]}
            seen |= {rank: Seen(**state) for rank, state in states.items()}
            awaited -= 1
        self._end(stall_report(dict(sorted(seen.items())), still_s, self._num_ranks))

    def _answer(self) -> None:
        """Tells rank 0's watcher how the ranks of this host are, and does as it says."""
        seen = self._seen()
        self._peers.say(seen=[[rank, asdict(state)] for rank, state in seen.items()])
        message = self._next_message(time.monotonic() + 2 * ANSWER_S, "verdict")
        self._say(message["verdict"] if message else stall_report(seen, 0.0, self._num_ranks))
        self._kill()

    def _seen(self) -> dict[int, Seen]:
        """Stopped ranks write their stacks too; positions are read before, so that none finishes the step."""
        members = sorted(self._ranks.values(), key=lambda member: member.number)
        where = {member.number: (member.reader.position(), member.is_stopped()) for member in members}
        stopped = [member for member in members if where[member.number][1] and member.can_write_stack()]
        running = [member for member in members if not where[member.number][1]]
        self._write_stacks(running)
        if stopped:
            for rank in running:
                rank.send(signal.SIGSTOP)
            self._write_stacks(stopped, signal.SIGCONT)
            for rank in stopped:
                rank.send(signal.SIGSTOP)
        return {
            member.number: Seen(*where[member.number], main_thread(member.reader.stack()), self._host)
            for member in members
        }

    def _write_stacks(self, ranks: Sequence[_Rank], *further: signal.Signals) -> None:
        for rank in ranks:
            for number in (STACK_SIGNAL, *further):
                rank.send(number)
        until_s = time.monotonic() + STACK_S
        while time.monotonic() < until_s and not all(rank.reader.stack() for rank in ranks):
            time.sleep(SHORTEST_LOOK_S)

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
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1):
        signal.signal(number, signal.SIG_IGN)  # it ends with the ranks
    options = json.loads(arguments[0])
    host, ranks = options["host"], options["ranks"]
    if options["listener"] is not None:
        peers = Peers.listening(options["listener"])
    elif options["meeting"] is not None:
        hub, port = options["meeting"]
        peers = Peers.of(hub, port, host, [number for number, *_ in ranks])
    else:
        peers = Peers()
    Watcher(ranks, options["num_ranks"], host, peers).run()
    peers.say(bye=True)

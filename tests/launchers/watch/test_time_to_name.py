"""A rank that leaves without a word is named within 10 s: on the watcher's own code and a made-up clock."""

import os
import select
import signal
from dataclasses import replace
from types import SimpleNamespace

import pytest

from launchers.rank_info import RankInfo
from launchers.watch import process, start
from scaling.errors import LaunchError
from scaling.runtime import meeting
from tests.launchers.watch.test_judgement import AT

NAMED_WITHIN_S = 10.0
HUB = 1000
EXITS_S = (0.0, 0.4, 1.0, 17.3, 59.9, 1799.2)


class Clock:
    """Time passes only where the watcher waits; a wait ends at the next event, or at its limit."""

    def __init__(self):
        self.now_s = 0.0
        self.events: dict[int, float] = {}  # descriptor -> when it becomes ready

    def monotonic(self):
        return self.now_s

    def sleep(self, seconds):
        self.now_s += seconds

    def poll(self):
        registered = []

        def wait(limit_ms):
            until_s = self.now_s + limit_ms / 1e3
            due = [self.events[one] for one in registered if one in self.events]
            self.now_s = min(until_s, max(self.now_s, min(due, default=until_s)))
            ready = [one for one in registered if self.events.get(one, float("inf")) <= self.now_s]
            return [(one, select.POLLIN) for one in ready]

        return SimpleNamespace(register=lambda descriptor, _: registered.append(descriptor), poll=wait)


class Rank:
    """It goes on, as its page says, until it ends: by itself, or when it is killed."""

    def __init__(self, clock, number):
        self.number, self.handle, self._clock = number, 10 + number, clock
        self.reader = SimpleNamespace(position=self._position)
        self.pace = process.Pace(self._position(), 0.0)

    def _position(self):
        steps = round(100 * min(self._clock.now_s, self._clock.events.get(self.handle, float("inf"))))
        return replace(AT, steps=steps, steps_in_phase=steps)

    def is_stopped(self):
        return False

    def status(self):
        return 0

    def send(self, number):
        if number == signal.SIGKILL:
            self._clock.events.setdefault(self.handle, self._clock.now_s)


class Peers:
    """Of one watcher: alone, deciding for others, or asking one that answers after `answer_s` or never."""

    listens, ranks, num_members = False, frozenset(), 0

    def __init__(self, clock, answer_s):
        self.decides, self._clock, self._answer_s = answer_s is None, clock, answer_s
        self.descriptors = [] if self.decides else [HUB]

    def say(self, **message):
        if "left" in message and self._answer_s != float("inf"):
            self._clock.events[HUB] = self._clock.now_s + self._answer_s

    def take(self, descriptor):
        del self._clock.events[descriptor]
        return [{"verdict": ["rank 1 left first on host2"]}]


@pytest.fixture
def clock(monkeypatch):
    made = Clock()
    monkeypatch.setattr(process, "time", made)
    monkeypatch.setattr(process, "select", SimpleNamespace(poll=made.poll, POLLIN=select.POLLIN))
    monkeypatch.setattr(meeting, "time", made)
    return made


@pytest.mark.parametrize("answer_s", [None, 0.0, 3.0, float("inf")], ids=lambda one: f"answer {one}")
@pytest.mark.parametrize("exit_s", EXITS_S)
def test_silent_exit_is_named_and_the_others_have_ended_within_the_limit(
    clock, monkeypatch, exit_s, answer_s
):
    said = []
    watcher = process.Watcher([], 2, "host1", Peers(clock, answer_s))
    monkeypatch.setattr(watcher, "_say", lambda lines: said.append((clock.now_s, lines)))
    ranks = [Rank(clock, number) for number in range(2)]
    watcher._ranks = {rank.handle: rank for rank in ranks}
    watcher._starter = ranks[0]
    clock.events[ranks[1].handle] = exit_s
    watcher.run()
    ((said_s, lines),) = said
    assert lines[0].startswith("rank 1 left first on ")
    assert exit_s <= said_s <= clock.now_s <= exit_s + NAMED_WITHIN_S


@pytest.mark.parametrize("exit_s", [*EXITS_S[:4], None])
def test_rank_that_waits_names_one_that_left_before_they_met_within_the_limit(clock, monkeypatch, exit_s):
    """None: it was gone before anybody had seen it, where a launcher starts all at once."""
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "none")
    waiting = meeting.Waiting(RankInfo(0, 0, 2, 2, "torchrun", table="torchrun"), 300.0)
    waiting._present.pids = {0: 10, **({} if exit_s is None else {1: 11})}
    gone_s = exit_s or 0.0
    monkeypatch.setattr(waiting._present, "look", lambda: None)
    monkeypatch.setattr(
        start, "stat_fields", lambda pid: ["Z" if pid == 11 and clock.now_s >= gone_s else "S"]
    )

    def refused(host, port):
        clock.now_s += meeting.CONNECT_S
        return False

    monkeypatch.setattr(meeting, "_answers", refused)
    monkeypatch.setattr(meeting, "TCPStore", None)
    with pytest.raises(LaunchError, match=r"rank 1 left first on .*, before the ranks had met"):
        waiting.connect("host1", 29500)
    assert gone_s <= clock.now_s <= gone_s + NAMED_WITHIN_S


@pytest.mark.parametrize("at_once", [True, False])
def test_ranks_that_a_launcher_starts_at_once_have_left_if_they_are_not_there(monkeypatch, at_once):
    """Those that are started by hand have as long as ranks wait."""
    monkeypatch.delenv("TORCHELASTIC_RUN_ID", raising=False)
    if at_once:
        monkeypatch.setenv("TORCHELASTIC_RUN_ID", "none")
    present = start.Present(RankInfo(0, 0, 2, 2, "torchrun", table="torchrun"), 1000.0)
    present.pids[0] = os.getpid()
    late = present.trouble(1000.0 + 50 * start.GRACE_S, 60.0)
    assert (late, present.trouble(1000.0, 60.0)) == ((1, "left first") if at_once else None, None)

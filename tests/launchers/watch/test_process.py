"""The watcher on real processes without torch: it hears, names and ends."""

import os
import platform
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from launchers.watch.peers import TOKEN_VARIABLE, Meeting, Peers, open_meeting
from launchers.watch.start import end_watcher, start_watcher
from tests.waiting import LIMIT_S

pytestmark = pytest.mark.processes

ROOT = Path(__file__).parents[3]
HOST = platform.node()

RANK = """
import ctypes, os, signal, sys, time
from launchers.watch.heartbeat import SharedHeartbeat
heartbeat = SharedHeartbeat()
heartbeat.allow(0.5)
heartbeat.cell("a cell")
heartbeat.phase("timed iterations")
print(heartbeat.descriptor, flush=True)
words = sys.stdin.readline().split()
while words[0] != "leave":
    if words[0] == "step":
        heartbeat.step()
    elif words[0] == "exit":
        os._exit(int(words[1]))
    elif words[0] == "ignore":
        signal.signal(signal.SIGUSR2, signal.SIG_IGN)
    elif words[0] == "next":
        heartbeat.cell("the next cell")
    elif words[0] == "hold":
        ctypes.PyDLL(None).sleep(600)  # with the interpreter's lock
    print("did", flush=True)
    words = sys.stdin.readline().split()
heartbeat.leave()
"""


@pytest.fixture
def start():
    """start(program): a Python process that is gone afterwards."""
    started = []

    def run(program):
        pipes = dict.fromkeys(("stdin", "stdout"), subprocess.PIPE)
        process = subprocess.Popen([sys.executable, "-c", program], cwd=ROOT, text=True, **pipes)
        started.append(process)
        return process

    yield run
    for process in started:
        process.kill()
        process.communicate()


@pytest.fixture
def ranks(start):
    """Two ranks: each with its page."""
    started = [start(RANK), start(RANK)]
    return [(rank, int(rank.stdout.readline())) for rank in started]


@pytest.fixture
def begin():
    """begin(...): starts a watcher, gone afterwards; in the test itself, or nothing captures what it says."""
    watchers = []

    def started(*words):
        watchers.append(start_watcher(*words))
        return watchers[-1]

    yield started
    for watcher in watchers:
        watcher.kill()
        watcher.communicate()


def heard(watchers, capfd):
    """All that they say, until they end with the last rank."""
    for watcher in watchers:
        watcher.communicate(timeout=LIMIT_S)
    return capfd.readouterr().err


@pytest.fixture
def watch(begin, capfd):
    """watch(ranks): starts their watcher; the ranks, and what gives all that it says."""

    def watched(ranks):
        watcher = begin({n: (rank.pid, page) for n, (rank, page) in enumerate(ranks)}, 2)
        return [rank for rank, _ in ranks], lambda: heard([watcher], capfd)

    return watched


def say(rank, words):
    rank.stdin.write(f"{words}\n")
    rank.stdin.flush()


def step(rank):
    say(rank, "step")
    assert rank.stdout.readline() == "did\n"


@pytest.mark.parametrize("code", [0, 3])
def test_rank_that_leaves_without_a_word_is_named_and_the_others_are_ended(ranks, watch, code):
    ranks, said_by_watcher = watch(ranks)
    step(ranks[1])
    say(ranks[1], f"exit {code}")
    assert said_by_watcher() == (
        f"watcher: rank 1 left first on {HOST}, with exit code {code}, without a word, in timed iterations "
        "(1 steps done) of a cell\n"
    )
    assert ranks[0].wait(LIMIT_S) == -signal.SIGKILL


def test_rank_that_holds_the_interpreters_lock_is_named_with_its_stack(ranks, watch):
    ranks, said_by_watcher = watch(ranks)
    for rank in ranks:
        for _ in range(3):
            step(rank)
    step(ranks[0])
    say(ranks[1], "hold")
    said = said_by_watcher()
    assert f"rank 1 is behind on {HOST} in timed iterations (3 steps done) of a cell: no progress" in said
    assert 'File "<string>"' in said
    assert [rank.wait(LIMIT_S) for rank in ranks] == [-signal.SIGKILL, -signal.SIGKILL]


def test_rank_that_is_stopped_is_named_so(ranks, watch):
    ranks, said_by_watcher = watch(ranks)
    os.kill(ranks[1].pid, signal.SIGSTOP)
    said = said_by_watcher()
    assert f"rank 1 is behind on {HOST}, stopped by a signal, in timed iterations" in said
    assert 'File "<string>"' in said, "it wrote its stack before it was ended"
    assert [rank.wait(LIMIT_S) for rank in ranks] == [-signal.SIGKILL, -signal.SIGKILL]


@pytest.mark.parametrize("hears", [True, False])
def test_stopped_rank_is_charged_with_the_cell_in_which_it_was_stopped(ranks, watch, hears):
    """It would go on to the next cell as soon as it is continued for its stack."""
    (_, stopped), said_by_watcher = watch(ranks)
    if not hears:
        say(stopped, "ignore")
        assert stopped.stdout.readline() == "did\n"
    stopped.send_signal(signal.SIGSTOP)
    say(stopped, "next")
    said = said_by_watcher()
    assert f"rank 1 is behind on {HOST}, stopped by a signal, in timed iterations of a cell: no " in said
    assert ("rank 1 wrote no stack" in said) == (not hears)
    assert stopped.wait(LIMIT_S) == -signal.SIGKILL
    if not hears:
        assert stopped.stdout.read() == ""


def test_ranks_that_leave_in_order_are_not_named_and_the_watcher_ends_with_them(ranks, watch):
    ranks, said_by_watcher = watch(ranks)
    for rank in ranks:
        say(rank, "leave")
    assert said_by_watcher() == ""
    assert [rank.wait(LIMIT_S) for rank in ranks] == [0, 0]


def test_rank_that_is_gone_before_it_can_be_watched_is_said(start, capfd):
    gone = start("pass")
    gone.wait(LIMIT_S)
    end_watcher(start_watcher({0: (gone.pid, 3)}, 1))
    assert f"rank 0 (pid {gone.pid}) is not watched: No such process" in capfd.readouterr().err


@pytest.fixture
def watch_apart(begin):
    """watch_apart(ranks): starts a watcher for each of two ranks, as on two hosts."""

    def watched(ranks):
        listener, meeting = open_meeting("127.0.0.1")
        (first, page), (second, other_page) = ranks
        with listener:
            watcher = begin({0: (first.pid, page)}, 2, meeting, listener)
        return [first, second], [watcher, begin({1: (second.pid, other_page)}, 2, meeting)]

    return watched


@pytest.mark.parametrize("rank", [0, 1])
def test_rank_that_leaves_another_host_is_named_on_both(ranks, watch_apart, capfd, rank):
    ranks, watchers = watch_apart(ranks)
    step(ranks[rank])
    say(ranks[rank], "exit 3")
    lines = heard(watchers, capfd).splitlines()
    assert len(lines) == 2
    assert lines[0] == lines[1]
    assert lines[0].startswith(f"watcher: rank {rank} left first on {HOST}, with exit code 3, without a word")
    assert ranks[1 - rank].wait(LIMIT_S) == -signal.SIGKILL


@pytest.mark.parametrize("rank", [0, 1])
def test_rank_of_another_host_that_is_stopped_is_named_on_both_with_stack(ranks, watch_apart, capfd, rank):
    ranks, watchers = watch_apart(ranks)
    for one in ranks:
        step(one)
    os.kill(ranks[rank].pid, signal.SIGSTOP)
    lines = heard(watchers, capfd).splitlines()
    assert sum(f"rank {rank} is behind on {HOST}, stopped by a signal" in line for line in lines) == 2
    assert sum('File "<string>"' in line for line in lines) >= 2
    assert not any(f"rank {1 - rank}" in line for line in lines)


def test_host_of_which_nothing_is_heard_any_more_is_named(ranks, capfd, monkeypatch):
    listener, meeting = open_meeting("127.0.0.1")
    monkeypatch.setenv(TOKEN_VARIABLE, meeting.token)
    (first, page), _ = ranks
    with listener:
        watcher = start_watcher({0: (first.pid, page)}, 2, meeting, listener)
    other = Peers.of(meeting.host, meeting.port, "elsewhere", [1])
    assert not other.decides
    del other  # its connection ends without a word
    (line,) = heard([watcher], capfd).splitlines()
    assert line.startswith("watcher: rank 1 left first on elsewhere, with the watcher there")
    assert first.wait(LIMIT_S) == -signal.SIGKILL


def test_stranger_without_the_token_is_not_heard(ranks, capfd):
    listener, meeting = open_meeting("127.0.0.1")
    (first, page), (second, other_page) = ranks
    with listener:
        watcher = start_watcher({0: (first.pid, page)}, 2, meeting, listener)
    stranger = start_watcher({1: (second.pid, other_page)}, 2, Meeting("127.0.0.1", meeting.port, "guessed"))
    say(second, "exit 3")
    stranger.communicate(timeout=LIMIT_S)
    assert first.poll() is None
    say(first, "leave")
    watcher.communicate(timeout=LIMIT_S)
    assert capfd.readouterr().err.count("left first") == 1

"""Who stands still, and who is behind: on made-up positions and a made-up clock."""

import signal
from dataclasses import replace

import pytest

from launchers.watch import judgement
from launchers.watch.heartbeat import Position
from launchers.watch.judgement import Pace, Seen, behind, left_report, stall_report, verdict

AT = Position(
    serial=5, steps=17, steps_in_phase=7, patience=10, stall_timeout_s=60.0, has_left=False,
    phase="warm-up", cell="ring on 2 workers",
)  # fmt: skip
EXCHANGE = ['File "/lib/torch/distributed/c10d.py", line 1 in wait', 'File "/mine.py", line 3 in step']
OWN = ['File "/mine.py", line 2 in backward']


def moved(position: Position, steps: int = 1) -> Position:
    return replace(position, steps=position.steps + steps)


def seen(frames=EXCHANGE, stopped=False, **changed):
    return Seen(replace(AT, **changed), stopped, frames, "here")


def paced(*step_seconds: float, position: Position = AT) -> Pace:
    """A rank whose steps took that long, one look at the end of each."""
    pace, now_s = Pace(position, 0.0), 0.0
    for step_s in step_seconds:
        position, now_s = moved(position), now_s + step_s
        assert pace.look(position, now_s) == 0.0
    return pace


@pytest.mark.parametrize(("pace", "stopped", "limit_s"), [
    (paced(), False, 600), (paced(40.0, 1.0), False, 60),  # the first step gets more than those after it
    (paced(40.0, 1.0, 30.0, 1.0), False, 300),  # ten times the longest step
    *((paced(position=replace(AT, patience=patience)), True, 60) for patience in (0, 1, 10)),
    (paced(position=replace(AT, patience=0)), False, float("inf")),
    (paced(position=replace(AT, stall_timeout_s=0.0)), True, float("inf")),
])  # fmt: skip
def test_limit_is_of_the_longest_step_and_a_stopped_rank_gets_the_timeout_alone(pace, stopped, limit_s):
    assert pace.limit_s(stopped=stopped) == limit_s


def test_new_phase_begins_anew_and_one_with_patience_1_keeps_the_pace_of_the_one_before():
    for patience, limit_s in ((10, 600), (1, 150)):
        pace = paced(1.0, 15.0)
        pace.look(replace(AT, serial=6, steps=19, patience=patience), 17.0)
        assert pace.limit_s(stopped=False) == limit_s


def test_time_without_a_move_is_counted_from_the_last_one():
    pace = paced(1.0, 1.0)
    assert pace.look(moved(AT, 2), 9.0) == 7.0
    pace.excuse(9.0)
    assert pace.look(moved(AT, 2), 9.5) == 0.5
    assert pace.look(moved(AT, 3), 10.0) == 0.0


@pytest.mark.parametrize(
    ("ranks", "found"),
    [
        ({0: seen(), 1: seen(stopped=True, steps=99), 2: seen(OWN)}, [1]),
        ({0: seen(steps=3), 1: seen(OWN)}, [1]),
        ({0: seen(), 1: seen(steps=16)}, [1]),
        ({0: seen(), 1: seen(serial=4, steps=99)}, [1]),
        ({0: seen(), 1: seen()}, []),
        ({0: seen(OWN), 1: seen(OWN)}, []),
        ({3: seen()}, [3]),
    ],
)
def test_rank_behind_is_stopped_or_waits_for_nobody_or_has_the_fewest_steps(ranks, found):
    assert behind(ranks) == found


def test_report_names_rank_phase_cell_and_stack():
    lines = stall_report({0: seen(), 1: seen(OWN)}, 61.2, 2)
    assert lines == [
        "rank 1 is behind on here in warm-up (7 steps done) of ring on 2 workers: no progress for 61 s, "
        "longer than stall_timeout (60 s) allows here",
        "  rank 1, newest call first:",
        f"    {OWN[0]}",
    ]
    assert "stopped by a signal" in stall_report({0: seen(), 1: seen(stopped=True)}, 61, 2)[0]
    none = stall_report({0: seen(), 1: seen()}, 61, 2)
    assert "no rank is behind" in none[0]
    assert sum(EXCHANGE[0] in line for line in none) == 2, "of all, where none is behind"
    assert "wait for ranks of other hosts" in stall_report({0: seen(), 1: seen()}, 61, 4)[0]


def test_report_over_hosts_names_the_host_of_the_rank_that_is_behind():
    ranks = {0: seen(), 1: replace(seen(), host="there"), 2: replace(seen(stopped=True), host="there")}
    lines = stall_report(ranks, 61, 3)
    assert lines[0].startswith("rank 2 is behind on there, stopped by a signal, in warm-up")
    assert [line for line in lines if line.startswith("  rank")] == ["  rank 2, newest call first:"]
    gone = judgement.gone_report("there", [1, 2])
    assert gone.startswith("ranks 1, 2 left first on there, with the watcher there")


@pytest.mark.parametrize(
    ("status", "said"),
    [
        (0, "with exit code 0, without a word"),
        (7 << 8, "with exit code 7"),
        (int(signal.SIGKILL), "killed by SIGKILL"),
        (signal.SIGSEGV | 0x80, "killed by SIGSEGV"),
        (None, "with an unknown exit code"),
    ],
)
def test_exit_code_is_said_of_who_left_first(status, said):
    assert left_report(1, status, AT, "here").startswith(f"rank 1 left first on here, {said}")


def test_main_thread_is_the_last_that_faulthandler_writes():
    stacks = 'Thread 0x01 (most recent call first):\n  File "a.py", line 1 in f\n\n'
    stacks += 'Current thread 0x02 (most recent call first):\n  File "b.py", line 2 in g\n'
    assert judgement.main_thread(stacks) == ['File "b.py", line 2 in g']


def test_verdict_is_found_in_a_log_whatever_a_launcher_puts_before_its_lines():
    log = """$ torchrun
[1,0]<stderr>:watcher: no progress for 3 s: ranks 0, 1 on a wait for ranks of other hosts
1: watcher: rank 3 is behind on b, stopped by a signal, in warm-up
1: watcher:   rank 3, newest call first:
W1123 torch/elastic: something else
1: watcher:     File "b.py", line 2 in g
watcher: rank 2 left first on b, killed by SIGKILL, in warm-up
"""
    assert verdict(log) == [
        "rank 3 is behind on b, stopped by a signal, in warm-up",
        "  rank 3, newest call first:",
        '    File "b.py", line 2 in g',
    ]
    assert verdict("$ torchrun\n") == []


@pytest.mark.parametrize(("code", "said"), [(0, "with exit code 0"), (3, "exit code 3"), (-9, "by SIGKILL")])
def test_exit_code_that_the_watcher_could_not_see_is_the_launchers(code, said):
    log = f"watcher: {left_report(1, None, AT, 'here')}\n"
    assert said in verdict(log, {1: code})[0]
    assert "unknown exit code" in verdict(log, {0: code})[0]

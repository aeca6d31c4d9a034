"""One run of a command, which runs an attached script makes, and what is said of its files."""

import json
import sys
import time
from collections import Counter
from types import SimpleNamespace

import pytest

from scaling.attach import files, launch, study
from scaling.attach.inside.arms import ARMS, BUCKETS, NO_SWITCH
from scaling.attach.launch import Run, _last_line, _read, start_and_wait
from tests.attach.made_marks import made_rank, made_switched, pair
from tests.waiting import is_running, wait_until

LAUNCHER = """
import subprocess, sys, time
deaf = "import signal, time; signal.signal(15, signal.SIG_IGN); open('ready', 'w'); time.sleep(600)"
print(subprocess.Popen([sys.executable, "-c", deaf], start_new_session=True).pid, flush=True)
time.sleep(600)
"""
ENDS_FIRST = f"""
import os, subprocess, sys, time
subprocess.Popen([sys.executable, "-c", {LAUNCHER!r}])
while not os.path.exists("ready"):
    time.sleep(0.05)
"""


@pytest.mark.parametrize(("launcher", "expected"), [(LAUNCHER, None), (ENDS_FIRST, 0)])
def test_ranks_that_ignore_sigterm_in_own_sessions_are_ended(launcher, expected, tmp_path, monkeypatch):
    log, is_ready = tmp_path / "output.log", (tmp_path / "ready").exists
    made_up = SimpleNamespace(monotonic=lambda: float(expected is None and is_ready()), sleep=time.sleep)
    monkeypatch.setattr(launch, "time", made_up)  # the deadline comes once the rank is there
    wanted = {"out": str(tmp_path), "deadline_s": 0.5, "began_s": 0.0}
    assert start_and_wait([sys.executable, "-c", launcher], wanted, log, tmp_path, {}) == expected
    assert (tmp_path / "ready").exists()
    pid = int(log.read_text())
    wait_until(lambda: not is_running(pid))


TORCHRUN_SAYS = """
E1125 17:48:18.964000 31645 torch/distributed/elastic/multiprocessing/api.py:1002] failed (exitcode: 3)
Traceback (most recent call last):
  File "bin/torchrun", line 8, in <module>
    raise ChildFailedError(
torch.distributed.elastic.multiprocessing.errors.ChildFailedError:
train.py FAILED
  traceback : To enable traceback see: https://pytorch.org/docs/stable/elastic/errors.html
============================================================
"""


ENDED_SAYS = (
    TORCHRUN_SAYS.partition("Traceback")[0]
    + """Traceback (most recent call last):
  File x
torch.distributed.elastic.multiprocessing.api.SignalException: Process 1 got signal: 15
"""
)
WARNS = "W1 torch/distributed/run.py:851]\n*****\nSetting OMP_NUM_THREADS environment variable\n*****\n"


@pytest.mark.parametrize(("wrote", "expected"), [
    (WARNS, "it wrote nothing"), ("iter 3, loss 0.1", "iter 3, loss 0.1"), ("", "it wrote nothing"),
    ("epoch 1\nskipped: a bad sample", "skipped: a bad sample"),
    ("Traceback (most recent call last):\nValueError: a bad sample\nbye", "ValueError: a bad sample"),
    ("ValueError: first\nRuntimeError: Connection closed by peer [::1]:5", "ValueError: first"),
    ("[rank0]:     assert n % 2 == 0\n[rank0]:            ^^^^^\n[rank0]: AssertionError",
     "AssertionError at `assert n % 2 == 0`"),
])  # fmt: skip
def test_of_a_script_that_fails_its_own_last_words_are_given(wrote, expected, tmp_path):
    for after in ("", TORCHRUN_SAYS, ENDED_SAYS):
        (tmp_path / "output.log").write_text(f"{wrote}\n{after}")
        assert _last_line(tmp_path) == expected


SPAWN_SAYS = """
Traceback (most recent call last):
  File "train.py", line 9, in <module>
    mp.spawn(train, nprocs=2)
torch.multiprocessing.spawn.ProcessRaisedException:

-- Process 1 terminated with the following error:
Traceback (most recent call last):
  File "train.py", line 5, in train
    model(x)
RuntimeError: mat1 and mat2 shapes cannot be multiplied
"""


@pytest.mark.parametrize(("code", "refused", "expected"), [
    (0, "it ended before an optimizer's step", "it ended before an optimizer's step"),
    (1, "it uses Horovod", "it uses Horovod"),
    (1, "it ended before an optimizer's step", "it ended with code 1 before its steps were done: "
     "RuntimeError: mat1 and mat2 shapes cannot be multiplied"),
])  # fmt: skip
def test_an_error_that_a_spawned_rank_did_not_see_is_taken_from_the_output(code, refused, expected, tmp_path):
    record = {**made_rank(0, [0.1]), "world_size": 2, "pid": 1, "refused": refused}
    (tmp_path / "rank0.json").write_text(json.dumps(record))
    (tmp_path / "output.log").write_text(SPAWN_SAYS)
    assert _read("baseline", tmp_path, code, 6, 10.0).reason == expected


def test_a_rank_that_stops_before_the_others_is_named_and_not_what_they_miss(tmp_path):
    lost = [1.0, "RuntimeError: Connection closed by peer [127.0.0.1]:62656"]
    for rank, more in enumerate(({"ended_after": 51}, {"ended_after": 51, "raised": lost})):
        record = {**made_rank(rank, [0.1] * 51), "pid": 1, **more}
        (tmp_path / f"rank{rank}.json").write_text(json.dumps(record))
    (tmp_path / "output.log").write_text("early stop\n")
    expected = "rank 0 ended by itself after 51 steps, and others went on"
    assert _read("switched", tmp_path, 1, 6, 10.0).reason == expected


def _runs(tmp_path, monkeypatch, steps_s, *, arms=ARMS, sizes=None, seeds=None, **facts):
    """How often each arm ran of a script whose steps take so long (0.1 s otherwise), and the answer. To
    `seeds` goes what each arm's runs were given."""
    ran: Counter[str] = Counter()

    def run_arm(_, arm, *__, seed, blocks=None, **___):
        arms = blocks.arms if blocks else (arm,)
        ran.update(arms)
        if seeds is not None:
            seeds.setdefault(arm, []).append(seed)
        reason = (facts.get("apart") if blocks else None) or (
            facts.get("breaks") if "no_collectives" in arms else None
        )
        if reason:
            return Run(arm, reason=reason, arms=arms)
        by_arm = {name: steps_s.get(name, 0.1) for name in arms}
        ranks = made_switched(by_arm) if blocks else pair([by_arm[arm]] * 6)
        bucket_bytes = sizes(arm) if sizes else [2**20] * (1 if arm == "buckets_200" else 9)
        more = {"bucket_bytes": bucket_bytes, "gradients": [[3]], "host": "h", **facts}
        return Run(arm, [{**rank, **more} for rank in ranks], arms=arms)

    monkeypatch.setattr(study, "run_arm", run_arm)
    monkeypatch.setattr("signal.signal", lambda *_: None)
    monkeypatch.chdir(tmp_path)
    plan = study.AttachPlan(["torchrun", "train.py"], list(arms), 1, 5, 2, 10.0)
    return ran, study.attach(plan, tmp_path / "out", lambda _: None)[0]


def test_runs_that_can_tell_nothing_are_left_out(tmp_path, monkeypatch):
    ran, lines = _runs(tmp_path, monkeypatch, {"no_exchange": 0.098}, phases=[("input", 0.0, 0.001)])
    once = {"timed": 1, "clock": 1, "one_worker": 1}
    assert ran == {"baseline": 2, "aa": 2, "no_exchange": 2, "cached_input": 2, **once}
    text = "\n".join(lines)
    assert "Other bucket sizes: not measured, because without any exchange a step is not 10% shorter." in text


def test_launches_that_agree_are_two_and_others_get_a_third(tmp_path, monkeypatch):
    ran, _ = _runs(tmp_path, monkeypatch, {"no_exchange": 0.05})
    assert ran["baseline"] == 2
    monkeypatch.setattr(study._Session, "_is_open", lambda _: True)
    (tmp_path / "again").mkdir()
    assert _runs(tmp_path / "again", monkeypatch, {})[0]["baseline"] == 3


def test_repeats_draw_other_samples_but_for_what_is_compared_with_the_clock(tmp_path, monkeypatch):
    for apart, expected in ((None, {"switched": [0, 1000]}), (STATIC, {"aa": [0, 1000, 2000]})):
        seeds: dict[str, list[int]] = {}
        (folder := tmp_path / str(bool(apart))).mkdir()
        _runs(folder, monkeypatch, {"no_exchange": 0.05, "buckets_200": 0.06}, seeds=seeds, apart=apart)
        assert {arm: seeds[arm] for arm in expected} == expected
        assert (seeds["clock"], seeds["buckets_200"]) == ([0, 0], [0, 0])


BROKE = "rank 0 ended by itself after 51 steps, and others went on"
STATIC = f"{NO_SWITCH}its model has a static graph"
MADE = {
    "one that an arm breaks is made again without it": (
     {"no_exchange": 0.05}, {"breaks": BROKE, "collectives": {"all_reduce": 99}},
     {"no_collectives": 1, "baseline": 3},
     ["Without the exchange a step would be 50.0% \u00b1 0.0% shorter."]),
    "what seems faster in the second launch is confirmed by a third": (
     {"no_collectives": 0.05}, {"collectives": {"all_reduce": 99}}, {"no_collectives": 2, "baseline": 3},
     ["Next: call the script's own collectives"]),
    "each is a process where arms cannot be switched": (
     {"no_exchange": 0.06}, {"apart": STATIC}, {"aa": 4, "no_exchange": 4},  # once in the launch that failed
     [f"Each arm was a process of its own, which is less exact: {STATIC}.",
      "A step takes 100 ms (mean of",
      "Without the exchange a step would be 40.0% \u00b1 0.0% shorter."]),
    "and where ranks stop at other steps while they are, as by values that drift": (
     {"no_exchange": 0.06}, {"apart": BROKE}, {"aa": 4},
     [f"Each arm was a process of its own, which is less exact: {BROKE}."]),
    "input that comes from no loader is not cached again": (
     {}, {"batches": [], "has_cached_input": False}, {"cached_input": 1},
     ["With cached input: not measured, because the script draws its batches from no torch DataLoader."]),
    "other buckets that were faster once are measured again": (
     {"no_exchange": 0.05, "buckets_200": 0.06}, {}, {"clock": 2, "buckets_2": 1, "buckets_200": 2},
     ["Next: bucket_cap_mb=200."]),
    "tiny buckets are tried whatever the exchange shows": (
     {"no_exchange": 0.098}, {"bucket_bytes": [2**10] * 9}, {"buckets_2": 1}, []),
}  # fmt: skip


@pytest.mark.parametrize(("steps_s", "facts", "expected", "said"), MADE.values(), ids=MADE)
def test_launches_that_are_made(tmp_path, monkeypatch, steps_s, facts, expected, said):
    ran, lines = _runs(tmp_path, monkeypatch, steps_s, **facts)
    assert {arm: ran[arm] for arm in expected} == expected
    assert [one for one in said if not any(line.startswith(one) for line in lines)] == []


@pytest.mark.parametrize(("num_mb", "tried"), [(40, ["buckets_2", "buckets_25"]), (1, [])])
def test_one_huge_bucket_is_compared_with_smaller_ones(num_mb, tried, tmp_path, monkeypatch):
    def sizes(arm):
        is_less = arm in BUCKETS and ARMS[arm].bucket_mb < num_mb
        return [2**20] * num_mb if is_less else [num_mb * 2**20]

    arms = ["baseline", "aa", "no_exchange", *BUCKETS]
    ran, _ = _runs(tmp_path, monkeypatch, {"no_exchange": 0.05}, arms=arms, sizes=sizes)
    assert [arm for arm in ran if arm in BUCKETS] == tried


def _said(folder, monkeypatch, changes):
    """What is said of the folder's files where runs make these changes."""
    said: list[str] = []
    monkeypatch.setattr(study._Session, "run", lambda _: changes())
    monkeypatch.setattr("signal.signal", lambda *_: None)
    monkeypatch.chdir(folder)
    plan = study.AttachPlan(["torchrun", "train.py"], ["baseline"], 1, 5, 1, 10.0)
    study.attach(plan, folder / "out", said.append)
    return said


@pytest.mark.parametrize(("most", "before", "said"), [
    (99, ["mine.txt"],
     ["written meanwhile: 2 files: mine.txt, new.txt; by something other than the script's Python"]),
    (3, ["mine.txt", "1", "2", "3"],
     ["more than 3 files are here: which others appeared or changed is not known"]),
])  # fmt: skip
def test_files_that_a_program_has_changed_are_named_if_few(tmp_path, monkeypatch, most, before, said):
    monkeypatch.setattr(files, "MOST_FILES", most)
    for name in before:
        (tmp_path / name).write_text("mine")

    def changes():
        (tmp_path / "mine.txt").write_text("")
        (tmp_path / "new.txt").touch()

    assert _said(tmp_path, monkeypatch, changes) == said


def test_logs_of_the_command_itself_are_not_changed_files(tmp_path, monkeypatch):
    own = tmp_path / "attach.log"
    own.write_text("old words")
    status = own.stat()
    monkeypatch.setattr(files.os, "fstat", lambda _: status)
    assert _said(tmp_path, monkeypatch, lambda: own.write_text("")) == []

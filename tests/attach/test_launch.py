"""One run of a command that is no training script."""

import json
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from scaling.attach import launch
from scaling.attach.launch import _last_line, _read, start_and_wait
from tests.attach.made_marks import made_rank
from tests.waiting import wait_until

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


def _runs(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:  # it has ended
        return False


@pytest.mark.parametrize(("launcher", "expected"), [(LAUNCHER, None), (ENDS_FIRST, 0)])
def test_ranks_in_sessions_of_their_own_that_ignore_sigterm_are_ended(
    launcher, expected, tmp_path, monkeypatch
):
    log, is_ready = tmp_path / "output.log", (tmp_path / "ready").exists
    made_up = SimpleNamespace(monotonic=lambda: float(expected is None and is_ready()), sleep=time.sleep)
    monkeypatch.setattr(launch, "time", made_up)  # the deadline comes once the rank is there
    wanted = {"out": str(tmp_path), "deadline_s": 0.5, "began_s": 0.0}
    assert start_and_wait([sys.executable, "-c", launcher], wanted, log, tmp_path, {}) == expected
    assert (tmp_path / "ready").exists()
    pid = int(log.read_text())
    wait_until(lambda: not _runs(pid))


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


@pytest.mark.parametrize(("wrote", "expected"), [
    ("epoch 1\nskipped: a bad sample", "skipped: a bad sample"),
    ("Traceback (most recent call last):\nValueError: a bad sample\nbye", "ValueError: a bad sample"),
    ("ValueError: first\nRuntimeError: Connection closed by peer [::1]:5", "ValueError: first"),
])  # fmt: skip
def test_of_a_script_that_fails_its_own_last_words_are_given(wrote, expected, tmp_path):
    for after in ("", TORCHRUN_SAYS):
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
        (tmp_path / f"rank{rank}.json").write_text(
            json.dumps({**made_rank(rank, [0.1] * 51), "pid": 1, **more})
        )
    (tmp_path / "output.log").write_text("early stop\n")
    expected = "rank 0 ended by itself after 51 steps, and others went on"
    assert _read("switched", tmp_path, 1, 6, 10.0).reason == expected


def test_of_a_script_that_fails_or_is_ended_its_own_last_words_are_given(tmp_path):
    said = TORCHRUN_SAYS.partition("Traceback")[0] + "Traceback (most recent call last):\n  File x\n"
    said += "torch.distributed.elastic.multiprocessing.api.SignalException: Process 1 got signal: 15\n"
    warns = "W1 torch/distributed/run.py:851]\n*****\nSetting OMP_NUM_THREADS environment variable\n*****\n"
    nothing, loss = "it wrote nothing", "iter 3, loss 0.1"
    for own, last in ((warns, nothing), (f"{loss}\n", loss), ("", nothing)):
        (tmp_path / "output.log").write_text(own + said)
        assert _last_line(tmp_path) == last

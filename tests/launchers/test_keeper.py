"""What a command has started ends with it, however the verb that runs the command ends."""

import os
import signal
import subprocess
import sys
import tempfile

import pytest

from launchers.processes import descendants, start_any
from tests.conftest import still_there
from tests.launchers.test_processes import ended, is_running, pids_in
from tests.waiting import wait_until

# A child in a session of its own that ignores SIGTERM; all pids go to the file.
TREE = """
import os, subprocess, sys, time
deaf = "import signal, time; signal.signal(15, signal.SIG_IGN); print(flush=True); time.sleep(600)"
child = subprocess.Popen([sys.executable, "-c", deaf], stdout=subprocess.PIPE, start_new_session=True)
child.stdout.readline()
open(sys.argv[1] + ".new", "w").write(f"{os.getpid()} {child.pid}")
os.replace(sys.argv[1] + ".new", sys.argv[1])
"""
WAITS = "while True: time.sleep(0.1)\n"

SIGNALS = ("SIGHUP", "SIGTERM", "SIGINT", "SIGKILL")

linux = pytest.mark.skipif(sys.platform != "linux", reason="the kernel's help is Linux's")


def kept(folder, *command):
    with tempfile.TemporaryFile() as output:
        return start_any([sys.executable, "-c", *map(str, command)], os.environ, output, folder)


@pytest.mark.parametrize("code", [0, 3, -signal.SIGKILL])
def test_exit_code_is_the_commands(tmp_path, code):
    program = f"import os, sys; os.kill(os.getpid(), {-code}) if {code} < 0 else sys.exit({code})"
    assert kept(tmp_path, program).wait() == code


def test_command_that_is_not_there_does_not_start(tmp_path):
    with tempfile.TemporaryFile() as output, pytest.raises(FileNotFoundError):
        start_any(["no-such-command"], os.environ, output, tmp_path)


@linux
@pytest.mark.processes
def test_what_a_command_leaves_ends_with_it(tmp_path):
    process = kept(tmp_path, TREE, tmp_path / "pids")
    assert process.wait() == 0
    assert ended(pids_in(tmp_path / "pids"))


HEEDING = ["env", "--default-signal"]
"""What is started below nohup ignores a hangup otherwise."""


@linux
@pytest.mark.processes
@pytest.mark.parametrize("name", SIGNALS)
def test_nothing_of_an_attached_command_is_left(tmp_path, name):
    words = ["attach", "--out", "out", "--", sys.executable, "-c", TREE + WAITS, str(tmp_path / "pids")]
    process = subprocess.Popen([*HEEDING, sys.executable, "-m", "scaling", *words], cwd=tmp_path)
    try:
        pids = pids_in(tmp_path / "pids")
        process.send_signal(signal.Signals[name])
        process.wait()
        left = still_there(lambda: [pid for pid in pids if is_running(pid)])
    finally:
        process.kill()
        process.wait()
    for pid in left:
        os.kill(pid, signal.SIGKILL)
    assert left == []


@linux
@pytest.mark.processes
@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", SIGNALS)
@pytest.mark.parametrize(
    "words",
    [
        ["topology", "probe", "--out", "machine.yaml"],
        ["run", "quickstart", "kind=iteration", "world_sizes=[2]", "--out", "out"],
    ],
    ids=["probe", "run"],
)
def test_nothing_of_the_workers_of_a_verb_is_left(tmp_path, words, name):
    process = subprocess.Popen([*HEEDING, sys.executable, "-m", "scaling", *words], cwd=tmp_path)
    try:
        wait_until(lambda: len(descendants(process.pid)) >= 3 or process.poll() is not None)
        assert process.poll() is None
        pids = descendants(process.pid)  # a starter and two workers
        process.send_signal(signal.Signals[name])
        process.wait()
        left = still_there(lambda: [pid for pid in pids if is_running(pid)])
    finally:
        process.kill()
        process.wait()
    for pid in left:
        os.kill(pid, signal.SIGKILL)
    assert left == []

"""What a command has started ends with it, however the verb that runs the command ends."""

import os
import signal
import subprocess
import sys
import tempfile

import pytest

from launchers.processes import descendants, start_any
from tests.launchers.test_processes import pids_in
from tests.waiting import left_of, wait_until

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
    assert kept(tmp_path, TREE, tmp_path / "pids").wait() == 0
    assert not left_of(pids_in(tmp_path / "pids"))


def left_by(folder, words, name, wait_for):
    """What is left of a verb that a signal ends once `wait_for(process)` has told the pids."""
    heeding = ["env", "--default-signal"]  # what is started below nohup ignores a hangup otherwise
    process = subprocess.Popen([*heeding, sys.executable, "-m", "scaling", *words], cwd=folder)
    try:
        pids = wait_for(process)
        process.send_signal(signal.Signals[name])
        process.wait()
        left = left_of(pids)
    finally:
        process.kill()
        process.wait()
    for pid in left:
        os.kill(pid, signal.SIGKILL)
    return left


@linux
@pytest.mark.processes
@pytest.mark.parametrize("name", SIGNALS)
def test_nothing_of_an_attached_command_is_left(tmp_path, name):
    words = ["attach", "--out", "out", "--", sys.executable, "-c", TREE + WAITS, str(tmp_path / "pids")]
    assert left_by(tmp_path, words, name, lambda _: pids_in(tmp_path / "pids")) == []


@linux
@pytest.mark.processes
@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", SIGNALS)
@pytest.mark.parametrize("words", [
    ["topology", "probe", "--out", "machine.yaml"],
    ["run", "quickstart", "kind=iteration", "world_sizes=[2]", "--out", "out"],
], ids=["probe", "run"])  # fmt: skip
def test_nothing_of_the_workers_of_a_verb_is_left(tmp_path, words, name):
    def started(process):
        wait_until(lambda: len(descendants(process.pid)) >= 3 or process.poll() is not None)
        assert process.poll() is None
        return descendants(process.pid)  # a starter and two workers

    assert left_by(tmp_path, words, name, started) == []

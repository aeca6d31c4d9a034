"""A launch is run to its end, and nothing of it is left however it ends."""

import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from launchers import processes
from launchers.processes import end, run_to_end, start
from tests.waiting import LIMIT_S, is_running, left_of, wait_until

ROOT = Path(__file__).parents[2]
# Starts a child of its own, writes both pids to the file it is given, and waits for ever: by short sleeps,
# since a signal that comes just before a sleep is heard after it.
TREE = (
    "import os, subprocess, sys, time\n"
    "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])\n"
    "open(sys.argv[1] + '.new', 'w').write(f'{os.getpid()} {child.pid}')\n"
    "os.replace(sys.argv[1] + '.new', sys.argv[1])\n"
    "while True:\n"
    "    time.sleep(0.1)\n"
)
DEAF_TREE = TREE.replace("import time; time", "import signal, time; signal.signal(15, 1); time")
DEAF_TREE = DEAF_TREE.replace("])\n", "], start_new_session=True)\n", 1)


def pids_in(path):
    wait_until(path.exists, "the launch to start")
    return [int(pid) for pid in path.read_text().split()]


def run(program, *arguments, limit_s=LIMIT_S):
    with tempfile.TemporaryFile() as output:
        code = run_to_end([sys.executable, "-c", program, *arguments], os.environ, output, limit_s)
        output.seek(0)
        return code, output.read().decode()


def test_exit_code_and_output_of_both_streams_come_back():
    code, text = run("import sys; print('out', flush=True); print('err', file=sys.stderr); sys.exit(3)")
    assert (code, text.split()) == (3, ["out", "err"])


def test_exit_functions_that_do_not_end_are_not_waited_for():
    program = (
        "import atexit, time; from launchers import processes; processes.EXIT_S = 0.1\n"
        "atexit.register(time.sleep, 10_000); processes.end_this(3)"
    )
    code, text = run(program)
    assert (code, "the process ends without them" in text) == (3, True)


@pytest.mark.parametrize("program", [TREE, DEAF_TREE], ids=["its group", "deaf, in a session of its own"])
def test_launch_past_its_limit_is_ended_with_its_children(tmp_path, program):
    code, _ = run(program, str(tmp_path / "pids"), limit_s=3.0)
    assert code is None
    pids = tmp_path / "pids"  # on a busy machine the limit may come before the children
    assert not left_of(pids_in(pids) if pids.exists() else [])


def started(program, *arguments):
    """The launch, in which the program has written its pids, and those pids."""
    with tempfile.TemporaryFile() as output:
        process = start([sys.executable, "-c", program, *map(str, arguments)], os.environ, output)
    return process, pids_in(arguments[0])


def test_launch_is_asked_to_end_before_it_is_forced(tmp_path, monkeypatch):
    monkeypatch.setattr(processes, "GRACE_S", 60.0)
    in_order = "import signal, sys; signal.signal(signal.SIGTERM, lambda *_: sys.exit(7))\n"
    process, pids = started(in_order + TREE, tmp_path / "pids")
    end(process)
    assert process.returncode == 7
    assert not left_of(pids)


DEAF = "signal.signal(signal.SIGTERM, signal.SIG_IGN)"


@pytest.mark.parametrize(("program", "code"), [
    (f"import signal; {DEAF}\n{TREE}", -signal.SIGKILL),  # its children ignore the signal too
    (f"import signal\n{TREE}".replace("600)'])", f"600)'], preexec_fn=lambda: {DEAF})"), -signal.SIGTERM),
], ids=["launch", "child alone"])  # fmt: skip
def test_what_ignores_the_request_to_end_is_killed(tmp_path, monkeypatch, program, code):
    monkeypatch.setattr(processes, "GRACE_S", 0.2 if code == -signal.SIGKILL else 60.0)
    process, pids = started(program, tmp_path / "pids")
    try:
        end(process)
        assert process.returncode == code
        assert not left_of(pids)
    finally:
        for pid in filter(is_running, pids):
            os.kill(pid, signal.SIGKILL)
        process.wait()


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel's help is Linux's")
def test_launch_ends_when_the_process_that_started_it_is_killed(tmp_path):
    starter = (
        "import os, sys, tempfile\n"
        "from launchers.processes import run_to_end\n"
        "with tempfile.TemporaryFile() as output:\n"
        "    command = [sys.executable, '-c', 'import time; time.sleep(600)']\n"
        "    run_to_end(command, os.environ, output, 600)\n"
    )
    process = subprocess.Popen([sys.executable, "-c", starter], cwd=ROOT)
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
    try:
        pids = wait_until(lambda: [int(pid) for pid in children.read_text().split()])
        command = Path(f"/proc/{pids[0]}/cmdline")  # it becomes the launch, and has asked for its end
        wait_until(lambda: b"run_to_end" not in command.read_bytes())
    finally:
        process.kill()
        process.wait()
    left = left_of(pids)
    for pid in left:
        os.kill(pid, signal.SIGKILL)
    assert not left, f"processes {left} were left behind"

"""A worker that is told to stop puts its run back, even while it waits in a call that never returns."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from scaling.runtime.workers import EXIT_STOPPED, close_runs, closing_on_signals
from scaling.store import ResultsFolder, RunRecord
from tests.waiting import LIMIT_S

PROGRAM = """
import ctypes, sys
from scaling.runtime.workers import close_runs, closing_on_signals
from scaling.store import ResultsFolder

folder, rank = ResultsFolder(sys.argv[1]), int(sys.argv[2])
with closing_on_signals(lambda: close_runs(folder, rank, 2)):
    print("ready", flush=True)
    ctypes.CDLL(None).sleep(600)  # like a collective: without the interpreter's lock, and deaf to handlers
    ctypes.CDLL(None).sleep(600)
"""


@pytest.fixture
def folder(tmp_path):
    folder = ResultsFolder(tmp_path / "out")
    for cell, size, state in (("a", 2, "done"), ("b", 2, "running"), ("c", 1, "running")):
        variables = {"kind": "own", "device": "cpu", "world_size": size}
        folder.write_run(RunRecord(cell, 0, variables, state=state))
    return folder


def states(folder):
    return {record.cell_id: (record.state, record.deaths) for record in folder.runs()}


@pytest.mark.sampled(2)
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1])
@pytest.mark.parametrize(("rank", "state"), [(0, "planned"), (1, "running")])
def test_signal_ends_the_worker_and_rank_0_puts_its_launchs_run_back(folder, number, rank, state):
    command = [sys.executable, "-c", PROGRAM, str(folder.path), str(rank)]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    process = subprocess.Popen(command, env=environment, **pipes)
    try:
        assert process.stdout.readline() == "ready\n"
        process.send_signal(number)
        _, err = process.communicate(timeout=LIMIT_S)
    finally:
        process.kill()
        process.wait()
    assert process.returncode == EXIT_STOPPED
    assert states(folder) == {"a": ("done", 0), "b": (state, 0), "c": ("running", 0)}
    assert ("stopped by a signal" in err) == (rank == 0)


def test_handlers_are_those_of_before_when_it_is_over(folder):
    before = signal.getsignal(signal.SIGTERM)
    with closing_on_signals(lambda: close_runs(folder, 0, 2)):
        assert signal.getsignal(signal.SIGTERM) is not before
    assert signal.getsignal(signal.SIGTERM) is before
    assert (signal.set_wakeup_fd(-1), states(folder)["b"]) == (-1, ("running", 0))

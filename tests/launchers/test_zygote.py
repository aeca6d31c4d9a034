"""Workers are forked by a zygote: their place, their end, and that nothing is left of them."""

import json
import os
import signal
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from launchers import processes
from launchers.base import LaunchSpec
from launchers.processes import end
from launchers.zygote import Zygote, ZygoteError, Zygotes
from tests.waiting import LIMIT_S, is_running, left_of, still_there

linux = pytest.mark.skipif(sys.platform != "linux", reason="zygotes are Linux's")
pytestmark = [pytest.mark.processes, linux]

MODULE = "tests.launchers.forked_worker"
ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def zygote():
    one = Zygote([MODULE])
    yield one
    one.close()


@pytest.fixture
def launch(zygote, tmp_path):
    """Starts two ranks that do what they are told; at the end, none is left."""
    started = []

    def start(what, by=zygote, **variables):
        spec = LaunchSpec(2, 1, MODULE, [what, str(tmp_path)])
        started.append(by.launch(spec, {**os.environ, **variables}, tmp_path / "log"))
        return started[-1]

    yield start
    assert not left_of([pid for one in started for pid in (one.pid, *one.rank_pids)])


def ranks_of(running):
    """Their pids, once they are all there."""
    still_there(lambda: [] if running.poll() is not None or running.rank_pids else [running])
    return running.rank_pids


def facts(tmp_path):
    return [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(2)]


def test_ranks_of_two_launches_are_fresh_processes_in_the_launchs_environment(launch, tmp_path, zygote):
    seen = []
    for value in ("one", "two"):
        running = launch("facts", OF_THE_LAUNCH=value)
        assert running.wait(LIMIT_S) == 0, (tmp_path / "log").read_text()
        assert running.rank_codes == {0: 0, 1: 0}
        seen += facts(tmp_path)
        assert [one["pid"] for one in seen[-2:]] == running.rank_pids
    assert [one["variable"] for one in seen] == ["one", "one", "two", "two"]
    assert len({one["pid"] for one in seen} | {zygote.pid}) == 5
    assert ({one["sum_of_ranks"] for one in seen}, {one["threads"] for one in seen}) == ({1}, {1})
    assert (len({one["hash"] for one in seen}), seen[0]["words"]) == (1, [MODULE, "facts", str(tmp_path)])
    log = (tmp_path / "log").read_text()
    assert all(log.count(f"{stream} of {rank}\n") == 2 for stream in ("out", "err") for rank in (0, 1))


def test_each_repeat_has_a_zygote_of_its_own_and_one_that_has_forked_counts(tmp_path, monkeypatch):
    started, hashes = [], []

    class Counted(Zygote):
        def __init__(self, *arguments):
            super().__init__(*arguments)
            started.append(self.pid)

    monkeypatch.setattr("launchers.zygote.Zygote", Counted)
    with closing(Zygotes([MODULE])) as zygotes:
        spec = LaunchSpec(2, 1, MODULE, ["facts", str(tmp_path)])
        for repeat in (0, 0, 1):
            zygotes.begin(2)  # starts none for the second launch: it would import while that one measures
            assert len(started) == 2
            assert zygotes.launch(repeat, spec, os.environ, tmp_path / "log").wait(LIMIT_S) == 0
            hashes.append(facts(tmp_path)[0]["hash"])
    assert not [pid for pid in started if is_running(pid)]
    assert hashes[0] == hashes[1] != hashes[2]


@pytest.mark.parametrize(("what", "code", "said"), [
    ("fails", 3, "ended with exit code 3"), ("raises", 1, "ended with exit code 1"),
    ("dies", 128 + signal.SIGKILL, "was ended by SIGKILL"),
])  # fmt: skip
def test_rank_that_fails_ends_the_launch_with_its_code(launch, tmp_path, what, code, said):
    running = launch(what)
    assert running.wait(LIMIT_S) == code
    # The other rank is told to end, and killed where a loaded machine does not let it hear in time.
    assert running.killed is None
    assert running.rank_codes[0] in (-signal.SIGTERM, -signal.SIGKILL)
    assert running.rank_codes[1] == (-signal.SIGKILL if what == "dies" else code)
    log = (tmp_path / "log").read_text()
    assert f"rank 1 (pid {running.rank_pids[1]}) {said}" in log
    assert ("ValueError: planted" in log) == (what == "raises")


@pytest.mark.parametrize("stopped", [False, True], ids=["ignored", "stopped"])
def test_launch_is_ended_on_request_even_where_ranks_do_not_hear_it(launch, monkeypatch, stopped):
    monkeypatch.setattr(processes, "GRACE_S", 0.5)
    running = launch("deaf")
    for pid in ranks_of(running):
        os.kill(pid, signal.SIGSTOP if stopped else 0)
    end(running)
    assert running.returncode is not None


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_killed_leader_is_named_leaves_no_rank_and_the_zygote_goes_on(launch, number):
    running = launch("waits")
    ranks_of(running)
    os.kill(running.pid, number)
    assert running.wait(LIMIT_S) == (-number if number == signal.SIGKILL else 128 + number)
    assert running.killed == f"the leader of the launch (pid {running.pid}) was ended by {number.name}"
    assert launch("facts").wait(LIMIT_S) == 0


def test_killed_zygote_is_named_ends_its_launch_and_is_replaced(tmp_path):
    zygotes = Zygotes([MODULE])
    zygotes.begin(2)  # both import at once
    try:
        running = zygotes.launch(0, LaunchSpec(2, 1, MODULE, ["waits", ""]), os.environ, tmp_path / "log")
        ranks = ranks_of(running)
        os.kill(running._zygote.pid, signal.SIGKILL)
        assert running.wait(LIMIT_S) != 0
        assert f"(pid {running._zygote.pid}) was ended by SIGKILL" in running.killed
        assert "the zygote" in running.killed
        assert not left_of((running.pid, *ranks))
        spec = LaunchSpec(2, 1, MODULE, ["facts", str(tmp_path)])
        assert zygotes.launch(0, spec, os.environ, tmp_path / "log").wait(LIMIT_S) == 0
    finally:
        zygotes.close()


def test_all_end_when_the_command_is_killed(tmp_path):
    starter = (
        "import os, sys, time\n"
        "from pathlib import Path\n"
        "from launchers.base import LaunchSpec\n"
        "from launchers.zygote import Zygote\n"
        f"zygote = Zygote([{MODULE!r}])\n"
        f"spec = LaunchSpec(2, 1, {MODULE!r}, ['deaf', ''])\n"
        f"running = zygote.launch(spec, os.environ, Path('{tmp_path}/log'))\n"
        "while not running.rank_pids:\n"
        "    running.poll()\n"
        "print(zygote.pid, running.pid, *running.rank_pids, flush=True)\n"
        "time.sleep(600)\n"
    )
    command = subprocess.Popen([sys.executable, "-c", starter], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    pids = [int(pid) for pid in command.stdout.readline().split()]
    command.kill()
    command.communicate()
    assert len(pids) == 4
    assert not left_of(pids)


def test_module_that_cannot_be_imported_is_named(tmp_path):
    zygote = Zygote(["no_such_module"])
    with pytest.raises(ZygoteError, match="No module named 'no_such_module'; --launcher torchrun"):
        zygote.launch(LaunchSpec(1, 1, "m", []), os.environ, tmp_path / "log")


THREAD = "import threading, time\nthreading.Thread(target=time.sleep, args=(600,), daemon=True).start()\n"
CUDA = "import torch\ntorch.cuda.is_initialized = lambda: True\n"
OPEN_GPU = """
import sys
sys.modules["scaling.runtime.zygote"].NVIDIA_DEVICES = __file__
opened = open(__file__)
"""


@pytest.mark.parametrize(
    ("code", "why"),
    [(THREAD, "has started 1 threads"), (CUDA, "has initialised CUDA"), (OPEN_GPU, "has opened .*unfit.py")],
)
def test_module_after_which_no_fork_is_safe_is_refused(tmp_path, monkeypatch, code, why):
    (tmp_path / "unfit.py").write_text(code)
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")
    zygote = Zygote(["unfit"])
    with pytest.raises(ZygoteError, match=why):
        zygote.launch(LaunchSpec(1, 1, "m", []), os.environ, tmp_path / "log")

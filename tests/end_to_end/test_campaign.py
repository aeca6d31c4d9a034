"""`scaling run --against`: two environments in turns, in real processes, with planted differences."""

import json
import os
import signal
import subprocess
import sysconfig
import venv

import pytest

from scaling.store import ResultsFolder
from tests.end_to_end.conftest import ended_well
from tests.end_to_end.test_run import write_study
from tests.waiting import LIMIT_S

pytestmark = pytest.mark.processes

MODULE = """
import os, time
from dataclasses import dataclass
from scaling.aggregators.native import AllReduce
{delay}

@dataclass(frozen=True)
class Delayed(AllReduce):
    name = "delayed"

    def aggregate(self, state, gradient, phase=None):
        if (needed := os.environ.get("NEEDED")) and not os.path.exists(needed):
            raise RuntimeError(f"there is no {{needed}}")
        print("delay:", DELAY_S)
        time.sleep(DELAY_S)
        return super().aggregate(state, gradient, phase)
"""
# Both delays are well above what other processes on the machine add.
OF_THE_VENV = """
try:
    from only_in_the_venv import DELAY_S
except ImportError:
    DELAY_S = 0.2
"""


@pytest.fixture
def code(scaling):
    """Writes the aggregator's module where the command runs."""

    def write(delay="DELAY_S = 0.0", **keys):
        scaling.environment["PYTHONPATH"] += f"{os.pathsep}{scaling.folder}"
        (scaling.folder / "my_delay.py").write_text(MODULE.format(delay=delay))
        write_study(scaling, ["my_delay:Delayed"], (1,), **keys)

    return write


def sides(scaling):
    return [ResultsFolder(scaling.out / side) for side in ("a", "b")]


def states(scaling):
    return [[record.state for record in folder.runs()] for folder in sides(scaling)]


def test_slower_commit_is_found_in_one_campaign(scaling, code):
    def git(*words):
        identity = ["-c", "user.name=a", "-c", "user.email=a@b"]
        subprocess.run(["git", "-C", str(scaling.folder), *identity, *words], check=True, capture_output=True)

    git("init", "--quiet")
    for delay in ("DELAY_S = 0.6", "DELAY_S = 0.1"):
        code(delay, repeats=3)
        git("add", "my_delay.py")
        git("commit", "--quiet", "-m", "a commit")
    done = ended_well(scaling.run_here("--against", "commit:HEAD~1"))
    assert "Of 1 timed cells of B: 1 slower." in done.stdout
    assert "--against: this environment against commit:" in " ".join(done.stdout.split())
    assert " in 6 launches: start-up " in done.stdout  # of both environments
    assert len({record.launch["campaign"] for folder in sides(scaling) for record in folder.runs()}) == 1
    began = sorted(
        (json.loads(path.read_text())["launch"]["started_at"], path.parts[-5], path.parts[-2])
        for path in scaling.out.glob("*/runs/*/*/run.json")
    )
    assert [{repeat for _, _, repeat in began[at : at + 2]} for at in (0, 2, 4)] == [{"0"}, {"1"}, {"2"}]
    again = scaling.run_here("--against", "commit:HEAD")
    assert (again.returncode, "use another --out" in again.stderr) == (2, True)


def test_pair_that_ctrl_c_cut_in_two_is_measured_again_in_both_environments(scaling, code, tmp_path):
    code(OF_THE_VENV, iterations=10)
    venv.create(tmp_path / "venv", with_pip=False, symlinks=True)
    (packages,) = (tmp_path / "venv").glob("lib/*/site-packages")
    (packages / "these.pth").write_text(f"{sysconfig.get_path('purelib')}\n")
    (packages / "only_in_the_venv.py").write_text("DELAY_S = 0.4\n")
    process = scaling.start("--against", f"venv:{tmp_path / 'venv'}")
    scaling.wait(lambda: sorted(states(scaling)) == [["done"], ["running"]])
    process.send_signal(signal.SIGINT)
    _, stderr = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 130, stderr
    assert sorted(states(scaling)) == [["done"], ["planned"]]
    done = ended_well(scaling.run_here("--against", f"venv:{tmp_path / 'venv'}"))
    assert "1 runs were done in one environment alone and are measured again in both" in done.stderr
    assert "not resolved (one launch)" in done.stdout
    assert states(scaling) == [["done"], ["done"]]
    assert list(scaling.out.glob("*/runs/*/0/attempt-1"))
    logs = [sorted((scaling.out / side / "launches").glob("*.log")) for side in "ab"]
    said, of_the_venv = ["".join(log.read_text() for log in of_side) for of_side in logs]
    assert of_the_venv.startswith(f"$ env -u PYTHONHOME VIRTUAL_ENV={tmp_path / 'venv'}")
    assert "delay: 0.2" in said
    assert "delay: 0.4" in of_the_venv


def test_failed_run_is_tried_again_with_its_partner(scaling, code, tmp_path):
    code()
    needed = tmp_path / "needed"
    against = ("--against", f"env:NEEDED={needed}")
    first = scaling.run_here(*against)
    assert (first.returncode, states(scaling)) == (1, [["done"], ["failed"]])
    assert f"there is no {needed}" in first.stderr
    os.mkdir(needed)
    ended_well(scaling.run_here(*against, "--retry-failed"))
    assert (states(scaling), len(list(scaling.out.glob("a/runs/*/0/attempt-1")))) == ([["done"], ["done"]], 1)


def test_environment_that_cannot_run_the_study_is_named_before_anything_is_measured(scaling, code, tmp_path):
    code()
    other = tmp_path / "other"
    (other / "scaling").mkdir(parents=True)
    (other / "scaling" / "__init__.py").write_text("")
    done = scaling.run_here("--against", f"checkout:{other}")
    assert (done.returncode, f"checkout:{other} cannot run the study: " in done.stderr) == (2, True)
    assert not list(scaling.out.glob("*/runs/*"))

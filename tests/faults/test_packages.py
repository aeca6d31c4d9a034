"""Packages that are missing, broken or shadowed by files of the working folder, and what is said of them."""

import os
import shlex
import subprocess
import sys
from contextlib import closing
from subprocess import CompletedProcess

import pytest
import yaml

from launchers.base import LaunchSpec
from launchers.zygote import Zygote
from tests.faults.commands import command_in, line_with, study_of, worker
from tests.ranks import free_port
from tests.waiting import LIMIT_S

pytestmark = pytest.mark.processes

MISSING = """
import sys

class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "{package}":
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Missing())
"""
LIBRARY = "libof_another_version.so.7"
BROKEN = {
    "cannot import": f'raise ImportError("{LIBRARY}: cannot open shared object file")\n',
    "lacks a library": f'import ctypes\nctypes.CDLL("{LIBRARY}")\n',
}


def installs(package, *options):
    return f"; `{shlex.join([sys.executable, '-m', 'pip', 'install', *options, package])}` installs it"


@pytest.fixture
def without(tmp_path):
    """without(package, how): a command whose Python has no such package, or one that is broken so."""

    def make(package, how):
        own = tmp_path / how
        (own / package).mkdir(parents=True)
        if how == "missing":
            (own / "sitecustomize.py").write_text(MISSING.format(package=package))
        else:
            (own / package / "__init__.py").write_text(BROKEN[how])
        command = command_in(tmp_path)
        path = os.pathsep.join([str(own), command.environment["PYTHONPATH"]])
        command.environment["PYTHONPATH"] = path
        command.study.write_text(yaml.safe_dump(study_of(world_sizes=[1])))
        return command

    return make


def said_of(package, how, outcome):
    """The one message, which names the package and what installs it."""
    assert outcome.returncode == 2
    assert "Traceback" not in outcome.stderr
    if how == "missing":
        return line_with(outcome.stderr, f"error: {package} is needed", installs(package))
    words = f"error: {package} is installed and cannot be loaded: {LIBRARY}: cannot open"
    return line_with(outcome.stderr, words, f"{installs(package, '--force-reinstall')} anew")


@pytest.mark.parametrize("how", ["missing", *BROKEN])
def test_torch_that_is_missing_or_broken(without, how, found):
    line = said_of("torch", how, without("torch", how).run())
    found(line.replace(sys.executable, "python"), "nothing: nothing has begun")


@pytest.mark.parametrize("how", ["missing", *BROKEN])
def test_torch_that_is_missing_or_broken_for_a_worker_that_is_started_by_hand(without, how):
    one = worker(without("torch", how), "0", free_port(), WORLD_SIZE="1", LOCAL_WORLD_SIZE="1")
    said = one.communicate(timeout=LIMIT_S)[1]
    assert said.count("\n") == 1
    said_of("torch", how, CompletedProcess(one.args, one.returncode, "", said))


def test_matplotlib_that_is_missing_or_broken(without, found):
    outcome = (command := without("matplotlib", "missing")).run()
    line = said_of("matplotlib", "missing", outcome)
    assert set(command.states().values()) == {"done"}
    assert f"what was measured is in {command.out}; `scaling report" in outcome.stderr
    for how in BROKEN:
        words = [sys.executable, "-m", "scaling", "report", str(command.out)]
        environment = without("matplotlib", how).environment
        said_of("matplotlib", how, subprocess.run(words, env=environment, capture_output=True, text=True))
    found(line.replace(sys.executable, "python"), "nothing: what was measured is there, the report is not")


SHADOWS = ["scaling", "launchers", "numpy", "torch", "yaml", "sklearn"]
SHADOWS += ["statistics", "types", "json", "os", "random"]
OWN = "import numpy, statistics, scaling.errors\ndef main(words):\n    print('ran', words)\n"


@pytest.fixture
def shadowed(tmp_path, monkeypatch):
    """A working folder with the user's own module, and one of each name, which says when it is imported."""
    if sys.platform != "linux":
        pytest.skip("zygotes are Linux's")
    for name in SHADOWS:
        (tmp_path / f"{name}.py").write_text(f"print('imported {name}')\nraise RuntimeError('{name}')\n")
    (tmp_path / "users_own.py").write_text(OWN)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PYTHONPATH", raising=False)
    return tmp_path


def test_forked_workers_import_what_is_installed_and_the_users_own_module(shadowed):
    log = shadowed / "log"
    with closing(Zygote(["scaling.worker", "users_own"])) as zygote:
        launch = zygote.launch(LaunchSpec(1, 1, "users_own", ["x"]), os.environ, log)
        assert launch.wait(LIMIT_S) == 0, log.read_text()
    assert log.read_text() == "ran ['x']\n"


@pytest.mark.parametrize("module", ["scaling", "scaling.worker"])
def test_program_imports_what_is_installed(shadowed, module):
    for name in ("scaling", "launchers", "types", "os"):  # Python itself imports these before any of ours
        (shadowed / f"{name}.py").unlink()
    command = [sys.executable, "-m", module, "--help"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=LIMIT_S)
    assert (done.returncode, done.stderr) == (0, "")
    assert "imported" not in done.stdout


def test_reports_are_told_from_what_else_is_printed(shadowed, monkeypatch):
    with closing(Zygote(["users_own"])) as zygote:
        zygote.wait_until_imported()
        zygote._heard = b'warning: {x}\n\n{"rank": 0, "code": 0}\n'
        assert zygote.hear(1.0) == {"rank": 0, "code": 0}

"""A package that is missing, or cannot be loaded: a message with the command that installs it."""

import os
import shlex
import subprocess
import sys
from subprocess import CompletedProcess

import pytest
import yaml

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

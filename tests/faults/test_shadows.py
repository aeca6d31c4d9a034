"""Files of the working folder that are called as modules are: they are not imported in their place."""

import os
import subprocess
import sys
from contextlib import closing

import pytest

from launchers.base import LaunchSpec
from launchers.zygote import Zygote
from tests.waiting import LIMIT_S

not_linux = pytest.mark.skipif(sys.platform != "linux", reason="zygotes are Linux's")
pytestmark = [pytest.mark.processes, not_linux]

SHADOWS = ["scaling", "launchers", "numpy", "torch", "yaml", "sklearn"]
SHADOWS += ["statistics", "types", "json", "os", "random"]
OWN = "import numpy, statistics, scaling.errors\ndef main(words):\n    print('ran', words)\n"


@pytest.fixture
def shadowed(tmp_path, monkeypatch):
    """A working folder with the user's own module, and one of each name, which says when it is imported."""
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

"""Slurm itself takes every stored batch script."""

import subprocess
from pathlib import Path

import pytest

from tests.waiting import LIMIT_S

pytestmark = pytest.mark.slurm

ROOT = Path(__file__).parents[2]
SCRIPTS = sorted([*ROOT.glob("slurm/*.sbatch"), *ROOT.glob("tests/launchers/batch_scripts/*.sbatch")])


@pytest.mark.parametrize("path", SCRIPTS, ids=[path.stem for path in SCRIPTS])
def test_script_could_be_run_as_it_stands(cluster, path):
    told = {"capture_output": True, "text": True, "timeout": LIMIT_S}
    done = subprocess.run(["sbatch", "--test-only", str(path)], env=cluster.environment, **told)
    assert done.returncode == 0, done.stderr
    assert "to start at" in done.stderr


def test_there_are_eight():
    assert len(SCRIPTS) == 8

"""The commands of docs/tutorial/first-study.md, run as they stand."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.processes

ROOT = Path(__file__).parents[2]
TUTORIAL = (ROOT / "docs" / "tutorial" / "first-study.md").read_text()
SCALING = f'scaling() {{ "{sys.executable}" -m scaling "$@"; }}\n'

UNDECIDED = {"recommend": {0, 3}, "compare": {0, 3}}
"""Verbs whose answer depends on how busy the machine is."""


def test_every_command_of_the_tutorial_works(tmp_path):
    (study,) = re.findall(r"```yaml\n(.*?)```", TUTORIAL, re.DOTALL)
    (tmp_path / "tutorial.yaml").write_text(study)
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "MPLBACKEND": "Agg"}
    blocks = re.findall(r"```console\n(.*?)```", TUTORIAL, re.DOTALL)
    commands = [line.removeprefix("$ ") for block in blocks for line in block.splitlines()]
    assert len(commands) > 10
    for command in commands:
        words = ["bash", "-c", SCALING + command]
        ended = subprocess.run(words, cwd=tmp_path, env=environment, capture_output=True, text=True)
        allowed = UNDECIDED.get(command.split()[1], {0})
        assert ended.returncode in allowed, f"{command}\n{ended.stdout}\n{ended.stderr}"
        assert "Traceback" not in ended.stderr
        if not re.search(r" > [\w.]+$", command):
            assert ended.stdout.strip(), command
    for made in ("results/tutorial/report.html", "trace.json", "samples.csv"):
        assert (tmp_path / made).stat().st_size > 1000, made

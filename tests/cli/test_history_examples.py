"""The cron line and the CI recipe of `scaling history`, run as the how-to has them."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from tests.cli.test_history import TINY
from tests.documented import example, replaced
from tests.waiting import LIMIT_S

pytestmark = pytest.mark.programs

PROGRAMS = Path(sys.executable).parent


def run(command, folder, **environment):
    return subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=LIMIT_S
    )


def test_cron_line_is_silent_until_something_is_wrong(tmp_path):
    """With what cron gives a command: /bin/sh, few variables, the home folder."""
    mail = tmp_path / "mail"
    mail.write_text(f'#!/bin/sh\necho "$@" > {tmp_path}/subject\ncat > {tmp_path}/message\n')
    mail.chmod(0o755)
    (tmp_path / "srv").mkdir()
    (tmp_path / "tiny.yaml").write_text(TINY)
    line = example("how-to/watch-a-machine.md", "30 4 * * *").strip()
    words = {"/srv/": f"{tmp_path}/srv/", "/opt/scaling/bin": PROGRAMS, "mail -s": f"{mail} -s"}
    command = replaced(line.removeprefix("30 4 * * *"), **words)
    cron = {"HOME": str(tmp_path), "LOGNAME": "root", "PATH": "/usr/bin:/bin", "SHELL": "/bin/sh"}
    begun = run([PROGRAMS / "scaling", "history", "srv/watch", "tiny.yaml"], tmp_path, **cron)
    assert begun.returncode == 0, begun.stderr
    done = run(["/bin/sh", "-c", command], tmp_path, **cron)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert "**2 campaigns so far" in (tmp_path / "srv/watch.md").read_text()
    assert not (tmp_path / "message").exists()
    lines = (tmp_path / "srv/watch/history.jsonl").read_text().splitlines()
    (tmp_path / "srv/watch/history.jsonl").write_text(f"{lines[1]}\n{lines[0]}\n")
    run(["/bin/sh", "-c", command], tmp_path, **cron)
    assert "line 1: 0002 in place of 0001" in (tmp_path / "message").read_text()


def test_ci_recipe_adds_a_campaign_of_each_commit(tmp_path):
    """As GitHub's runner does: `bash -e` on the step's script in a clone."""
    job = yaml.safe_load(example("how-to/ci-gate.md", "speed.yml"))["jobs"]["speed"]
    script = replaced(job["steps"][-1]["run"], **{"/var/lib/speed": tmp_path / "speed"})
    assert job["steps"][0]["with"]["fetch-depth"] == 0, "--bisect needs all commits"
    project, clone = tmp_path / "project", tmp_path / "clone"
    git = ["git", "-c", "user.name=a", "-c", "user.email=a@b"]
    run([*git, "init", "-q", project], tmp_path, **os.environ)
    (project / "mine.yaml").write_text(TINY)
    summary, commits = tmp_path / "summary.md", []
    runner = {**os.environ, "GITHUB_STEP_SUMMARY": str(summary), "PATH": f"{PROGRAMS}:{os.environ['PATH']}"}
    for message in ("first", "second"):
        run([*git, "add", "-A"], project, **os.environ)
        run([*git, "commit", "-q", "--allow-empty", "-m", message], project, **os.environ)
        commits.append(run([*git, "rev-parse", "HEAD"], project, **os.environ).stdout.strip())
        run([*git, "clone", "-q", project, clone / message], tmp_path, **os.environ)
        done = run(["bash", "-e", "-c", script], clone / message, **runner)
        assert done.returncode == 0, done.stderr
    told = [json.loads(line) for line in (tmp_path / "speed/history.jsonl").read_text().splitlines()]
    assert [one["commit"] for one in told] == commits
    assert summary.read_text().count(" so far: an alarm needs 6.**") == 2

"""`scaling history`: what is said of campaigns, exit codes, a real one, a slow commit, the how-to's uses."""

import json
import math
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import yaml
from typer.testing import CliRunner

from scaling.analysis.history import SLOWDOWNS, Watch, campaign_of
from scaling.cli import app
from scaling.report.history import sentences
from scaling.store.history import HistoryFolder, PastCampaign
from tests.documented import example, replaced
from tests.made_studies import StudyFolder, epoch
from tests.ranks import RANKS_PATH, kept_zygote
from tests.waiting import LIMIT_S

ROOT = Path(__file__).parents[2]
SLOW_FROM, COUNT = 12, 16


def add_campaign(history, number, factor, started):
    """Two cells of three launches, each with the noise of its campaign."""
    random = np.random.default_rng(number)
    name = f"{number + 1:04d}"
    made = StudyFolder(history.path / name)
    shift = factor * math.exp(random.normal(0, 0.01))
    for world_size in (1, 2):
        steps = [[shift * 0.02 * math.exp(random.normal(0, 0.004)) for _ in range(8)] for _ in range(3)]
        made.add_steps(steps, world_size=world_size, aggregator="none" if world_size == 1 else "all_reduce")
    if number >= SLOW_FROM:
        made.folder.write_environment(
            {"cpu": {"model": "A", "usable_cores": 2}, "gpus": [], "versions": {"torch": "new"}}
        )
    campaign = campaign_of(made.folder, name, "a" * 40 if number < SLOW_FROM else "b" * 40)
    history.add(campaign.model_copy(update={"started": started}))


def histories(path, *, slow):
    history = HistoryFolder(path)
    for number in range(COUNT):
        factor = 1.08 if slow and number >= SLOW_FROM else 1.0
        add_campaign(history, number, factor, f"2026-01-{number + 1:02d}T04:30:00+00:00")
    return path


@pytest.fixture(scope="module")
def slow(tmp_path_factory):
    return histories(tmp_path_factory.mktemp("slow"), slow=True)


def said_by(*words):
    ended = CliRunner().invoke(app, ["history", *map(str, words)])
    return ended.exit_code, " ".join(ended.stdout.split())


class TestAlarm:
    def test_says_how_much_since_when_and_what_changed_with_it(self, slow):
        code, said = said_by(slow, "--no-run")
        assert code == 3
        assert said.startswith("Slower since 0013 of 2026-01-13 04:30: all times take ")
        assert said.endswith("--accept 0013.")
        assert "versions: nothing against {'torch': 'new'}" in said
        assert "Commits: aaaaaaaaaaaa..bbbbbbbbbbbb; --bisect" in said
        low, high = (float(end) for end in re.search(r" \[(\S+)%, (\S+)%\] longer", said).groups())
        assert low < 8 < high < 12, "what was planted"
        page = (slow / "history.html").read_text()
        assert "<svg" in page
        assert "Slower since 0013" in page
        assert page.count("<tr>") == COUNT + 1
        ended = CliRunner().invoke(app, ["history", str(slow), "--no-run", "--markdown"])
        assert ended.exit_code == 3
        head, _, *others = ended.stdout.splitlines()
        assert (head.startswith("**Slower since 0013 of "), head.endswith("**")) == (True, True)
        assert [line[:2] for line in others] == ["- "] * 3

    def test_accepted_the_history_goes_on_from_the_change(self, tmp_path):
        path = histories(tmp_path / "h", slow=True)
        for words in (["--accept", "0013"], ["--no-run"]):
            assert said_by(path, *words) == (0, "4 campaigns so far: an alarm needs 6.")


def test_without_a_change_the_code_is_0_and_what_would_be_found_is_said(tmp_path):
    code, said = said_by(histories(tmp_path / "h", slow=False), "--no-run")
    assert code == 0
    assert said.startswith("No change in 16 campaigns of 2 times.")
    assert "seen by now: 3% in the last 4 campaigns, 5% in the last 3 campaigns, 10% in the last " in said
    assert said.endswith("False alarms: on average at most one in 100 campaigns.")


@pytest.mark.parametrize(("seen", "expected"), [
    ((5, 3, 2), "3% in the last 5 campaigns, 5% in the last 3 campaigns, 10% in the last 2 campaigns."),
    ((None, 3, 2), "3% not yet, 5% in the last 3 campaigns, 10% in the last 2 campaigns."),
    ((None, None, None), "3% not yet, 5% not yet, 10% not yet."),
])  # fmt: skip
def test_what_would_have_been_seen_is_one_sentence(seen, expected):
    facts = {"started": "2026-01-01T", "seconds": {"a": 1.0}, "hosts": [], "commit": None}
    campaigns = [PastCampaign(name=f"{number:04d}", **facts) for number in range(1, 13)]
    of_slowdown = dict(zip(SLOWDOWNS, seen, strict=True))
    said = Watch(campaigns, ["a"], np.zeros((1, 12)), 100, None, None, [], {}, of_slowdown, [])
    assert sentences(said, HistoryFolder(Path())) == [
        f"No change in 12 campaigns of 1 times. A slowdown would have been seen by now: {expected} "
        "False alarms: on average at most one in 100 campaigns."
    ]


@pytest.mark.parametrize(("slow_of", "named"), [
    ([("n1 n2", []), ("n1 n3", ["n3"]), ("n2 n3", ["n3"]), ("n1 n4", ["n1", "n4"]), ("n2 n4", [])],
     "n3 is slow, in 2 of 2 campaigns."),
    ([("n1", ["rank 3"]), ("n1", ["rank 3"]), ("n1", [])], "rank 3 is slow, in 2 of 3 campaigns."),
])  # fmt: skip
def test_places_that_are_slow_in_most_of_their_campaigns_are_named(slow_of, named):
    facts = {"name": "0001", "started": "2026-01-01T", "seconds": {"a": 1.0}, "commit": None}
    campaigns = [PastCampaign(hosts=hosts.split(), slow=slow, **facts) for hosts, slow in slow_of]
    said = Watch(campaigns, ["a"], np.zeros((1, len(campaigns))), 100, None, None, [], {}, {}, [])
    assert sentences(said, HistoryFolder(Path()))[1:] == [f"By the ranks' own times {named}"]


def test_a_training_is_watched_by_its_seconds_and_other_kinds_are_not(tmp_path):
    made = StudyFolder(tmp_path)
    runs = [[[epoch(1, 0.5 * factor, 0.9, 0.5), epoch(2, factor, 0.5, 0.9)]] for factor in (1, 4)]
    cell_id = made.add(runs, kind="convergence", epochs=2, target_accuracy=0.9, aggregator="one_bit")
    assert campaign_of(made.folder, "0001").seconds == {
        f"training of mlp, one_bit@1 [{cell_id[:6]}]": pytest.approx(2)
    }


def test_accepting_an_empty_name_is_refused_and_measures_nothing(tmp_path):
    path = histories(tmp_path / "h", slow=False)
    before = sorted(path.iterdir())
    ended = CliRunner().invoke(app, ["history", str(path), "--accept", ""])
    assert "--accept names ''; allowed: 0001 to 0016" in str(ended.exception)
    assert [one for one in sorted(path.iterdir()) if one.name != ".lock"] == before


@pytest.mark.parametrize("name", ["", "none"])
def test_an_empty_folder_is_refused_and_reading_makes_none(tmp_path, name):
    ended = CliRunner().invoke(app, ["history", str(tmp_path / name), "--no-run"])
    assert "has no campaign" in str(ended.exception)
    assert not (tmp_path / "none").exists()


TINY = """
name: tiny
world_sizes: [1, 2]
parts:
  - kind: iteration
    device: cpu
    scaling: strong
    workloads: [{model: mlp, dataset: digits, global_batch: 32}]
    aggregators: [none, all_reduce]
    repeats: 1
    warmup: 1
    iterations: 3
    precision_goal: null
    profiled_iterations: 1
    noise_pair: false
"""


@pytest.mark.processes
def test_each_call_measures_one_campaign_of_the_first_ones_study(tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", RANKS_PATH)
    monkeypatch.setattr("launchers.zygote.Zygote", kept_zygote)
    (tmp_path / "tiny.yaml").write_text(TINY)
    path = tmp_path / "h"
    code, said = said_by(path, tmp_path / "tiny.yaml")
    assert (code, said) == (0, "1 campaign so far: an alarm needs 6.")
    monkeypatch.setattr(
        sys.modules["scaling.cli.run"], "load_text", lambda: "other programs take 85% of the cores"
    )
    (tmp_path / "tiny.yaml").write_text(TINY.replace("[1, 2]", "[2]"))
    again = CliRunner().invoke(app, ["history", str(path), str(tmp_path / "tiny.yaml")])
    assert again.exit_code == 0
    assert again.stdout.startswith("2 campaigns so far: an alarm needs 6.\n")
    first_study = path / "0001" / "study.yaml"
    assert f"goes on with {first_study}; a {tmp_path / 'tiny.yaml'} that changed since begins" in again.stderr
    assert "warning: other programs take 85% of the cores" in again.stderr
    first, second = HistoryFolder(path).campaigns()
    assert first.seconds.keys() == second.seconds.keys()
    assert len(first.seconds) == 4
    assert first.hosts == second.hosts
    (tmp_path / "other.yaml").write_text(TINY.replace("name: tiny", "name: other"))
    ended = CliRunner().invoke(app, ["history", str(path), str(tmp_path / "other.yaml")])
    assert "is a history of the study in" in str(ended.exception)


AGGREGATOR = """
import time
from dataclasses import dataclass

from scaling.aggregators.native import AllReduce


@dataclass(frozen=True)
class Mine(AllReduce):
    name = "mine"

    def aggregate(self, state, gradient, *phase):
        time.sleep({wait_s})
        return super().aggregate(state, gradient, *phase)
"""


def committed(folder, wait_s, message):
    (folder / "slow_commit_aggregator.py").write_text(AGGREGATOR.format(wait_s=wait_s))
    git = ["git", "-c", "user.name=a", "-c", "user.email=a@b"]
    subprocess.run([*git, "add", "-A"], cwd=folder, check=True)
    subprocess.run([*git, "commit", "-q", "--allow-empty", "-m", message], cwd=folder, check=True)
    made = subprocess.run(
        ["git", "rev-parse", "HEAD"], cwd=folder, check=True, capture_output=True, text=True
    )
    return made.stdout.strip()


@pytest.mark.programs
def test_bisect_names_the_slow_commit_of_a_repository(tmp_path, monkeypatch):
    """One campaign is measured; the others are its copies, with the times of a machine that got slower."""
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)
    study = TINY.replace("[none, all_reduce]", "['slow_commit_aggregator:Mine']").replace("[1, 2]", "[2]")
    (tmp_path / "tiny.yaml").write_text(study)
    (tmp_path / ".gitignore").write_text("h/\n__pycache__/\n")
    fast = committed(tmp_path, 0.0, "fast")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    command = [sys.executable, "-m", "scaling", "history", "h"]
    subprocess.run([*command, "tiny.yaml"], check=True)
    slow, after = committed(tmp_path, 0.2, "it waits"), committed(tmp_path, 0.2, "nothing")
    history = HistoryFolder(tmp_path / "h")
    (first,) = history.campaigns()
    (name,) = first.seconds
    for number in range(2, 17):
        shutil.copytree(tmp_path / "h" / "0001", tmp_path / "h" / f"{number:04d}")
        is_slow = number > SLOW_FROM
        seconds = {name: (0.2 if is_slow else 0.01) * (1 + number / 1000 * (-1) ** number)}
        commit = after if is_slow else fast
        facts = {"name": f"{number:04d}", "seconds": seconds, "commit": commit}
        history.add(first.model_copy(update=facts))
    ended = subprocess.run([*command, "--bisect"], check=False, capture_output=True, text=True)
    assert ended.returncode == 3, ended.stderr
    assert f"first slow commit: {slow[:7]} it waits" in ended.stdout


def test_the_committed_history_names_the_campaign_from_which_a_core_was_busy(tmp_path):
    shutil.copytree(ROOT / "benchmarks/results/history-cpu", tmp_path / "h")
    code, said = said_by(tmp_path / "h", "--no-run")
    assert code == 3
    assert "since 0013" in said
    assert "workers wait for a core (other programs): 1% against 41%" in said


PROGRAMS = Path(sys.executable).parent


def run(command, folder, **environment):
    return subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=LIMIT_S
    )


@pytest.mark.programs
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


@pytest.mark.programs
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

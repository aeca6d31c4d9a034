"""The Slurm examples of the how-to of `scaling history`, run as they stand there."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from tests.documented import example, replaced
from tests.slurm.conftest import Study, running
from tests.waiting import LIMIT_S

pytestmark = [pytest.mark.processes, pytest.mark.slurm]

PAGE = "how-to/watch-a-machine.md"
NODES = ("127.0.0.1", "127.0.0.2", "127.0.0.3")
SLOW, ONE_GPU = NODES[2], "--gpus-per-node=1"


@pytest.fixture(scope="module")
def nodes():
    """A cluster of nodes with host names of their own."""
    with running(nodes=NODES, gpus=1, named=True) as made:
        yield made


@pytest.fixture
def study(nodes, tmp_path):
    made = Study(nodes, tmp_path)
    yield made
    made.end()


@pytest.fixture
def typed(study):
    """typed(example, **replaced): a script, as a user with `scaling` on the PATH types it."""
    study.write(
        ["all_reduce"],
        kind="iteration",
        workloads=[{"model": "slow_host:slow_there", "dataset": "digits", "global_batch": 64}],
        repeats=1,
        warmup=1,
        iterations=5,
        precision_goal=None,
        profiled_iterations=4,
        noise_pair=False,
    )
    path = os.pathsep.join([str(Path(sys.executable).parent), study.environment["PATH"]])
    environment = {**study.environment, "PATH": path, "SCALING_TEST_SLOW_HOST": SLOW}

    def run(text, *command):
        return subprocess.run(
            ["bash", *command],
            input=text,
            cwd=study.folder,
            env=environment,
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
        )

    return run


def campaigns(folder):
    return [json.loads(line) for line in (folder / "history.jsonl").read_text().splitlines()]


def test_the_slow_node_of_pairs_is_named(study, typed):
    history = f"scaling history {study.folder}/pairs"
    words = {"scaling history /shared/pairs": f"{history} {study.study}", "--gpus-per-node=4": ONE_GPU}
    names = {f"n{number}": node for number, node in enumerate(NODES, start=1)}
    done = typed(replaced(example(PAGE, "--nodelist=$pair"), **words, **names))
    assert done.returncode == 0, done.stderr
    study.jobs += [line.split()[-1] for line in done.stdout.splitlines()]
    for job in study.jobs:
        state = study.cluster.wait_for(job, "COMPLETED", "FAILED")
        assert state == "COMPLETED", study.log(job)
    assert [one["hosts"] for one in campaigns(study.folder / "pairs")] == [
        list(NODES[:2]),
        [NODES[0], SLOW],
        [NODES[1], SLOW],
    ]
    said = study.log(study.jobs[-1])
    assert f"By the ranks' own times {SLOW} is slow, in 2 of 2 campaigns." in " ".join(said.split())
    assert said.count("By the ranks' own times") == 1


def test_the_daily_job_measures_and_submits_the_next(study, typed):
    words = {"/shared/watch": f"{study.folder}/watch {study.study}", "--gpus-per-node=4": ONE_GPU}
    study.study.write_text(yaml.safe_dump({**yaml.safe_load(study.study.read_text()), "world_sizes": [1]}))
    script = replaced(example(PAGE, "#SBATCH --job-name=watch"), **words)
    (study.folder / "watch.sh").write_text(script)
    done = typed("", "-c", "sbatch watch.sh")
    assert done.returncode == 0, done.stderr
    job = done.stdout.split()[-1]
    study.jobs.append(job)
    assert study.cluster.wait_for(job, "COMPLETED", "FAILED") == "COMPLETED", study.log(job)
    assert len(campaigns(study.folder / "watch")) == 1
    (following,) = study.cluster.jobs()
    study.jobs.append(following)
    assert study.cluster.state(following) == "PENDING"
    shown = study.cluster.ask("squeue", "--noheader", "--format=%j %r")
    assert shown == "watch BeginTime"

"""The Slurm examples of the how-to of `scaling history`, run as they stand there."""

import json
import os
import sys
from pathlib import Path

import pytest
import yaml

from tests.cli.test_history import TINY
from tests.documented import example, replaced
from tests.slurm.conftest import Study, running

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
    """typed(script): what a user types with `scaling` on the PATH, which exits with 0; what it prints."""
    tiny = yaml.safe_load(TINY)
    workload = {"model": "slurm_parts:slow_there", "dataset": "digits", "global_batch": 64}
    more = {"workloads": [workload], "aggregators": ["all_reduce"], "profiled_iterations": 4}
    part = {**tiny["parts"][0], **more}
    study.study.write_text(yaml.safe_dump({**tiny, "world_sizes": [2], "parts": [part]}))
    path = os.pathsep.join([str(Path(sys.executable).parent), study.environment["PATH"]])

    def run(script):
        done = study.ended(["bash", "-c", script], PATH=path, SCALING_TEST_SLOW_HOST=SLOW)
        assert done.returncode == 0, done.stderr
        return done.stdout

    return run


def campaigns(folder):
    return [json.loads(line) for line in (folder / "history.jsonl").read_text().splitlines()]


def test_the_slow_node_of_pairs_is_named(study, typed):
    history = f"scaling history {study.folder}/pairs"
    words = {"scaling history /shared/pairs": f"{history} {study.study}", "--gpus-per-node=4": ONE_GPU}
    names = {f"n{number}": node for number, node in enumerate(NODES, start=1)}
    said = typed(replaced(example(PAGE, "--nodelist=$pair"), **words, **names))
    study.jobs += [line.split()[-1] for line in said.splitlines()]
    for job in study.jobs:
        state = study.cluster.wait_for(job, "COMPLETED", "FAILED")
        assert state == "COMPLETED", study.log(job)
    hosts = [one["hosts"] for one in campaigns(study.folder / "pairs")]
    assert hosts == [list(NODES[:2]), [NODES[0], SLOW], [NODES[1], SLOW]]
    said = study.log(study.jobs[-1])
    assert f"By the ranks' own times {SLOW} is slow, in 2 of 2 campaigns." in " ".join(said.split())
    assert said.count("By the ranks' own times") == 1


def test_the_daily_job_measures_and_submits_the_next(study, typed):
    words = {"/shared/watch": f"{study.folder}/watch {study.study}", "--gpus-per-node=4": ONE_GPU}
    study.study.write_text(yaml.safe_dump({**yaml.safe_load(study.study.read_text()), "world_sizes": [1]}))
    script = replaced(example(PAGE, "#SBATCH --job-name=watch"), **words)
    (study.folder / "watch.sh").write_text(script)
    job = typed("sbatch watch.sh").split()[-1]
    study.jobs.append(job)
    assert study.cluster.wait_for(job, "COMPLETED", "FAILED") == "COMPLETED", study.log(job)
    assert len(campaigns(study.folder / "watch")) == 1
    (following,) = study.cluster.jobs()
    study.jobs.append(following)
    assert study.cluster.state(following) == "PENDING"
    shown = study.cluster.ask("squeue", "--noheader", "--format=%j %r")
    assert shown == "watch BeginTime"

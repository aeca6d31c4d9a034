"""The same small study under every launcher: the same cells, columns and bits, the launcher in each row."""

import subprocess
import sys
from pathlib import Path

import pytest

from scaling.analysis import summary_table
from tests.end_to_end.conftest import ended_well
from tests.waiting import LIMIT_S

pytestmark = [pytest.mark.processes, pytest.mark.slurm]

SUBMITTED = {
    "one node": ((1, 2), ["--gpus-per-node", "2"]),
    "array": ((1, 2), ["--gpus-per-node", "2", "--array", "--style", "srun"]),
    "two nodes, torchrun": ((2,), ["--gpus-per-node", "1"]),
    "two nodes, srun": ((2,), ["--gpus-per-node", "1", "--style", "srun"]),
}
LAUNCHERS = {
    "local": ("local", 1), "one node": ("slurm-torchrun", 1), "array": ("slurm-srun", 1),
    "two nodes, torchrun": ("slurm-torchrun", 2), "two nodes, srun": ("slurm-srun", 2),
    "srun by hand": ("srun", 2),
}  # fmt: skip
SRUN = ["srun", "--nodes=2", "--ntasks-per-node=1", "--time=10", "--kill-on-bad-exit=1", sys.executable]

SAME_VALUES = ("study", "kind", "model", "aggregator", "world_size", "global_batch", "threads", "seed")


@pytest.fixture(scope="module")
def jobs(cluster, study_in, tmp_path_factory):
    """What each form made of the study: form -> (Study, id of its job); all run together."""
    made = {}
    for form, (sizes, options) in SUBMITTED.items():
        study = study_in(tmp_path_factory.mktemp("job"))
        study.write_small(world_sizes=sizes)
        made[form] = (study, study.submit(*options))
    local, own = (study_in(tmp_path_factory.mktemp("run")) for _ in range(2))
    local.write_small(world_sizes=(1, 2))
    ended_well(local.scaling("run", local.study.name, "--out", local.out.name))
    own.write_small()
    worker = [*SRUN, "-m", "scaling.worker", own.study.name, "--out", own.out.name]
    ended_well(own.ended(worker, OMP_NUM_THREADS="1"))
    made |= {"local": (local, None), "srun by hand": (own, "")}
    cluster.wait(lambda: not cluster.jobs(), "all jobs to end")
    yield made
    for study, _ in made.values():
        study.end()


@pytest.mark.parametrize("form", SUBMITTED)
def test_job_completes_and_every_cell_is_done(jobs, cluster, form):
    study, job = jobs[form]
    for task in [f"{job}_1", f"{job}_2"] if form == "array" else [job]:
        assert cluster.state(task) == "COMPLETED", study.log(task)
    cells = {(name, size) for name in ("all_reduce", "ring") for size in SUBMITTED[form][0]}
    assert study.states() == dict.fromkeys(cells, "done")


def test_report_of_an_array_is_made_by_a_job_of_its_own_after_it(jobs):
    study, job = jobs["array"]
    assert "Submitted batch job" in study.log(f"{job}_1")
    reports = [path for path in study.folder.glob("slurm-*.out") if "report.html" in path.read_text()]
    assert len(reports) == 1
    assert "_" not in reports[0].stem
    assert (study.out / "report.html").exists()


def rows(study):
    """One a cell, as in summary.csv."""
    return summary_table(study.results()).to_dict("records")


@pytest.mark.parametrize("form", LAUNCHERS)
def test_each_row_names_the_launcher_and_the_nodes(jobs, form):
    study, job = jobs[form]
    assert {row["launcher"] for row in rows(study)} == {LAUNCHERS[form][0]}
    if form != "srun by hand":
        assert (study.out / "summary.csv").read_text().split("\n")[0].split(",") == list(rows(study)[0])
    for record in study.results().runs():
        assert record.launch["num_nodes"] == LAUNCHERS[form][1]
        if form != "local":
            assert record.launch["job_id"].isdecimal()
        if form not in ("array", "srun by hand"):
            assert record.launch["job_id"] == job


def told(study):
    """(cell -> its losses, wire bytes and what says which cell it is; the columns)."""
    found = {}
    for row in rows(study):
        samples = study.results().samples(row["cell_id"], 0)[0]
        same = tuple(row[name] for name in (*SAME_VALUES, "wire_bytes_per_rank"))
        found[row["cell_id"]] = (*same, [epoch["step_losses"] for epoch in samples])
    return found, list(rows(study)[0])


@pytest.mark.parametrize("form", [form for form in LAUNCHERS if form != "local"])
def test_cells_columns_and_losses_are_those_of_a_local_run(jobs, form):
    study = jobs[form][0]
    (found, columns), (local, local_columns) = told(study), told(jobs["local"][0])
    sizes = {record.cell["world_size"] for record in study.results().runs()}
    assert columns == local_columns
    assert found == {
        record.cell_id: local[record.cell_id]
        for record in jobs["local"][0].results().runs()
        if record.cell["world_size"] in sizes
    }
    assert len(found) == 2 * len(sizes)


ROOT = Path(__file__).parents[2]
SCRIPTS = sorted([*ROOT.glob("slurm/*.sbatch"), *ROOT.glob("tests/launchers/batch_scripts/*.sbatch")])


@pytest.mark.parametrize("path", SCRIPTS, ids=[path.stem for path in SCRIPTS])
def test_slurm_takes_every_stored_batch_script_as_it_stands(cluster, path):
    told = {"capture_output": True, "text": True, "timeout": LIMIT_S}
    done = subprocess.run(["sbatch", "--test-only", str(path)], env=cluster.environment, **told)
    assert done.returncode == 0, done.stderr
    assert ("to start at" in done.stderr, len(SCRIPTS)) == (True, 8)

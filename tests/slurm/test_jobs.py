"""The same small study in every form of Slurm job: the same cells and bits, the launcher in each row."""

import csv
import subprocess
import sys

import pytest

pytestmark = [pytest.mark.processes, pytest.mark.slurm]

SUBMITTED = {
    "one node": ((1, 2), ["--gpus-per-node", "2"]),
    "array": ((1, 2), ["--gpus-per-node", "2", "--array", "--style", "srun"]),
    "two nodes, torchrun": ((2,), ["--gpus-per-node", "1"]),
    "two nodes, srun": ((2,), ["--gpus-per-node", "1", "--style", "srun"]),
}
LAUNCHERS = {
    "one node": ("slurm-torchrun", 1),
    "array": ("slurm-srun", 1),
    "two nodes, torchrun": ("slurm-torchrun", 2),
    "two nodes, srun": ("slurm-srun", 2),
    "srun by hand": ("srun", 2),
}


@pytest.fixture(scope="module")
def jobs(cluster, study_in, tmp_path_factory):
    """What each form made of the study: form -> (Study, id of its job). All run at the same time."""
    made = {}
    for form, (sizes, options) in SUBMITTED.items():
        study = study_in(tmp_path_factory.mktemp("job"))
        study.write(world_sizes=sizes)
        made[form] = (study, study.submit(*options))
    by_hand = study_in(tmp_path_factory.mktemp("job"))
    by_hand.write()
    command = [
        "srun",
        "--nodes=2",
        "--ntasks-per-node=1",
        "--time=10",
        "--kill-on-bad-exit=1",
        sys.executable,
    ]
    command += ["-m", "scaling.worker", by_hand.study.name, "--out", by_hand.out.name]
    environment = {**by_hand.environment, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        command, cwd=by_hand.folder, env=environment, capture_output=True, text=True, timeout=240
    )
    assert done.returncode == 0, done.stderr
    assert by_hand.scaling("report", by_hand.out.name).returncode == 0
    made["srun by hand"] = (by_hand, "")
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


@pytest.mark.parametrize("form", LAUNCHERS)
def test_each_row_names_the_launcher_and_the_nodes(jobs, form):
    study, job = jobs[form]
    rows = list(csv.DictReader((study.out / "summary.csv").read_text().splitlines()))
    assert {row["launcher"] for row in rows} == {LAUNCHERS[form][0]}
    for record in study.results().runs():
        assert record.launch["num_nodes"] == LAUNCHERS[form][1]
        assert record.launch["job_id"].isdecimal()
        assert form in ("array", "srun by hand") or record.launch["job_id"] == job


def test_cells_columns_and_losses_are_the_same_in_every_form(jobs):
    columns, losses = set(), {}
    for study, _ in jobs.values():
        columns.add((study.out / "summary.csv").read_text().partition("\n")[0])
        for record in study.results().runs():
            rows = study.results().samples(record.cell_id, record.repeat)[0]
            key = (record.cell["aggregator_label"], record.cell["world_size"])
            losses.setdefault(key, []).append((record.cell_id, [row["step_losses"] for row in rows]))
    assert len(columns) == 1
    assert {key: len(found) for key, found in losses.items()} == {
        (name, size): 5 if size == 2 else 2 for name in ("all_reduce", "ring") for size in (1, 2)
    }
    for key, found in losses.items():
        assert all(one == found[0] for one in found), key

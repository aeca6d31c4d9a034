"""What goes wrong in a job: it ends soon, with one clear message, and the folder can be gone on with."""

import os
import signal
import socket
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.processes, pytest.mark.slurm]

WAITS = "slurm_parts:Waits"
LATE = {"torchrun": "not all nodes came within 20 s", "srun": "1 of 2 ranks did not come within 20 s"}


def worker_of(study, rank):
    """The pid of that rank's process."""
    own = f"SLURM_PROCID={rank}".encode()
    for pid in study.left():
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        if b"scaling.worker" in words and own in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"):
            return pid
    raise AssertionError(f"no rank {rank} among {study.left()}")


def messages(log, word):
    return [line for line in log.splitlines() if word in line]


@pytest.fixture(scope="module", autouse=True)
def waiting(cluster, study_in, tmp_path_factory):
    """Jobs that take their time while the other tests run: name -> (Study, id of its job)."""
    late = tmp_path_factory.mktemp("late")  # every Python starts with it: on the second node it waits instead
    late_start = "import os, time\nif os.environ.get('SLURM_NODEID') == '1':\n    time.sleep(600)\n"
    (late / "sitecustomize.py").write_text(late_start)
    made = {}
    for style in LATE:
        study = study_in(tmp_path_factory.mktemp(style))
        study.write_small()
        path = os.pathsep.join([str(late), study.environment["PYTHONPATH"]])
        options = ["--gpus-per-node", "1", "--style", style, "--join-timeout", "20"]
        made[style] = (study, study.submit(*options, PYTHONPATH=path))
    study = study_in(tmp_path_factory.mktemp("limit"))
    study.write_small([WAITS])
    # In its second life it has time again, as an operator would give it.
    more = '[ -z "${SLURM_RESTART_COUNT:-}" ] || scontrol update JobId="$SLURM_JOB_ID" TimeLimit=20'
    job = study.submit("--gpus-per-node", "2", "--setup", more)
    made["limit"] = (study, job)
    study.wait_for_run("waits")
    # Slurm looks every 30 s, and signals the job from 120 s before its limit.
    cluster.ask("scontrol", "update", f"JobId={job}", "EndTime=now+90")
    yield made
    for study, _ in made.values():
        study.end()


def test_task_that_is_killed_costs_its_run_once_and_the_job_completes(study, cluster):
    study.write_small([WAITS])
    job = study.submit("--gpus-per-node", "1", "--style", "srun")
    study.wait_for_run("waits")
    os.kill(worker_of(study, 1), signal.SIGKILL)
    (record,) = study.results().runs()
    cluster.wait(lambda: study.results().runs()[0].deaths == 1, "the death to be recorded")
    study.go.touch()
    assert cluster.wait_for(job, "COMPLETED", "FAILED") == "COMPLETED", study.log(job)
    assert study.states() == {("waits", 2): "done"}
    assert len(messages(study.log(job), "a worker died in its cell")) == 1
    assert study.results().run(record.cell_id, 0).deaths == 1


def test_job_that_is_cancelled_stays_so_and_is_gone_on_with_by_submitting_again(study, cluster):
    study.write_small(["all_reduce", WAITS])
    job = study.submit("--gpus-per-node", "1", "--style", "srun")
    study.wait_for_run("waits")
    cluster.ask("scancel", job)
    assert cluster.wait_for(job, "CANCELLED") == "CANCELLED"
    cluster.wait(lambda: not study.left(), "the job's processes to end")
    assert len(messages(study.log(job), "stopped by SIGTERM; give the script to sbatch again")) == 1
    assert study.states()["waits", 2] == "planned"
    assert [record.deaths for record in study.results().runs()] == [0, 0]
    before = {path: path.read_text() for path in study.out.glob("runs/*/*/rank*.jsonl")}
    done = {record.cell_id for record in study.results().runs() if record.state == "done"}

    study.go.touch()
    again = study.submit("--gpus-per-node", "1", "--style", "srun")
    assert cluster.wait_for(again, "COMPLETED", "FAILED") == "COMPLETED", study.log(again)
    assert set(study.states().values()) == {"done"}
    kept = [path for path in before if path.parts[-3] in done]
    assert all(path.read_text() == before[path] for path in kept)


def test_job_completes_where_the_rest_cannot_run_there_and_says_what_stays_planned(study, cluster, found):
    study.write_small(["all_reduce", "mpi"])
    job = study.submit("--gpus-per-node", "1", "--style", "srun")
    words = ["--parsable", "--output=/dev/null", f"--dependency=afterok:{job}", "--wrap=true"]
    after = cluster.ask("sbatch", *words)
    study.jobs.append(after)
    assert cluster.wait_for(job, "COMPLETED", "FAILED") == "COMPLETED", study.log(job)
    assert study.states() == {("all_reduce", 2): "done", ("mpi", 2): "planned"}
    line, *_ = messages(study.log(job), "1 run of mpi stays planned, since this launch lacks mpi")
    assert cluster.wait_for(after, "COMPLETED", "FAILED", "CANCELLED") == "COMPLETED"
    said = f"{line}; the job is COMPLETED, and those that wait for that begin"
    found(said, "nothing: that run stays planned")


def test_fewer_workers_than_asked_for_are_refused_on_every_rank(study, cluster):
    study.write_small()
    command = ["srun", "--ntasks=1", "--time=5", sys.executable, "-m", "scaling.worker", study.study.name]
    command += ["--out", study.out.name, "--world-size=2"]
    done = study.ended(command)
    assert done.returncode == 2
    errors = messages(done.stderr, "error: ")
    assert errors[0] == (
        "error: 2 workers were asked for, but the launcher says rank 0 (SLURM_PROCID) of 1 (SLURM_NTASKS), "
        "local rank 0 (SLURM_LOCALID) of 1, started by srun"
    )
    assert not study.results().exists()


def test_port_that_is_occupied_ends_the_job_with_one_message(study, cluster):
    study.write_small()
    job = study.submit("--gpus-per-node", "1", "--sbatch=--hold")
    with socket.socket() as server:
        server.bind(("", 20_000 + int(job) % 10_000))
        server.listen()
        cluster.ask("scontrol", "release", job)
        assert cluster.wait_for(job, "FAILED", "COMPLETED") == "FAILED"
    (error,) = messages(study.log(job), "error: ")
    assert f"port {20_000 + int(job) % 10_000} of 127.0.0.1" in error
    assert "is occupied by another program; set MASTER_PORT" in error
    assert set(study.states().values()) == {"planned"}


@pytest.mark.parametrize("style", LATE)
def test_node_that_does_not_come_ends_the_job_with_one_message(waiting, cluster, style):
    study, job = waiting[style]
    assert cluster.wait_for(job, "FAILED", "COMPLETED") == "FAILED"
    (error,) = messages(study.log(job), "error: ")
    assert LATE[style] in error
    assert set(study.states().values()) == {"planned"}


def test_job_at_its_time_limit_saves_its_state_requeues_itself_and_finishes_later(waiting, cluster):
    study, job = waiting["limit"]
    cluster.wait(lambda: "stopped by" in study.log(job), "the signal before the limit")
    assert len(messages(study.log(job), "stopped by SIGUSR1; job")) == 1
    cluster.wait_for(job, "PENDING", "RUNNING")  # again
    shown = study.scaling("status", study.out.name)
    assert "1 of 1 runs are left: 1 with 2 workers" in shown.stdout
    study.go.touch()
    assert cluster.wait_for(job, "COMPLETED", "FAILED", "TIMEOUT") == "COMPLETED", study.log(job)
    assert (study.states(), study.results().runs()[0].deaths) == ({("waits", 2): "done"}, 0)
    assert (study.out / "report.html").exists()

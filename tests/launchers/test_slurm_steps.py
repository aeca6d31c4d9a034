"""How a job starts its launches, where its workers meet, and what is said where they cannot."""

import shutil
import socket
import subprocess

import pytest

from launchers import slurm_steps
from launchers.base import LaunchSpec
from launchers.rank_info import RankInfo
from launchers.slurm_steps import SlurmSrun, SlurmTorchrun, nodes_for, port_is_free
from launchers.slurm_variables import first_host, rendezvous, task_counts
from tests.waiting import LIMIT_S

JOB = {
    **{"SLURM_JOB_ID": "17", "SLURM_JOB_NODELIST": "n[1-2]", "SLURM_JOB_NUM_NODES": "2"},
    **{"SLURM_NODEID": "0", "SLURM_GPUS_ON_NODE": "4"},
}
SPEC = LaunchSpec(8, 3, "scaling.worker", ["mnist", "--out", "my results"])
WORKER = ["python3", "-m", "scaling.worker", "mnist", "--out", "my results"]
SRUN = [
    "env", "--unset=SRUN_CPUS_PER_TASK", "--unset=SLURM_CPUS_PER_TASK", "srun", "--nodes=2", "--ntasks={}",
    "--ntasks-per-node={}", "--relative=0", "--distribution=block", "--cpu-bind=none", "--kill-on-bad-exit=1",
]  # fmt: skip


def srun(tasks, per_node):
    return [word.format(per_node if "per-node" in word else tasks) for word in SRUN]


def test_torchrun_is_one_task_a_node_with_a_rendezvous_on_the_first_host():
    launcher = SlurmTorchrun.from_environment(JOB)
    meeting = ["--rdzv-endpoint=n1:20017", "--rdzv-conf=join_timeout=300,read_timeout=60"]
    options = ["--nnodes=2", "--nproc-per-node=4", "--max-restarts=0", "--rdzv-backend=c10d", *meeting]
    torchrun = ["python3", "-m", "torch.distributed.run", *options, *WORKER[1:]]
    assert launcher.command(SPEC, "python3") == [*srun(2, 1), *torchrun]


def test_launch_takes_as_few_nodes_as_hold_it_and_waits_as_long_as_is_set():
    launcher = SlurmTorchrun.from_environment({**JOB, "SCALING_JOIN_TIMEOUT_S": "20"})
    words = launcher.command(LaunchSpec(4, 1, "m", []))
    assert {"--nodes=1", "--ntasks=1", "--nnodes=1", "--nproc-per-node=4"} <= set(words)
    assert "--rdzv-conf=join_timeout=20,read_timeout=20" in words
    assert SlurmSrun.from_environment(without("GPUS"), 1).workers_per_node == 1  # as it is said


def test_srun_is_one_task_a_worker_which_reads_back_who_started_it_and_where_they_meet():
    launcher = SlurmSrun.from_environment(JOB)
    assert launcher.command(SPEC, "python3") == [*srun(8, 4), *WORKER]
    added = {"SCALING_LAUNCHER": "slurm-srun", "OMP_NUM_THREADS": "3"}
    place = {"MASTER_ADDR": "n1", "MASTER_PORT": "20017"}
    assert launcher.environment(SPEC) == {**added, **place}
    task = {"SLURM_PROCID": "5", "SLURM_LOCALID": "1"}
    task |= {"SLURM_NTASKS": "8", "SLURM_STEP_TASKS_PER_NODE": "4(x2)"}
    info = RankInfo.from_env({**JOB, **task, **launcher.environment(SPEC)})
    assert (info.launcher, info.rank, info.world_size, info.local_world_size) == ("slurm-srun", 5, 8, 4)


def without(word):
    return {name: value for name, value in JOB.items() if word not in name}


@pytest.mark.parametrize(("job", "size", "message"), [
    (without("GPUS"), 1, "the job has no GPUs .*; give --workers-per-node"),
    (without("NUM_NODES"), 1, "inside a Slurm job, and SLURM_JOB_NUM_NODES is not set; `scaling submit`"),
    (without("NODEID"), 1, "from the job's first node, as its batch script does"),
    (JOB, 12, "12 workers need 3 nodes of 4; the job has 2"),
    (JOB, 5, "5 workers do not spread evenly over 2 nodes of 4"),
])  # fmt: skip
@pytest.mark.parametrize("launcher", [SlurmTorchrun, SlurmSrun])
def test_launch_that_no_job_or_this_one_cannot_hold_is_refused(launcher, job, size, message):
    with pytest.raises(ValueError, match=message):
        launcher.from_environment(job).command(LaunchSpec(size, 1, "m", []))


@pytest.mark.parametrize(("size", "nodes"), [(1, 1), (4, 1), (6, 2), (8, 2), (12, 3)])
def test_workers_are_spread_evenly_over_as_few_nodes_as_hold_them(size, nodes):
    assert nodes_for(size, 4) == nodes


def test_port_that_another_program_holds_is_named_with_a_way_out(monkeypatch):
    monkeypatch.setattr(slurm_steps, "PORT_WAIT_S", 0.2)
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        port = server.getsockname()[1]
        launcher = SlurmSrun.from_environment({**JOB, "MASTER_PORT": str(port)})
        said = f"port {port} of n1, .* is occupied by another program; set MASTER_PORT"
        with pytest.raises(ValueError, match=said):
            launcher.before_start()
    assert port_is_free(port)
    launcher.before_start()


@pytest.mark.parametrize(("log", "reason"), [
    ("$ srun\nerror: study 'x' has no cell of 3\nsrun: error: n1: task 0", "study 'x' has no cell of 3"),
    ("...RendezvousTimeoutError\nsrun: error: n1: task 0: Exited", "not all nodes came within"),
    ("srun: error: Unable to create step for job 17: More processors", "srun: Unable to create step"),
    ("", "the launch ended before a worker began"),
])  # fmt: skip
def test_reason_of_a_launch_that_began_nothing_is_read_from_what_it_printed(log, reason):
    assert SlurmTorchrun.from_environment(JOB).why_not_started(log).startswith(reason)


LISTS = {
    **{"node1": "node1", "node1,node2": "node1", "node[1-3,7]": "node1", "node[07-12],login": "node07"},
    **{"gpu-a[003,010-012],gpu-b1": "gpu-a003", "rack[1-2]node[4-5]": "rack1node4"},
    "127.0.0.[1-2]": "127.0.0.1",
}


@pytest.mark.parametrize("text", LISTS)
def test_first_host_of_a_list(text):
    assert first_host(text) == LISTS[text]


@pytest.mark.parametrize("text", LISTS)
def test_first_host_is_the_one_that_scontrol_names(text, tmp_path, need):
    need(shutil.which("scontrol"), "Slurm is not installed; Debian: apt-get install slurm-client")
    (tmp_path / "slurm.conf").write_text("ClusterName=none\nSlurmctldHost=localhost\n")
    environment = {"SLURM_CONF": str(tmp_path / "slurm.conf")}
    command = [shutil.which("scontrol"), "show", "hostnames", text]
    told = {"capture_output": True, "text": True, "check": True, "timeout": LIMIT_S}
    assert subprocess.run(command, env=environment, **told).stdout.splitlines()[0] == LISTS[text]


@pytest.mark.parametrize(("read", "text", "said"), [
    *((first_host, text, "no host name") for text in ("", ",", "[1-2", " ")),
    *((task_counts, text, "how many tasks") for text in ("", "two", "2(x)", "2(x2", "2;3")),
])  # fmt: skip
def test_list_without_a_name_and_tasks_of_another_form_are_errors(read, text, said):
    with pytest.raises(ValueError, match=said):
        read(text)


@pytest.mark.parametrize(
    ("text", "n"), [("4", [4]), ("2(x2)", [2, 2]), ("2(x2),1", [2, 2, 1]), ("1,3(x1)", [1, 3])]
)
def test_tasks_of_each_node(text, n):
    assert task_counts(text) == n


def test_ports_of_neighbouring_jobs_differ_and_stay_below_those_of_the_system():
    ports = [rendezvous({"MASTER_ADDR": "a", "SLURM_JOB_ID": str(job)})[1] for job in range(123_000, 133_000)]
    assert (len(set(ports)), (min(ports), max(ports))) == (10_000, (20_000, 29_999))


SLURM = {"SLURM_JOB_ID": "1234567", "SLURM_JOB_NODELIST": "n[3-4]"}


@pytest.mark.parametrize(("variables", "place"), [
    ({}, ("n3", 24_567)),
    ({"SLURM_STEP_NODELIST": "n4"}, ("n4", 24_567)),  # of a step on other nodes than the job's first
    ({"MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "29500"}, ("10.0.0.1", 29_500)),
])  # fmt: skip
def test_workers_meet_on_the_first_host_unless_they_are_told_otherwise(variables, place):
    assert rendezvous({**SLURM, **variables}) == place


@pytest.mark.parametrize(("variables", "message"), [
    ({"SLURM_JOB_NODELIST": ""}, "no host name in the node list ''"),
    ({"SLURM_JOB_ID": ""}, "neither MASTER_PORT nor SLURM_JOB_ID"),
    ({"MASTER_PORT": "http"}, "MASTER_PORT is 'http'; it must be a number from 1 to 65535"),
    ({"MASTER_PORT": "70000"}, "MASTER_PORT is '70000'"),
])  # fmt: skip
def test_place_that_cannot_be_told_is_an_error_that_names_the_variable(variables, message):
    with pytest.raises(ValueError, match=message):
        rendezvous({**SLURM, **variables})

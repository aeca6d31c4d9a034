"""Slurm's lists of nodes and tasks, and where the workers of a job meet."""

import shutil
import subprocess

import pytest

from launchers.slurm_variables import first_host, rendezvous, rendezvous_port, task_counts
from tests.waiting import LIMIT_S

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
    ("text", "counts"), [("4", [4]), ("2(x2)", [2, 2]), ("2(x2),1", [2, 2, 1]), ("1,3(x1)", [1, 3])]
)
def test_tasks_of_each_node(text, counts):
    assert task_counts(text) == counts


def test_ports_of_neighbouring_jobs_differ_and_stay_below_those_of_the_system():
    ports = [rendezvous_port(str(job)) for job in range(123_000, 133_000)]
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

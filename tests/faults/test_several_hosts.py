"""Ranks that go wrong before they have met, and of two hosts: watchers find one verdict, which all say."""

import os
import re
import shutil
import subprocess

import pytest
import yaml

from tests.faults.commands import FEW, HERE, WORKLOAD, command_in, in_general, line_with, study_of, worker
from tests.ranks import free_port
from tests.waiting import LIMIT_S

pytestmark = pytest.mark.processes

# Ten exchanges are checked before the warm-up, so that these are in timed steps.
TIMED_CALLS = range(FEW["warmup"] + 20, 60)


@pytest.fixture
def on_two_hosts(tmp_path, draw, need):
    """on_two_hosts(fault): one rank of four on two hosts goes wrong; its number, and what each host said."""
    named = ["unshare", "--uts", "sh", "-c", 'hostname "$0" && exec "$@"']
    tried = os.geteuid() == 0 and shutil.which("unshare") and shutil.which("hostname")
    need(
        tried and subprocess.run([*named, "host1", "true"], capture_output=True).returncode == 0,
        "hosts with names of their own can be made by root alone",
    )

    def run(fault, **more):
        rank = draw.randrange(4)
        plant = {"name": "planted:Plant", "fault": fault, "rank": rank, "call": draw.choice(TIMED_CALLS)}
        plant = {**plant, "once": str(tmp_path / "once"), **more}
        command = command_in(tmp_path)
        command.environment["GLOO_SOCKET_IFNAME"] = "lo"
        study = study_of(world_sizes=[4], aggregators=[plant], workloads=[{**WORKLOAD, "global_batch": 32}])
        command.study.write_text(yaml.safe_dump(study))
        port = free_port()
        place = {"WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "2"}
        workers = []
        for one in range(4):
            before, local = [*named, f"host{1 + one // 2}"], str(one % 2)
            workers.append(worker(command, str(one), port, before=before, LOCAL_RANK=local, **place))
        said = [one.communicate(timeout=LIMIT_S)[1] for one in workers]
        print(*said, sep="\n----\n")
        return rank, [said[0] + said[1], said[2] + said[3]], [one.returncode for one in workers]

    return run


def lines_of(hosts):
    return [re.findall("watcher: .*", said) for said in hosts]


def test_rank_of_one_of_two_hosts_exits_without_a_word(on_two_hosts, found):
    rank, hosts, _ = on_two_hosts("exit", code=0)
    line = line_with(hosts[0], f"watcher: rank {rank} left first on host{1 + rank // 2}, with exit code 0")
    first, second = lines_of(hosts)
    assert first == second == [line]
    found(f"on both hosts: {in_general(line)}", "nothing: the run is planned again")


def test_rank_of_one_of_two_hosts_is_stopped(on_two_hosts, found):
    rank, hosts, _ = on_two_hosts("stop")
    words = f"watcher: rank {rank} is behind on host{1 + rank // 2}, stopped by a signal, in timed iterations"
    line = line_with(hosts[0], words)
    first, second = lines_of(hosts)
    assert first == second
    # A stop signal takes effect a moment later: the stack may be of the step after the planted call.
    assert any("File" in one for one in second), "its stack, on both"
    assert [one for one in first if not one.startswith("watcher:   ")] == [line]
    found(f"on both hosts: {in_general(line)}", "nothing: the run is planned again")


JOIN_TIMEOUT_S = 20
"""This time has to pass where a rank is stopped; ranks that are forked meet sooner."""


@pytest.fixture
def planted(tmp_path, draw):
    """planted(fault, launcher): runs a study of two ranks, one of which goes wrong so."""

    def run(fault, launcher):
        rank, once = draw.randrange(2), tmp_path / "once"
        command = command_in(tmp_path)
        command.study.write_text(yaml.safe_dump(study_of()))
        path = os.pathsep.join([str(HERE / "early"), command.environment["PYTHONPATH"]])
        # In a zygote it is planted as that starts.
        run_command = command.run if launcher == "local" else command.run_here
        outcome = run_command(
            *("--launcher", launcher),
            PYTHONPATH=path,
            PLANTED=f"{fault} {rank} {once}",
            **({"SCALING_JOIN_TIMEOUT_S": str(JOIN_TIMEOUT_S)} if fault == "stop" else {}),
        )
        print(outcome.stderr)
        assert "Traceback" not in outcome.stderr
        assert outcome.returncode == 0, "the launch was tried once more"
        assert set(command.states().values()) == {"done"}
        return rank, outcome.stderr

    return run


@pytest.mark.parametrize("launcher", ["local", "torchrun"])
def test_rank_that_exits_without_a_word_before_the_ranks_have_met(planted, launcher, found):
    rank, said = planted("0", launcher)
    line = line_with(said, f": rank {rank} left first", "before the ranks had met")
    found(in_general(line), "nothing: the launch is tried once more")


def test_rank_that_is_stopped_before_the_ranks_have_met(planted, found):
    rank, said = planted("stop", "local")
    line = line_with(said, f": rank {rank} is behind", "stopped by a signal, before the ranks had met")
    found(in_general(line), "nothing: the launch is tried once more")

"""The exact command line and variables of a launch on this machine, also by mpirun, and which one it is."""

import errno
import os
import sys

import pytest

from launchers import base
from launchers.base import JOIN_TIMEOUT_S, JOIN_TIMEOUT_VARIABLE, LaunchSpec, join_timeout_s
from launchers.local import HorovodrunLauncher, LocalLauncher, MpirunLauncher, TorchrunLauncher
from launchers.rank_info import TABLES, RankInfo

WORKER = ["python3", "-m", "scaling.worker", "mnist", "repeats=5", "--out", "results/my study"]
SPEC = LaunchSpec(4, 2, "scaling.worker", ["mnist", "repeats=5", "--out", "results/my study"])


@pytest.mark.parametrize("launcher", [LocalLauncher(), TorchrunLauncher()])
def test_command_by_hand_is_torchrun_with_a_rendezvous_on_loopback(launcher):
    meeting = ["--rdzv-backend=c10d", "--rdzv-endpoint=127.0.0.1:0", "--local-addr=127.0.0.1"]
    torchrun = ["torch.distributed.run", "--nnodes=1", "--nproc-per-node=4", "--max-restarts=0", *meeting]
    assert launcher.command(SPEC, python="python3") == ["python3", "-m", *torchrun, *WORKER[1:]]


@pytest.mark.parametrize("argument", ["a b", "", "--flag", "ü", "key=[1, 2]", "x;y", "$HOME", "'"])
def test_awkward_arguments_are_one_word_each_and_python_is_this_one_unless_another_is_named(argument):
    command = LocalLauncher().command(LaunchSpec(1, 1, "m", [argument, "last"]))
    assert (command[0], command[-3:]) == (sys.executable, ["m", argument, "last"])


@pytest.mark.parametrize(("platform", "interface"), [("linux", {"GLOO_SOCKET_IFNAME": "lo"}), ("darwin", {})])
def test_environment_is_what_the_launch_adds(monkeypatch, platform, interface):
    monkeypatch.setattr(sys, "platform", platform)
    added = {"SCALING_LAUNCHER": "local", "OMP_NUM_THREADS": "2"}
    assert LocalLauncher().environment(SPEC) == {**added, **interface}


@pytest.mark.parametrize("launcher", [LocalLauncher(), TorchrunLauncher()])
@pytest.mark.parametrize(("step", "number", "said"), [
    ("create_server", errno.ENETUNREACH, r"127\.0\.0\.1, which cannot be used: Network is unreachable"),
    ("create_connection", errno.ENETUNREACH, r"127\.0\.0\.1, which cannot be used: Network is unreachable"),
    ("create_server", errno.EADDRINUSE, "Address already in use; no port is free"),
])  # fmt: skip
def test_host_without_loopback_or_a_free_port_is_said_first(monkeypatch, launcher, step, number, said):
    launcher.before_start()

    def fails(*_, **__):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(base.socket, step, fails)
    with pytest.raises(ValueError, match=said):
        launcher.before_start()


@pytest.mark.parametrize(
    ("family", "options"), [("openmpi", ["--bind-to", "none", "--oversubscribe"]), ("mpich", [])]
)
def test_open_mpi_is_told_not_to_bind_and_mpich_does_not(family, options):
    launcher = MpirunLauncher("/opt/bin/mpirun", family, as_root=False)
    assert launcher.command(SPEC, "python3") == ["/opt/bin/mpirun", *options, "-np", "4", *WORKER]


def test_variables_name_the_mpi_and_let_root_in(monkeypatch):
    monkeypatch.setattr("sys.platform", "linux")
    own = {"OMP_NUM_THREADS": "2", "GLOO_SOCKET_IFNAME": "lo"}
    root = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    for family, as_root, more in (("openmpi", True, root), ("openmpi", False, {}), ("mpich", True, {})):
        launcher = MpirunLauncher("mpirun", family, as_root)
        assert launcher.environment(SPEC) == {"SCALING_LAUNCHER": family, **own, **more}


@pytest.mark.parametrize(("launcher", "names"), [
    (LocalLauncher(), ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE")),
    (MpirunLauncher("mpirun", "openmpi", as_root=False), tuple(TABLES["openmpi"].values())),
])  # fmt: skip
def test_worker_reads_back_who_started_it(launcher, names):
    variables = dict(zip(names, ("0", "0", "4", "4"), strict=True))
    environment = launcher.environment(SPEC)
    assert RankInfo.from_env({**variables, **environment}).launcher == environment["SCALING_LAUNCHER"]


@pytest.fixture
def mpirun(tmp_path):
    """mpirun(what it says of its version): the Python next to it."""

    def make(text):
        program = tmp_path / "mpirun"
        program.write_text(f"#!/bin/sh\necho '{text}'\n")
        program.chmod(0o755)
        return str(tmp_path / "python3")

    return make


@pytest.mark.parametrize(
    ("text", "family"), [("mpirun (Open MPI) 5.0.11", "openmpi"), ("HYDRA build details:", "mpich")]
)
def test_mpirun_next_to_this_python_is_taken_and_asked_whose_it_is(mpirun, tmp_path, text, family):
    found = MpirunLauncher.find(mpirun(text))
    assert (found.program, found.family) == (str(tmp_path / "mpirun"), family)


def test_mpirun_of_others_is_named(mpirun):
    with pytest.raises(ValueError, match=r"is neither Open MPI's nor MPICH's: 'Strange MPI 1'"):
        MpirunLauncher.find(mpirun("Strange MPI 1"))


def test_missing_mpirun_is_said(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ValueError, match="no mpirun next to this Python or on the PATH; pip install"):
        MpirunLauncher.find(str(tmp_path / "python3"))


def test_horovodrun_goes_over_gloo(monkeypatch):
    monkeypatch.setattr("sys.platform", "linux")
    expected = ["python3", "-m", "horovod.runner.launch", "-np", "4", "--gloo", *WORKER]
    assert HorovodrunLauncher().command(SPEC, "python3") == expected
    added = {"SCALING_LAUNCHER": "horovodrun", "OMP_NUM_THREADS": "2", "GLOO_SOCKET_IFNAME": "lo"}
    assert HorovodrunLauncher().environment(SPEC) == added


@pytest.mark.parametrize(("environ", "s"), [({}, JOIN_TIMEOUT_S), ({JOIN_TIMEOUT_VARIABLE: "20"}, 20.0)])
def test_how_long_workers_wait_for_each_other_is_a_setting(environ, s):
    assert join_timeout_s(environ) == s


@pytest.mark.parametrize("text", ["soon", "0", "-1", "inf", "nan"])
def test_join_timeout_that_is_no_time_is_named(text):
    said = f"SCALING_JOIN_TIMEOUT_S is '{text}'; it must be a number of seconds"
    with pytest.raises(ValueError, match=said):
        join_timeout_s({JOIN_TIMEOUT_VARIABLE: text})

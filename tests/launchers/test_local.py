"""The exact command line and variables of a launch on this machine."""

import errno
import sys

import pytest

from launchers import base
from launchers.base import LaunchSpec
from launchers.local import LocalLauncher, TorchrunLauncher
from launchers.rank_info import RankInfo

SPEC = LaunchSpec(4, 2, "scaling.worker", ["mnist", "repeats=5", "--out", "results/my study"])


@pytest.mark.parametrize("launcher", [LocalLauncher(), TorchrunLauncher()])
def test_command_by_hand_is_torchrun_with_a_rendezvous_on_loopback(launcher):
    assert launcher.command(SPEC, python="python3") == [
        "python3",
        "-m",
        "torch.distributed.run",
        "--nnodes=1",
        "--nproc-per-node=4",
        "--max-restarts=0",
        "--rdzv-backend=c10d",
        "--rdzv-endpoint=127.0.0.1:0",
        "--local-addr=127.0.0.1",
        "-m",
        "scaling.worker",
        "mnist",
        "repeats=5",
        "--out",
        "results/my study",
    ]


def test_python_is_this_one_unless_another_is_named():
    assert LocalLauncher().command(SPEC)[0] == sys.executable


def test_command_is_pure():
    assert LocalLauncher().command(SPEC) == LocalLauncher().command(SPEC)
    assert SPEC.arguments == ["mnist", "repeats=5", "--out", "results/my study"]


@pytest.mark.parametrize("argument", ["a b", "", "--flag", "ü", "key=[1, 2]", "x;y", "$HOME", "'"])
def test_awkward_arguments_are_one_word_each(argument):
    assert LocalLauncher().command(LaunchSpec(1, 1, "m", [argument, "last"]))[-3:] == ["m", argument, "last"]


@pytest.mark.parametrize(("platform", "interface"), [("linux", {"GLOO_SOCKET_IFNAME": "lo"}), ("darwin", {})])
def test_environment_is_what_the_launch_adds(monkeypatch, platform, interface):
    monkeypatch.setattr(sys, "platform", platform)
    assert LocalLauncher().environment(SPEC) == {
        "SCALING_LAUNCHER": "local",
        "OMP_NUM_THREADS": "2",
        **interface,
    }


def test_worker_reads_back_who_started_it():
    torchrun = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "4"}
    assert RankInfo.from_env({**torchrun, **LocalLauncher().environment(SPEC)}).launcher == "local"


@pytest.mark.parametrize("launcher", [LocalLauncher(), TorchrunLauncher()])
@pytest.mark.parametrize("step", ["create_server", "create_connection"])
def test_host_without_loopback_is_said_before_workers_wait_for_each_other(monkeypatch, launcher, step):
    launcher.before_start()

    def unreachable(*_, **__):
        raise OSError(errno.ENETUNREACH, "Network is unreachable")

    monkeypatch.setattr(base.socket, step, unreachable)
    with pytest.raises(ValueError, match=r"127\.0\.0\.1, which cannot be used: Network is unreachable"):
        launcher.before_start()


def test_host_without_a_free_port_is_told_so(monkeypatch):
    def taken(*_, **__):
        raise OSError(errno.EADDRINUSE, "Address already in use")

    monkeypatch.setattr(base.socket, "create_server", taken)
    with pytest.raises(ValueError, match="Address already in use; no port is free"):
        LocalLauncher().before_start()

"""Starts workers on this machine with torchrun: c10d rendezvous on a free loopback port."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass

from launchers.rank_info import LAUNCHER_VARIABLE


@dataclass(frozen=True)
class LaunchSpec:
    """What is to be started.

    Attributes:
        world_size: number of workers.
        threads: CPU threads a worker.
        module: what they run, as `python -m` would.
        arguments: its command line.
    """

    world_size: int
    threads: int
    module: str
    arguments: Sequence[str]


def command(spec: LaunchSpec, python: str = sys.executable) -> list[str]:
    """The command line that starts the workers.

    A worker that fails is not restarted by torchrun: the study's run loop starts a new launch for what is
    left.
    """
    return [
        python,
        "-m",
        "torch.distributed.run",
        "--nnodes=1",
        f"--nproc-per-node={spec.world_size}",
        "--max-restarts=0",
        "--rdzv-backend=c10d",
        "--rdzv-endpoint=127.0.0.1:0",
        "--local-addr=127.0.0.1",
        "-m",
        spec.module,
        *spec.arguments,
    ]


def before_start() -> None:
    """Nothing is to be waited for: each launch takes a free port."""


def why_not_started(log: str) -> str | None:
    """None: a launch on this host that began nothing is tried once more."""
    return None


def environment(spec: LaunchSpec) -> dict[str, str]:
    """The variables that the launch adds to the environment, which is passed through whole."""
    return {
        LAUNCHER_VARIABLE: "local",
        # torchrun would set 1, with a warning; the worker sets its thread count itself as well.
        "OMP_NUM_THREADS": str(spec.threads),
        # One host: Gloo need not resolve the host's name, which on some machines fails.
        **({"GLOO_SOCKET_IFNAME": "lo"} if sys.platform == "linux" else {}),
    }

"""Starts workers on this machine: forked from one process that has imported everything, or by torchrun."""

from __future__ import annotations

import sys
from dataclasses import dataclass

from launchers.base import Launcher, LaunchSpec
from launchers.joining import require_loopback


@dataclass(frozen=True)
class TorchrunLauncher(Launcher):
    """torchrun on this host: c10d rendezvous on a free loopback port.

    A worker that fails is not restarted by torchrun: the study's run loop starts a new launch for what is
    left.
    """

    name = "torchrun"

    def before_start(self) -> None:
        """Raises a ValueError where workers of this host would wait for each other in vain."""
        require_loopback()

    def command(self, spec: LaunchSpec, python: str = sys.executable) -> list[str]:
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


@dataclass(frozen=True)
class LocalLauncher(TorchrunLauncher):
    """Workers of this host, forked by a zygote (`launchers.zygote`) on Linux; elsewhere torchrun.

    `command` is the command line that starts the same workers by hand.
    """

    name = "local"
    forks_workers = sys.platform == "linux"

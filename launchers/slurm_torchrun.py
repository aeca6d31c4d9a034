"""Starts workers inside a Slurm job by srun and torchrun: one task a node, which starts its workers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from launchers.slurm_steps import SlurmLauncher, srun

STORE_TIMEOUT_S = 60
"""What torchrun gives a connection to the store of its rendezvous, by default."""


@dataclass(frozen=True)
class SlurmTorchrun(SlurmLauncher):
    """srun starts torchrun on each node."""

    name = "slurm-torchrun"

    def step(self, nodes: int, workers_per_node: int, python: str, worker: Sequence[str]) -> list[str]:
        join = math.ceil(self.join_timeout_s)
        return [
            *srun(nodes, 1),
            python,
            "-m",
            "torch.distributed.run",
            f"--nnodes={nodes}",
            f"--nproc-per-node={workers_per_node}",
            "--max-restarts=0",
            "--rdzv-backend=c10d",
            f"--rdzv-endpoint={self.host}:{self.port}",
            f"--rdzv-conf=join_timeout={join},read_timeout={min(join, STORE_TIMEOUT_S)}",
            *worker,
        ]

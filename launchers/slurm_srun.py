"""Starts workers inside a Slurm job directly by srun: one task a worker."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from launchers.slurm_steps import SlurmLauncher, srun


@dataclass(frozen=True)
class SlurmSrun(SlurmLauncher):
    """srun starts the workers."""

    name = "slurm-srun"

    def step(self, nodes: int, workers_per_node: int, python: str, worker: Sequence[str]) -> list[str]:
        return [*srun(nodes, workers_per_node), python, *worker]

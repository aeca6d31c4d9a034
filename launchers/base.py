"""What a launcher is: the command line and the variables by which the workers of a launch start."""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from launchers.rank_info import FIELDS, LAUNCHER_VARIABLE, RANK_VARIABLES


@dataclass(frozen=True)
class LaunchSpec:
    """What is to be started.

    Attributes:
        module: what they run, as `python -m` would.
    """

    world_size: int
    threads: int
    module: str
    arguments: Sequence[str]


class Launcher(ABC):
    """Starts workers on this host, unless a subclass says otherwise.

    Attributes:
        name: what `--launcher` and the records of runs call it.
        is_mpi: its processes are MPI's, so that aggregators over MPI can run in them.
        forks_workers: a study's workers are forked by a zygote (`launchers.zygote`) where that can be.
        leaves_the_rest: cells that its launches cannot run are another job's, and no failure of this one.
        rank_variables: field of `RankInfo` -> variable that says it, where none of `rank_info.TABLES` does.
            `environment` then has to add MASTER_ADDR and MASTER_PORT, at which rank 0 is reached.
    """

    name: ClassVar[str]
    is_mpi: ClassVar[bool] = False
    forks_workers: ClassVar[bool] = False
    leaves_the_rest: ClassVar[bool] = False
    rank_variables: ClassVar[Mapping[str, str]] = {}

    @classmethod
    def from_environment(cls, environ: Mapping[str, str], workers_per_node: int | None = None) -> Launcher:
        """The launcher as it is here.

        Args:
            workers_per_node: at most, where there are several nodes; None: as many as a node has GPUs.

        Raises:
            ValueError: it cannot be used here; what to do.
        """
        refuse_workers_per_node(cls.name, workers_per_node)
        return cls()

    @property
    def num_nodes(self) -> int:
        return 1

    @abstractmethod
    def command(self, spec: LaunchSpec, python: str = sys.executable) -> list[str]:
        """The command line that starts the workers; it ends when they have ended.

        Raises:
            ValueError: the nodes do not hold them.
        """

    def environment(self, spec: LaunchSpec) -> dict[str, str]:
        """The variables that the launch adds to the environment, which is passed through whole."""
        return {
            LAUNCHER_VARIABLE: self.name,
            # torchrun would set 1, with a warning; the worker sets its thread count itself as well.
            "OMP_NUM_THREADS": str(spec.threads),
            # One host: Gloo need not resolve the host's name, which on some machines fails.
            **({"GLOO_SOCKET_IFNAME": "lo"} if sys.platform == "linux" else {}),
            **self._own_variables(),
        }

    def _own_variables(self) -> dict[str, str]:
        if not self.rank_variables:
            return {}
        return {RANK_VARIABLES: ",".join(self.rank_variables[name] for name in FIELDS)}

    def before_start(self) -> None:  # noqa: B027  # most need nothing
        """To be called before each launch; most have nothing to wait for.

        Raises:
            ValueError: none can be started now.
        """

    def why_not_started(self, log: str) -> str | None:
        """Why no worker began, from what a launch printed; None: the launch is tried once more."""
        return None


def refuse_workers_per_node(launcher: str, workers_per_node: int | None) -> None:
    """Raises a ValueError where a launcher of one host is given a number of workers a node."""
    if workers_per_node is not None:
        raise ValueError(f"--workers-per-node is for the launchers of Slurm; {launcher} has one node")

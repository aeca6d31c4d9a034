"""Starts workers on this host with mpirun, Open MPI's or MPICH's."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from launchers.local import LaunchSpec
from launchers.rank_info import LAUNCHER_VARIABLE

Family = Literal["openmpi", "mpich"]

ANSWER_LIMIT_S = 20.0

SIGNS: dict[str, Family] = {"Open MPI": "openmpi", "HYDRA": "mpich"}
"""What `mpirun --version` says -> whose it is."""

OPTIONS: dict[Family, list[str]] = {
    # Threads are the study's affair, and more workers than cores are said in the run's notes.
    "openmpi": ["--bind-to", "none", "--oversubscribe"],
    "mpich": [],
}


@dataclass(frozen=True)
class MpirunLauncher:
    """One mpirun of this machine.

    Attributes:
        program: its path.
        family: whose it is.
        as_root: this is root, to whom Open MPI refuses itself without being told.
    """

    program: str
    family: Family
    as_root: bool

    @classmethod
    def find(cls, python: str = sys.executable) -> MpirunLauncher:
        """The one beside this Python, as the `openmpi` and `mpich` packages bring it, else that of the PATH.

        Raises:
            ValueError: there is none, or it is neither Open MPI's nor MPICH's.
        """
        beside = Path(python).with_name("mpirun")
        program = str(beside) if beside.exists() else shutil.which("mpirun")
        if program is None:
            raise ValueError("no mpirun beside this Python or on the PATH; pip install 'scaling-study[mpi]'")
        answer = subprocess.run(
            [program, "--version"], capture_output=True, text=True, timeout=ANSWER_LIMIT_S
        )
        for sign, family in SIGNS.items():
            if sign in answer.stdout:
                return cls(program, family, os.geteuid() == 0)
        first = (answer.stdout + answer.stderr).strip().partition("\n")[0]
        raise ValueError(f"{program} is neither Open MPI's nor MPICH's: {first!r}; start the workers by hand")

    def command(self, spec: LaunchSpec, python: str = sys.executable) -> list[str]:
        """The command line that starts the workers."""
        options = [*OPTIONS[self.family], "-np", str(spec.world_size)]
        return [self.program, *options, python, "-m", spec.module, *spec.arguments]

    def environment(self, spec: LaunchSpec) -> dict[str, str]:
        """The variables that the launch adds to the environment, which mpirun passes on to this host's."""
        root = {f"OMPI_ALLOW_RUN_AS_ROOT{end}": "1" for end in ("", "_CONFIRM")}
        return {
            LAUNCHER_VARIABLE: self.family,
            "OMP_NUM_THREADS": str(spec.threads),
            **({"GLOO_SOCKET_IFNAME": "lo"} if sys.platform == "linux" else {}),
            **(root if self.family == "openmpi" and self.as_root else {}),
        }

    def before_start(self) -> None:
        """Nothing is to be waited for: each launch takes a free port."""

    def why_not_started(self, log: str) -> str | None:
        """None: a launch on this host that began nothing is tried once more."""
        return None

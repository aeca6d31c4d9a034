"""Starts workers on this machine: forked by a zygote, or by torchrun, mpirun or horovodrun."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from launchers.base import Launcher, LaunchSpec, require_loopback
from launchers.rank_info import LAUNCHER_VARIABLE


@dataclass(frozen=True)
class TorchrunLauncher(Launcher):
    """torchrun on this host. It restarts no worker: the run loop starts a new launch for what is left."""

    name = "torchrun"

    def before_start(self) -> None:
        require_loopback()

    def command(self, spec: LaunchSpec, python: str = sys.executable) -> list[str]:
        return [
            *(python, "-m", "torch.distributed.run", "--nnodes=1", f"--nproc-per-node={spec.world_size}"),
            *("--max-restarts=0", "--rdzv-backend=c10d", "--rdzv-endpoint=127.0.0.1:0"),
            *("--local-addr=127.0.0.1", "-m", spec.module, *spec.arguments),
        ]


@dataclass(frozen=True)
class LocalLauncher(TorchrunLauncher):
    """Workers of this host, forked by a zygote (`launchers.zygote`) on Linux; elsewhere torchrun, whose
    `command` starts the same workers by hand."""

    name = "local"
    forks_workers = sys.platform == "linux"


Family = Literal["openmpi", "mpich"]

ANSWER_LIMIT_S = 20.0

SIGNS: dict[str, Family] = {"Open MPI": "openmpi", "HYDRA": "mpich"}
"""What `mpirun --version` says -> the library's family."""

OPTIONS: dict[Family, list[str]] = {
    # Threads are the study's affair, and more workers than cores are said in the run's notes.
    "openmpi": ["--bind-to", "none", "--oversubscribe"],
    "mpich": [],
}


@dataclass(frozen=True)
class MpirunLauncher(Launcher):
    """One mpirun of this machine. `as_root`: this is root, for whom Open MPI wants an option."""

    name = "mpirun"
    is_mpi = True

    program: str
    family: Family
    as_root: bool

    @classmethod
    def find(cls, python: str = sys.executable) -> MpirunLauncher:
        """The one next to this Python, as the `openmpi` and `mpich` packages bring it, else that of the PATH.
        Raises ValueError: there is none, or it is neither Open MPI's nor MPICH's."""
        installed = Path(python).with_name("mpirun")
        program = str(installed) if installed.exists() else shutil.which("mpirun")
        if program is None:
            raise ValueError("no mpirun next to this Python or on the PATH; pip install 'scaling-study[mpi]'")
        answer = subprocess.run(
            [program, "--version"], check=False, capture_output=True, text=True, timeout=ANSWER_LIMIT_S
        )
        for sign, family in SIGNS.items():
            if sign in answer.stdout:
                return cls(program, family, os.geteuid() == 0)
        first = (answer.stdout + answer.stderr).strip().partition("\n")[0]
        raise ValueError(f"{program} is neither Open MPI's nor MPICH's: {first!r}; start the workers by hand")

    def command(self, spec: LaunchSpec, python: str = sys.executable) -> list[str]:
        options = [*OPTIONS[self.family], "-np", str(spec.world_size)]
        return [self.program, *options, python, "-m", spec.module, *spec.arguments]

    def environment(self, spec: LaunchSpec) -> dict[str, str]:
        root = {f"OMPI_ALLOW_RUN_AS_ROOT{end}": "1" for end in ("", "_CONFIRM")}
        return {
            **super().environment(spec),
            LAUNCHER_VARIABLE: self.family,
            **(root if self.family == "openmpi" and self.as_root else {}),
        }


@dataclass(frozen=True)
class HorovodrunLauncher(Launcher):
    name = "horovodrun"

    def command(self, spec: LaunchSpec, python: str = sys.executable) -> list[str]:
        options = ["-np", str(spec.world_size), "--gloo"]
        return [python, "-m", "horovod.runner.launch", *options, python, "-m", spec.module, *spec.arguments]

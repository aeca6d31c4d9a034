"""Which MPI has started this process, the library that goes with it, and the cores that it took away."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from launchers.rank_info import RankInfo

TABLES = ("openmpi", "mpich")  # launchers of `launchers.rank_info` whose processes are MPI's
SRUN_SIGNS = ("PMIX_RANK", "PMI_RANK")  # what `srun --mpi=pmix` and `--mpi=pmi2` set

DAEMONS = {
    "openmpi": ("mpirun", "mpiexec", "orterun", "orted", "prterun", "prte", "prted"),
    "mpich": ("hydra_pmi_proxy", "mpiexec", "mpiexec.hydra", "mpirun"),
}
"""launcher -> programs that start its processes."""

LIBRARIES = {"openmpi": ("libmpi.so.40",), "mpich": ("libmpi.so.12", "libmpich.so.12")}
"""launcher -> its library's names, which are those of its binary interface."""

LIBRARY_VARIABLE = "MPI4PY_LIBMPI"
"""Has mpi4py load that library: a path, or several, of which the first that is there is taken."""


def started_by_mpi(info: RankInfo, environ: Mapping[str, str]) -> bool:
    return info.table in TABLES or (
        info.table == "srun" and any(variable in environ for variable in SRUN_SIGNS)
    )


def daemon(launcher: str, processes: Path = Path("/proc")) -> tuple[int, Path] | None:
    """The process on this host that started this one for MPI, with its program; None where it is not seen."""
    pid = os.getppid()
    while pid > 1:
        try:
            program = (processes / str(pid) / "exe").resolve(strict=True)
            after_name = (processes / str(pid) / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            return None
        if program.name in DAEMONS[launcher]:
            return pid, program
        pid = int(after_name[1])
    return None


def library(launcher: str, program: Path | None) -> str:
    """A value for LIBRARY_VARIABLE: the library next to the program that started us, else by its name alone.
    The first that mpi4py finds need not be that of the mpirun in use: then every process is rank 0 of 1."""
    paths = [program.parents[1] / "lib" / name for name in LIBRARIES[launcher]] if program else []
    existing = [str(path) for path in paths if path.exists()]
    return os.pathsep.join(existing or LIBRARIES[launcher])


def released_cores(daemon_pid: int) -> tuple[int, int]:
    """Gives this process the cores that its launcher has; returns how many it had before, and has now. Open
    MPI binds processes to part of the machine; how many threads a worker has is a setting of the study."""
    before = len(os.sched_getaffinity(0))
    os.sched_setaffinity(0, os.sched_getaffinity(daemon_pid))
    return before, len(os.sched_getaffinity(0))

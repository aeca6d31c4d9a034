"""The libraries of a launch in addition to torch.distributed, from its start to its end.

MPI in a worker: the library of the mpirun that started it, its world checked, all ended by an error.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterable, MutableMapping
from types import TracebackType
from typing import Any

from launchers import mpi as launcher
from launchers.processes import die_with_parent, say_line
from launchers.rank_info import RankInfo
from scaling.errors import LaunchError
from scaling.process_group import Group
from scaling.process_group.delegated import MpiGroup, library_version
from scaling.runtime.horovod import HorovodWorld, forget_network
from scaling.runtime.meeting import Share, over_horovodrun
from scaling.runtime.workers import Workers, join_limit_s


class LaunchLibraries:
    """What this process has besides torch.distributed, MPI at once under mpirun. LaunchError: it cannot."""

    def __init__(self, info: RankInfo, environ: MutableMapping[str, str] = os.environ) -> None:
        self._info, self._environ = info, environ
        forget_network(info, environ)
        self._mpi = MpiWorld.start(info, environ) if info.table in launcher.TABLES else None
        self._horovod: HorovodWorld | None = None

    def share(self) -> Share | None:
        """How rank 0 tells the others where to meet; None where the launcher's variables say it."""
        if self._mpi is not None:
            return self._mpi.share
        if self._info.table == "horovodrun":
            return over_horovodrun(self._info, self._environ, join_limit_s())
        return None

    def offer(self, workers: Workers) -> None:
        """Has groups of these workers carry messages by what is there."""
        self._horovod = HorovodWorld(workers, by_mpi=self._mpi is not None, environ=self._environ)
        workers.libraries["horovod"] = self._horovod.group
        workers.on_leave = self._horovod.stop
        if launcher.started_by_mpi(self._info, self._environ):
            workers.libraries["mpi"] = lambda outer: self._started_mpi().group(outer)

    def bring(self, libraries: Iterable[str]) -> None:
        """Starts what cells will need. Raises LaunchError: one cannot be used in this launch. Collective."""
        if "mpi" in libraries:
            self._started_mpi()
        if "horovod" in libraries and self._horovod is not None:
            self._horovod.start()

    def _started_mpi(self) -> MpiWorld:
        if self._mpi is None:  # srun: its variables said where to meet, and MPI is started when it is needed
            self._mpi = MpiWorld.start(self._info, self._environ)
        return self._mpi

    def record(self) -> dict[str, Any]:
        """What was started, for the record of a run."""
        mpi = {"mpi": self._mpi.library} if self._mpi is not None else {}
        horovod = self._horovod.description if self._horovod is not None else None
        return {**mpi, **({"horovod": horovod} if horovod else {})}

    def end_all(self, code: int) -> None:
        """Sees to it that no rank stays behind when this one ends alone, with that exit code."""
        if self._mpi is not None:
            self._mpi.end_all(code)


KEEP_CORES_VARIABLE = "SCALING_KEEP_BINDING"  # set to 1, a worker stays on the cores that mpirun bound it to
FORWARDED_S = 1.0  # for mpirun to pass on what a rank printed: MPICH's drops the rest at an abort


class MpiWorld:
    """MPI's world of this launch, of the launcher's ranks. `world`: mpi4py's; `library`: name and version."""

    def __init__(self, info: RankInfo, world: Any, library: str) -> None:
        self._world = world
        self.library = library
        if (world.rank, world.size) != (info.rank, info.world_size):
            raise LaunchError(
                f"{info.describe()}, but MPI ({library}) says rank {world.rank} of {world.size}: "
                f"{_remedy(info)}"
            )

    @classmethod
    def start(cls, info: RankInfo, environ: MutableMapping[str, str] = os.environ) -> MpiWorld:
        """Starts MPI here; an error in a rank then ends all. LaunchError: it cannot, or has another world."""
        if info.table in launcher.TABLES:
            _meet_launcher(info, environ)
        try:
            from mpi4py import MPI
        except (ImportError, RuntimeError) as error:
            raise LaunchError(
                f"the workers were started by {info.launcher}, and mpi4py cannot be used: "
                f"{' '.join(str(error).split())}; pip install 'scaling-study[mpi]'"
            ) from error
        sys.excepthook = _ending_all(MPI.COMM_WORLD)
        return cls(info, MPI.COMM_WORLD, library_version())

    def share(self, text: str) -> str:
        """Rank 0's text, of at most 1,000 bytes, on every rank. Collective."""
        content = bytearray(text.encode().ljust(1000))
        self._world.Bcast(content)
        return content.decode().rstrip()

    def group(self, outer: Group) -> Group:
        """The ranks of `outer`, which are all, with MPI carrying their messages. Collective."""
        return MpiGroup(outer, self._world.Dup())

    def end_all(self, code: int) -> None:
        """Has every rank end when this one does, with that exit code: MPI's end would wait for the others."""
        from mpi4py.run import set_abort_status

        set_abort_status(code)


def _meet_launcher(info: RankInfo, environ: MutableMapping[str, str]) -> None:
    """Takes the library of the program that started this process, and the cores that it has; ends with it."""
    daemon = launcher.daemon(info.table)
    if daemon and daemon[0] == os.getppid():
        die_with_parent()  # Open MPI's, killed by force, would leave its workers behind
    if "MPI4PY_MPIABI" not in environ:
        environ.setdefault(launcher.LIBRARY_VARIABLE, launcher.library(info.table, daemon and daemon[1]))
    if daemon and environ.get(KEEP_CORES_VARIABLE, "0") in ("", "0"):
        before, now = launcher.released_cores(daemon[0])
        if before != now and info.rank == 0:
            say_line(
                f"{info.launcher} had bound this worker to {before} of {now} cores; it uses all of them, so "
                f"that `threads` is what the study says ({KEEP_CORES_VARIABLE}=1 keeps the binding)"
            )


def _ending_all(world: Any) -> Any:
    """An exception hook: prints as usual, then ends every rank; `python -m mpi4py` has the same."""

    def end_all(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        sys.__excepthook__(kind, error, trace)
        sys.stderr.flush()
        time.sleep(FORWARDED_S)
        world.Abort(130 if issubclass(kind, KeyboardInterrupt) else 1)

    return end_all


def _remedy(info: RankInfo) -> str:
    if info.table in launcher.TABLES:
        return (
            f"mpi4py has loaded another MPI than the mpirun in use; name its library in "
            f"{launcher.LIBRARY_VARIABLE}, or use the mpirun that belongs to it"
        )
    return "use `srun --mpi=pmix` for Open MPI, `srun --mpi=pmi2` for MPICH"

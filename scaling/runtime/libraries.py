"""The libraries of a launch in addition to torch.distributed, from its start to its end."""

from __future__ import annotations

import os
from collections.abc import Iterable, MutableMapping
from typing import Any

from launchers import mpi as mpi_launcher
from launchers.rank_info import RankInfo
from scaling.process_group import Group
from scaling.runtime.address import Share, over_horovodrun
from scaling.runtime.horovod import HorovodWorld, forget_network
from scaling.runtime.mpi import MpiWorld
from scaling.runtime.workers import Workers, join_limit_s


class LaunchLibraries:
    """What this process has in addition to torch.distributed. Under mpirun MPI is started first of all.
    `info`: what the launcher says of this process; `environ`: the environment, which libraries read when they
    start. Raises LaunchError: the launcher is MPI's, and MPI cannot be used."""

    def __init__(self, info: RankInfo, environ: MutableMapping[str, str] = os.environ) -> None:
        self._info, self._environ = info, environ
        forget_network(info, environ)
        self._mpi = MpiWorld.start(info, environ) if info.table in mpi_launcher.TABLES else None
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
        if mpi_launcher.started_by_mpi(self._info, self._environ):
            workers.libraries["mpi"] = self._over_mpi

    def bring(self, libraries: Iterable[str]) -> None:
        """Starts what cells will need: what is wrong with it fails the launch, and no cell. Collective.
        Raises LaunchError: one of them cannot be used, or its world is not the launch's."""
        if "mpi" in libraries:
            self._started_mpi()
        if "horovod" in libraries and self._horovod is not None:
            self._horovod.start()

    def _over_mpi(self, outer: Group) -> Group:
        return self._started_mpi().group(outer)

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

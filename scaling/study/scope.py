"""Which launches one `scaling run` is concerned with, and how it starts them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Protocol

from launchers import horovodrun, local
from launchers.mpirun import MpirunLauncher
from launchers.slurm_steps import STYLES, SlurmLauncher
from scaling.errors import LaunchError
from scaling.store import ResultsFolder, RunRecord
from scaling.study.cells import ResolvedStudy
from scaling.study.launches import Launch, remaining_launches

SLURM = {f"slurm-{style}": style for style in STYLES}
HERE = ("local", "mpirun", "horovodrun")
LAUNCHERS = (*HERE, *SLURM)


class Launcher(Protocol):
    """How a launch's workers are started: `launchers.local`, or another with the same functions."""

    def command(self, spec: local.LaunchSpec, /) -> list[str]:
        """The command line that starts them; it ends when they have ended."""

    def environment(self, spec: local.LaunchSpec, /) -> dict[str, str]:
        """The variables that it adds."""

    def before_start(self) -> None:
        """To be called before each launch. Raises a ValueError where none can be started."""

    def why_not_started(self, log: str, /) -> str | None:
        """Why no worker began, from what a launch printed; None if it should be tried again."""


@dataclass(frozen=True)
class Scope:
    """Which launches are run, and how.

    Attributes:
        launcher: starts the workers.
        num_nodes: that it can use.
        world_size: the only one whose launches are run, beside others that run the rest; None: all of them.
    """

    launcher: Launcher = local
    num_nodes: int = 1
    world_size: int | None = None

    def records(self, folder: ResultsFolder) -> list[RunRecord]:
        """The runs that are this one's concern."""
        return [record for record in folder.runs() if self.includes(int(record.cell["world_size"]))]

    def launches(self, folder: ResultsFolder, study: ResolvedStudy) -> list[Launch]:
        """What is left of them."""
        return [one for one in remaining_launches(folder, study) if self.includes(one.settings.world_size)]

    def includes(self, world_size: int) -> bool:
        """Whether launches of that size are run."""
        return self.world_size in (None, world_size)

    def require_cells(self, study: ResolvedStudy) -> None:
        """Refuses a world size that the study does not have.

        Raises:
            LaunchError: naming those it has.
        """
        sizes = sorted({cell.world_size for cell in study.cells.values()})
        if self.world_size is not None and self.world_size not in sizes:
            raise LaunchError(
                f"study {study.name!r} has no cell of world size {self.world_size}; it has {sizes}"
            )

    @contextmanager
    def lock(self, folder: ResultsFolder) -> Iterator[None]:
        """Keeps others away from the folder, or from the one world size in it.

        Raises:
            StoreError: somebody else works there.
        """
        with ExitStack() as locks:
            locks.enter_context(folder.lock(shared=self.world_size is not None))
            if self.world_size is not None:
                locks.enter_context(folder.lock(f".{self.world_size}"))
            yield


EVERYTHING_HERE = Scope()


def scope_for(
    launcher: str, workers_per_node: int | None, world_size: int | None, environ: Mapping[str, str]
) -> Scope:
    """The scope of a command line.

    Args:
        launcher: one of LAUNCHERS.
        workers_per_node: at most, of a Slurm launcher; None: the job's GPUs.
        world_size: the only one to be run, or None.
        environ: the environment.

    Raises:
        LaunchError: there is no such launcher, or this is not the place for it.
    """
    if launcher not in LAUNCHERS:
        raise LaunchError(f"no launcher {launcher!r}; allowed: {', '.join(LAUNCHERS)}")
    if launcher in HERE and workers_per_node is not None:
        raise LaunchError(f"--workers-per-node is for the launchers of Slurm; {launcher} has one node")
    try:
        if launcher == "mpirun":
            return Scope(MpirunLauncher.find(), world_size=world_size)
        if launcher in HERE:
            return Scope(horovodrun if launcher == "horovodrun" else local, world_size=world_size)
        slurm = SlurmLauncher.from_env(SLURM[launcher], environ, workers_per_node)
    except ValueError as error:
        raise LaunchError(str(error)) from error
    return Scope(slurm, slurm.num_nodes, world_size)

"""Which launches one `scaling run` is concerned with, and how it starts them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field

from launchers.base import Launcher, LaunchSpec, join_timeout_s
from launchers.local import LocalLauncher
from launchers.registry import launcher_class
from scaling.errors import LaunchError
from scaling.store import ResultsFolder, RunRecord
from scaling.study.cell import ResolvedStudy
from scaling.study.launches import Launch, remaining_launches


@dataclass(frozen=True)
class Scope:
    """Which launches are run, and how. `world_size`: the only one whose launches are run, while others run
    the rest (None: all of them)."""

    launcher: Launcher = field(default_factory=LocalLauncher)
    world_size: int | None = None

    def records(self, folder: ResultsFolder) -> list[RunRecord]:
        """The runs that are this one's concern."""
        return [record for record in folder.runs() if self.includes(int(record.cell["world_size"]))]

    def launches(self, folder: ResultsFolder, study: ResolvedStudy) -> list[Launch]:
        too_large = self.too_large(study)
        return [
            launch
            for launch in remaining_launches(folder, study)
            if self.includes(size := launch.settings.world_size) and size not in too_large
        ]

    def too_large(self, study: ResolvedStudy) -> dict[int, str]:
        """The study's world sizes that the launcher cannot start here, with why, where that is no failure.
        Raises LaunchError: it can start none of them."""
        if not self.launcher.leaves_the_rest:
            return {}
        sizes = {cell.world_size for cell in study.cells.values() if self.includes(cell.world_size)}
        reasons = {}
        for size in sorted(sizes):
            try:
                self.launcher.command(LaunchSpec(size, 1, "", []))
            except ValueError as error:
                reasons[size] = str(error)
        if sizes and len(reasons) == len(sizes):
            raise LaunchError(next(iter(reasons.values())))
        return reasons

    def left_out(self, folder: ResultsFolder, study: ResolvedStudy) -> list[str]:
        """A line for each world size of which runs stay planned, since it cannot be started here."""
        planned = [record.cell["world_size"] for record in self.records(folder) if record.state == "planned"]
        return [
            f"{count} run{'s' if count > 1 else ''} with {size} workers stay planned: {why}"
            for size, why in self.too_large(study).items()
            if (count := planned.count(size))
        ]

    def includes(self, world_size: int) -> bool:
        return self.world_size in (None, world_size)

    def require_cells(self, study: ResolvedStudy) -> None:
        """Refuses a world size that the study does not have. Raises LaunchError: naming those it has."""
        sizes = sorted({cell.world_size for cell in study.cells.values()})
        if self.world_size is not None and self.world_size not in sizes:
            raise LaunchError(
                f"study {study.name!r} has no cell of world size {self.world_size}; it has {sizes}"
            )

    @contextmanager
    def lock(self, folder: ResultsFolder) -> Iterator[None]:
        """Keeps others away from the folder, or from the one world size in it. Raises StoreError: somebody
        else works there."""
        with ExitStack() as locks:
            locks.enter_context(folder.lock(shared=self.world_size is not None))
            if self.world_size is not None:
                locks.enter_context(folder.lock(f".{self.world_size}"))
            yield


EVERYTHING_HERE = Scope()


def scope_for(
    launcher: str, workers_per_node: int | None, world_size: int | None, environ: Mapping[str, str]
) -> Scope:
    """The scope of a command line. `launcher`: a name that `launchers.registry` knows, or module:Class;
    `workers_per_node`: at most, of a Slurm launcher (None: the job's GPUs); `world_size`: the only one to be
    run, or None. Raises LaunchError: there is no such launcher, or this is not the place for it."""
    try:
        join_timeout_s(environ)
        rank_info = launcher_class(launcher).from_environment(environ, workers_per_node)
    except ValueError as error:
        raise LaunchError(str(error)) from error
    return Scope(rank_info, world_size)

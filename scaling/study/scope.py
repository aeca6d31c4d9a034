"""Which launches one `scaling run` is concerned with, how it starts them, and which cells they can run."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace

from launchers.base import Launcher, LaunchSpec, join_timeout_s
from launchers.local import LocalLauncher
from launchers.registry import launcher_class
from scaling.aggregators.registry import create as create_aggregator
from scaling.errors import LaunchError
from scaling.process_group.base import HOW_TO_BRING
from scaling.store import ResultsFolder, RunRecord
from scaling.study.cell import AnyCell, Cell, ResolvedStudy
from scaling.study.launches import Launch, remaining_launches


@dataclass(frozen=True)
class Scope:
    """Which launches are run, and how; with `world_size` those alone, while others run the rest."""

    launcher: Launcher = field(default_factory=LocalLauncher)
    world_size: int | None = None

    def records(self, folder: ResultsFolder) -> list[RunRecord]:
        return [record for record in folder.runs() if self.includes(int(record.cell["world_size"]))]

    def launches(self, folder: ResultsFolder, study: ResolvedStudy) -> list[Launch]:
        too_large = self.too_large(study)
        return [
            launch
            for launch in remaining_launches(folder, study)
            if self.includes(size := launch.settings.world_size) and size not in too_large
        ]

    def too_large(self, study: ResolvedStudy) -> dict[int, str]:
        """The world sizes that cannot be started here, with why. Raises LaunchError: there is no other."""
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
        """Keeps others away from the folder, or from its one world size. Raises StoreError."""
        with ExitStack() as locks:
            locks.enter_context(folder.lock(shared=self.world_size is not None))
            if self.world_size is not None:
                locks.enter_context(folder.lock(f".{self.world_size}"))
            yield


EVERYTHING_HERE = Scope()


def scope_for(
    launcher: str, workers_per_node: int | None, world_size: int | None, environ: Mapping[str, str]
) -> Scope:
    """The scope of a command line: a launcher's name or module:Class, workers per node (None: the job's
    GPUs), one world size or None. Raises LaunchError: there is no such launcher here."""
    try:
        join_timeout_s(environ)
        rank_info = launcher_class(launcher).from_environment(environ, workers_per_node)
    except ValueError as error:
        raise LaunchError(str(error)) from error
    return Scope(rank_info, world_size)


def libraries_of(cells: Iterable[AnyCell]) -> set[str]:
    """The libraries that the cells' aggregators delegate their messages to."""
    return {library for cell in cells if (library := _library(cell)) is not None}


def _library(cell: AnyCell) -> str | None:
    if not isinstance(cell, Cell):
        return None
    return create_aggregator(cell.aggregator, cell.aggregator_parameters).library


@dataclass(frozen=True)
class RunnableStudy:
    """A study as one launch can run it."""

    study: ResolvedStudy  # without the cells whose library the launch lacks
    lacking: dict[str, str]  # id of each of those that are this launch's concern -> library

    def record_missing_libraries(self, folder: ResultsFolder) -> list[str]:
        """Writes to the runs that stay planned why they do; returns a line for each library."""
        left_out: dict[str, list[str]] = {}
        for record in folder.runs():
            library = self.lacking.get(record.cell_id)
            if library is None or record.state != "planned":
                continue
            left_out.setdefault(library, []).append(record.cell["aggregator"])
            reason = f"the launch lacks {library}: {HOW_TO_BRING[library]}"
            if record.reason != reason:
                record.reason = reason
                folder.write_run(record)
        return [_line(library, names) for library, names in left_out.items()]


def _line(library: str, aggregators: list[str]) -> str:
    """`2 runs of mpi stay planned, since this launch lacks mpi: it needs ...`."""
    names = ", ".join(sorted(set(aggregators)))
    runs = f"{len(aggregators)} runs of {names} stay" if len(aggregators) > 1 else f"1 run of {names} stays"
    return f"{runs} planned, since this launch lacks {library}: {HOW_TO_BRING[library]}"


def runnable(study: ResolvedStudy, *, by_mpi: bool, world_size: int | None = None) -> RunnableStudy:
    """Leaves out what needs a library that the launch lacks. Raises LaunchError: nothing would be left."""
    missing = set() if by_mpi else {"mpi"}
    if importlib.util.find_spec("horovod") is None:
        missing.add("horovod")
    libraries = {key: _library(cell) for key, cell in study.cells.items()}
    lacking = {key: library for key, library in libraries.items() if library in missing and library}
    rest = replace(study, cells={key: cell for key, cell in study.cells.items() if key not in lacking})
    of_launch = [key for key, cell in study.cells.items() if world_size in (None, cell.world_size)]
    first = next((key for key in of_launch if key in lacking), None)
    if first is not None and all(key in lacking for key in of_launch):
        cell = study.cells[first]
        assert isinstance(cell, Cell)
        raise LaunchError(
            f"{study.name}: aggregator {cell.aggregator_label!r} cannot run in this launch: "
            f"{HOW_TO_BRING[lacking[first]]}; or leave it out"
        )
    return RunnableStudy(rest, {key: lacking[key] for key in of_launch if key in lacking})

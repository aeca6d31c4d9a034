"""Which cells of a study a launch can run: their aggregators need no library, or one that it has."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterable
from dataclasses import dataclass, replace

from scaling.aggregators.registry import create as create_aggregator
from scaling.errors import LaunchError
from scaling.process_group.base import HOW_TO_BRING
from scaling.store import ResultsFolder
from scaling.study.cell import AnyCell, Cell, ResolvedStudy


def libraries_of(cells: Iterable[AnyCell]) -> set[str]:
    """The libraries that the cells' aggregators delegate their messages to."""
    return {library for cell in cells if (library := _library(cell)) is not None}


def _library(cell: AnyCell) -> str | None:
    if not isinstance(cell, Cell):
        return None
    return create_aggregator(cell.aggregator, cell.aggregator_parameters).library


@dataclass(frozen=True)
class RunnableStudy:
    """A study as one launch can run it. `study`: without the cells whose library the launch lacks; `lacking`:
    the library of each of those that are this launch's concern, by the cell's identity."""

    study: ResolvedStudy
    lacking: dict[str, str]

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
    """Leaves out what would fail cell by cell. `by_mpi`: the workers are started by MPI; `world_size`: the
    only one that this launch is concerned with (None: all). Raises LaunchError: nothing would be left to run;
    it names an aggregator and what to do."""
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

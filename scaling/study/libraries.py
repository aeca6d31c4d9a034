"""Whether a launch can have the libraries that a study's aggregators are carried by."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterable

from scaling.aggregators.registry import create as create_aggregator
from scaling.errors import LaunchError
from scaling.process_group.base import HOW_TO_BRING
from scaling.study.cells import AnyCell, Cell, ResolvedStudy


def libraries_of(cells: Iterable[AnyCell]) -> set[str]:
    """The libraries that the cells' aggregators are carried by."""
    return {library for cell in cells if isinstance(cell, Cell) and (library := _library(cell)) is not None}


def _library(cell: Cell) -> str | None:
    return create_aggregator(cell.aggregator, cell.aggregator_parameters).library


def check_libraries(study: ResolvedStudy, *, by_mpi: bool) -> None:
    """Refuses a study before its first launch rather than cell by cell.

    Args:
        study: all its cells.
        by_mpi: the workers are started by MPI.

    Raises:
        LaunchError: naming the aggregator and what to do.
    """
    named = {cell.aggregator_label: cell for cell in study.trained}
    for label, cell in named.items():
        library = _library(cell)
        missing = (library == "mpi" and not by_mpi) or (
            library == "horovod" and importlib.util.find_spec("horovod") is None
        )
        if library is not None and missing:
            raise LaunchError(
                f"{study.name}: aggregator {label!r} cannot run in this launch: {HOW_TO_BRING[library]}; "
                "or leave it out"
            )

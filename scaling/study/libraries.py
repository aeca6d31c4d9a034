"""Whether a launch can have the libraries that a study's aggregators are carried by."""

from __future__ import annotations

import importlib.util

from scaling.aggregators.registry import create as create_aggregator
from scaling.errors import LaunchError
from scaling.process_group.base import HOW_TO_BRING
from scaling.study.cells import Cell, ResolvedStudy


def check_libraries(study: ResolvedStudy, *, by_mpi: bool) -> None:
    """Refuses a study before its first launch rather than cell by cell.

    Args:
        study: all its cells.
        by_mpi: the workers are started by MPI.

    Raises:
        LaunchError: naming the aggregator and what to do.
    """
    cells = [cell for cell in study.cells.values() if isinstance(cell, Cell)]
    named = {cell.aggregator_label: cell for cell in cells}
    for label, cell in named.items():
        library = create_aggregator(cell.aggregator, cell.aggregator_parameters).library
        missing = (library == "mpi" and not by_mpi) or (
            library == "horovod" and importlib.util.find_spec("horovod") is None
        )
        if library is not None and missing:
            raise LaunchError(
                f"{study.name}: aggregator {label!r} cannot run in this launch: {HOW_TO_BRING[library]}; "
                "or leave it out"
            )

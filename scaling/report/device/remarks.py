"""What stands below the tables of experiments: no GPU, a busy machine, points that are not done."""

from __future__ import annotations

from collections.abc import Iterator

from scaling.report.device.results import Results

LOAD = "load_average"
"""The fact with the host's load before a cell (`scaling.study.kinds.device`)."""

BUSY = 1.3
"""A load of so many processes a core is more than the study's own."""

EMPTY_COLUMNS = "the columns of the GPU are empty"
NO_ROWS = "there are no rows and no lines of the GPU"
"""Where the devices of a table are rows."""


def remarks(results: Results, empty: str = EMPTY_COLUMNS) -> list[str]:
    """What stands below a table: devices that are missing, a busy machine, points that are not done."""
    return [*missing_remark(results, empty), *_busy(results), *_not_done(results)]


def missing_remark(results: Results, empty: str = EMPTY_COLUMNS) -> Iterator[str]:
    """That there was no GPU, if the study asked for one, and what is empty therefore."""
    if "cuda" in results.missing:
        yield f"This machine has no GPU that torch can use: {empty}."


def no_gpu(results: Results, empty: str = EMPTY_COLUMNS) -> str:
    """Why nothing is known of a GPU."""
    return " ".join(missing_remark(results, empty)) or "The study did not ask for a GPU."


def _busy(results: Results) -> Iterator[str]:
    """That others worked on the machine's cores, as its load average told before each cell."""
    loads = [float(load) for cell in results.cells if (load := cell.fact(LOAD)) is not None]
    if results.num_cores and loads and max(loads) > BUSY * results.num_cores:
        yield (
            f"The machine was busy: its load average reached {max(loads):.1f} on {results.num_cores} cores. "
            "Times on the CPU, above all with several threads, are those of a machine that is shared."
        )


def _not_done(results: Results) -> Iterator[str]:
    num = sum(not cell.is_over for cell in results.cells)
    if num:
        yield f"{num} of {len(results.cells)} points are not measured yet, or not all of their repeats."

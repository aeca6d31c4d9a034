"""Results in the formats of other tools: lines of text or files, made of raw samples, one format a module."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from scaling.analysis.samples import CellResult
from scaling.report.exports.chrome import chrome_trace
from scaling.report.exports.extra_p import extra_p
from scaling.report.exports.logs import event_files, mllog
from scaling.report.exports.tidy_csv import tidy_csv
from scaling.store import ResultsFolder

FORMATS: dict[str, Callable[[ResultsFolder, Sequence[CellResult]], Iterator[str]]] = {
    "chrome": chrome_trace,
    "mllog": mllog,
    "csv": tidy_csv,
    "extra-p": extra_p,
}
"""Name -> a function from a folder and some of its cells to the lines of the file."""

FILES: dict[str, Callable[[Sequence[CellResult]], Iterator[tuple[str, bytes]]]] = {"tensorboard": event_files}
"""Name -> a function from some cells to paths below a folder, each with its content."""

"""Tables, figures and a page from a results folder. Never imports torch: reports need no GPU machine."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from scaling.analysis.summary import summary_table
from scaling.report.status import status_table
from scaling.store import ResultsFolder

if TYPE_CHECKING:
    from scaling.report.write import WrittenReport

__all__ = ["status_table", "summary_table", "write_report"]


def write_report(
    folder: ResultsFolder,
    *,
    png: bool = False,
    paper: bool = False,
    titles: bool = False,
    everything: bool = False,
    before_page: Callable[[], None] = lambda: None,
) -> WrittenReport:
    """Makes summary.csv, budget.csv, figures/ and report.html anew from the raw samples, of transfer cells
    transfers.csv and probed.yaml too. `png`, `paper` (with `titles`): figures in these forms; `everything`:
    of all groups of a very large study; `before_page` is called when all but the page is written. Returns
    report.html's path, the summary and the wall time. Raises StoreError: there is no such folder, samples are
    damaged, or a file cannot be written."""
    # matplotlib takes a while: not for callers that want the status
    from scaling.report.figures.draw import Formats
    from scaling.report.write import write_all

    return write_all(folder, Formats(png, paper, titles, everything), before_page)

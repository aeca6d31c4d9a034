"""Tables, figures and a page from a results folder. Never imports torch: reports need no GPU machine."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from scaling.analysis.summary import summary_table
from scaling.report.status import status_table
from scaling.store import ResultsFolder

if TYPE_CHECKING:
    from scaling.report.write import Report

__all__ = ["status_table", "summary_table", "write_report"]


def write_report(
    folder: ResultsFolder,
    *,
    png: bool = False,
    paper: bool = False,
    titles: bool = False,
    everything: bool = False,
    before_page: Callable[[], None] = lambda: None,
) -> Report:
    """Makes summary.csv, budget.csv, figures/ and report.html anew from the raw samples; where there are
    transfer cells also transfers.csv and the machine file probed.yaml.

    `png` and `paper`: figures as PNG too, and for a column of a paper in figures/paper, there with `titles`;
    `everything`: also figures of all groups of a study of very many cells. `before_page` is called when all
    but the page is written, for who records the time that it took. Returns the path of report.html, the
    summary and the wall time. Raises StoreError: there is no such folder, samples of a done run are missing
    or damaged, or a file cannot be written."""
    # matplotlib takes a while: not for callers that want the status
    from scaling.report.figures.draw import Formats
    from scaling.report.write import write_all

    return write_all(folder, Formats(png, paper, titles, everything), before_page)

"""Writes all that is made from a results folder."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from scaling.report.budgets import step_table
from scaling.report.columns import to_rows
from scaling.report.figures import draw_figures
from scaling.report.html import render_page
from scaling.report.learning import epoch_table
from scaling.report.samples import read_cells
from scaling.report.tables import build_table, study_name, table_csv
from scaling.report.transfer_figures import write_transfers
from scaling.report.transfer_tables import page_tables, transfer_sentences
from scaling.report.transfers import TransferResult, read_transfers, transfer_rows
from scaling.report.wall_time import WallTime, wall_time
from scaling.store import ResultsFolder

STEP_DIGITS = 9
"""Significant ones in budget.csv, nanoseconds of a step, and in convergence.csv."""


@dataclass(frozen=True)
class Report:
    """What was made of a results folder.

    Attributes:
        page: the path of report.html.
        table: the summary, as in summary.csv.
        transfers: its transfer cells, as in transfers.csv.
        times: how the wall time divided; None where that was not recorded.
    """

    page: Path
    table: pd.DataFrame
    transfers: list[TransferResult]
    times: WallTime | None

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        times = self.times.as_dict() if self.times else None
        return {
            "report": str(self.page),
            "wall_time": times,
            "cells": to_rows(self.table),
            "transfers": transfer_rows(self.transfers),
        }


def write_all(folder: ResultsFolder) -> Report:
    """See `scaling.report.write_report`."""
    folder.require()
    cells = read_cells(folder)
    table, times = build_table(study_name(folder), cells), wall_time(folder.launch_times())
    folder.write_text("summary.csv", table_csv(table))
    folder.write_text("budget.csv", table_csv(step_table(cells), digits=STEP_DIGITS))
    if any(cell.trainings for cell in cells):
        folder.write_text("convergence.csv", table_csv(epoch_table(cells), digits=STEP_DIGITS))
    figures = draw_figures(folder, to_rows(table), {cell.cell_id: cell for cell in cells})
    transfers = read_transfers(folder)
    figures += write_transfers(folder, study_name(folder), transfers)
    # A folder without an environment gets a page that says so; a damaged one is an error.
    environment = folder.environment() if (folder.path / "environment.json").exists() else None
    page = render_page(
        folder.study(),
        environment,
        table,
        figures,
        times,
        more_tables=page_tables(transfers),
        more_findings=list(transfer_sentences(transfers)),
    )
    return Report(folder.write_text("report.html", page), table, transfers, times)

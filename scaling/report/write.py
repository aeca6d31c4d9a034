"""Writes all that is made from a results folder."""

from __future__ import annotations

from pathlib import Path

from scaling.report.columns import to_rows
from scaling.report.figures import draw_figures
from scaling.report.html import render_page
from scaling.report.samples import read_cells
from scaling.report.tables import build_table, study_name, table_csv
from scaling.store import ResultsFolder


def write_all(folder: ResultsFolder) -> Path:
    """See `scaling.report.write_report`."""
    folder.require()
    cells = read_cells(folder)
    table = build_table(study_name(folder), cells)
    folder.write_text("summary.csv", table_csv(table))
    figures = draw_figures(folder, to_rows(table), {cell.cell_id: cell for cell in cells})
    # A folder without an environment gets a page that says so; a damaged one is an error.
    environment = folder.environment() if (folder.path / "environment.json").exists() else None
    page = render_page(folder.study(), environment, table, figures)
    return folder.write_text("report.html", page)

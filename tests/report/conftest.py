"""Results folders made by hand, read back."""

import io

from rich.console import Console

from scaling.analysis.columns import to_rows
from scaling.analysis.groups import group_rows
from scaling.analysis.samples import read_cells
from scaling.analysis.summary import build_table
from tests.made_studies import epoch_line, line, make_study, split_line, study, timed

__all__ = ["epoch_line", "line", "make_study", "split_line", "study", "timed"]


def cells_of(study):
    """By id."""
    return {cell.cell_id: cell for cell in read_cells(study.folder)}


def rows_of(study):
    return to_rows(build_table("by-hand", [*cells_of(study).values()]))


def groups_of(study):
    return group_rows(rows_of(study))


def printed(tables):
    """Tables as a terminal of 80 columns shows them."""
    console = Console(width=80, record=True, file=io.StringIO())
    for table in tables:
        console.print(table)
    return console.export_text()

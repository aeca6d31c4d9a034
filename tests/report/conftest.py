"""Results folders made by hand, read back."""

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

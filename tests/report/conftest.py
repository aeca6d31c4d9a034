"""Results folders made by hand."""

from tests.made_studies import epoch_line, line, make_study, split_line, study

__all__ = ["epoch_line", "line", "make_study", "split_line", "study"]

"""From raw samples to tables, comparisons, recommendations and findings, without torch, figures or text.

`summary_table` reads a results folder; `scaling.report` shows what it gives.
"""

from scaling.analysis.summary import summary_table

__all__ = ["summary_table"]

"""From raw samples to tables, comparisons, recommendations and findings. Without torch, drawings and prose.

`summary_table` and `status_table` read a results folder; `scaling.report` shows what they give.
"""

from scaling.analysis.status import status_table
from scaling.analysis.summary import summary_table

__all__ = ["status_table", "summary_table"]

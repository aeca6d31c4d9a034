"""The committed results, measured before there were split iterations, still give tables that close."""

from pathlib import Path

import pytest

from scaling.analysis.columns import BUDGET_COLUMNS, to_rows
from scaling.analysis.summary import summary_table
from scaling.store import ResultsFolder

REFERENCE = Path(__file__).parents[2] / "results" / "reference" / "mnist-4xh200"


@pytest.fixture(scope="module")
def rows():
    """The summary of results of the old format."""
    return [row for row in to_rows(summary_table(ResultsFolder(REFERENCE))) if row["kind"] == "iteration"]


def test_budget_of_every_cell_sums_to_its_step(rows):
    assert len(rows) >= 20
    for row in rows:
        parts = [row[name] for name in BUDGET_COLUMNS if name not in ("hidden_comm_s", "hidden_h2d_s")]
        total_s = sum(part for part in parts if part is not None)
        assert total_s == pytest.approx(row["profiled_iteration_s"], rel=1e-9)
        assert row["profiled_iteration_s"] == pytest.approx(row["typical_iteration_s"], rel=0.05)


def test_nothing_is_hidden_and_neither_profiling_overhead_nor_skew_is_known(rows):
    exchanging = [row for row in rows if row["exposed_comm_s"] is not None]
    assert {row["aggregator"] for row in exchanging} >= {"all_reduce", "ring", "tree"}
    for row in exchanging:
        assert row["hidden_comm_s"] == 0.0
        assert (row["profiling_overhead_s"], row["skew_s"], row["noise_floor"]) == (None, None, None)
        assert row["exposed_check"].kind in ("exposed_times_agree", "exposed_times_unresolved")

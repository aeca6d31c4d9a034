"""A cell's budget: which steps, which rank, and that it closes, in committed results too."""

import csv
import io
import random
from pathlib import Path

import numpy as np
import pytest

from scaling.analysis.budgets import EXPOSED, STEP_COLUMNS, cell_budget, middle_half, step_table
from scaling.analysis.columns import BUDGET_COLUMNS, to_rows
from scaling.analysis.samples import read_cells
from scaling.analysis.summary import summary_table, table_csv
from scaling.store import ResultsFolder
from tests.made_studies import row_of

PARTS = [name for name in BUDGET_COLUMNS if name not in ("hidden_comm_s", "hidden_h2d_s")]


def test_committed_results_without_split_iterations_give_tables_that_close():
    """Nothing is hidden there, and neither profiling overhead nor skew is known."""
    folder = Path(__file__).parents[2] / "results" / "reference" / "mnist-4xh200"
    rows = [row for row in to_rows(summary_table(ResultsFolder(folder))) if row["kind"] == "iteration"]
    assert len(rows) >= 20
    for row in rows:
        total_s = sum(row[name] for name in PARTS if row[name] is not None)
        assert total_s == pytest.approx(row["profiled_iteration_s"], rel=1e-9)
        assert row["profiled_iteration_s"] == pytest.approx(row["typical_iteration_s"], rel=0.05)
    exchanging = [row for row in rows if row["exposed_comm_s"] is not None]
    assert {row["aggregator"] for row in exchanging} >= {"all_reduce", "ring", "tree"}
    for row in exchanging:
        assert row["hidden_comm_s"] == 0.0
        assert (row["profiling_overhead_s"], row["skew_s"], row["noise_floor"]) == (None, None, None)
        assert row["exposed_check"].kind in ("exposed_times_agree", "exposed_times_unresolved")


@pytest.mark.parametrize(("values", "kept"), [
    ([5.0], [0]), ([3.0, 1.0, 2.0], [1, 2, 0]), ([4.0, 1.0, 3.0, 2.0], [3, 2]), (range(10), range(2, 8)),
])  # fmt: skip
def test_middle_half_drops_a_quarter_at_each_end(values, kept):
    assert middle_half(np.array(values, dtype=float)).tolist() == list(kept)


def test_budget_is_the_mean_over_the_middle_half_of_split_steps(study, split_line):
    # By length: 1, 2, 4, 9; the middle half is 2 and 4.
    lines = [split_line(i, s, ("forward", "main", 0.0, s / 2)) for i, s in enumerate((9.0, 2.0, 1.0, 4.0), 9)]
    study.add_split([[1.0, 2.0, 4.0, 100.0]], [lines])
    row = row_of(study)
    assert (row["profiled_iteration_s"], row["forward_s"], row["unattributed_s"]) == (3.0, 1.5, 1.5)
    # Of the unprofiled ones the middle half is 2 and 4 as well: profiling cost nothing.
    assert (row["profiling_overhead_s"], row["typical_iteration_s"]) == (0.0, 3.0)


def test_profiling_overhead_is_signed(study, split_line):
    study.add_split([[2.0]], [[split_line(1, 1.5, ("forward", "main", 0.0, 1.0))]])
    assert row_of(study)["profiling_overhead_s"] == -0.5


def test_profiling_overhead_is_unknown_where_every_step_was_marked(study, line):
    study.add([[[line(0, 1.0, forward_s=0.5)]]])
    assert row_of(study)["profiling_overhead_s"] is None


def busy_ranks(split_line, seed=0, world_size=4, steps=20):
    """Split lines of an overlapped step with jitter: [rank][line]."""
    generator = random.Random(seed)
    ranks = [[] for _ in range(world_size)]
    for number in range(steps):
        ready = [generator.uniform(1.0, 1.3) for _ in range(world_size)]
        end = max(ready) + 0.8
        for rank, own in enumerate(ready):
            spans = [
                ("forward", "main", 0.0, 0.6), ("backward", "main", 0.6, own + 0.2),
                ("communicate", "comm", own, end), ("update", "main", end, end + 0.1),
            ]  # fmt: skip
            ranks[rank].append(split_line(100 + number, end + 0.15, *spans, start_s=3.0 * number))
    return ranks


def test_columns_sum_to_the_split_iteration(study, split_line):
    study.add_split([[2.0] * 5] * 3, busy_ranks(split_line), aggregator="ring", step="overlapped")
    row = row_of(study)
    assert sum(row[name] or 0 for name in PARTS) == pytest.approx(row["profiled_iteration_s"], rel=1e-12)
    assert row["exchange_overhead_s"] == pytest.approx(sum(row[name] or 0 for name in EXPOSED))
    assert row["hidden_comm_s"] == pytest.approx(0.2)
    assert 0.0 < row["skew_s"] < 0.3


def test_parts_that_the_cell_never_had_do_not_exist(study, split_line):
    study.add_split([[1.0]], [[split_line(1, 1.0, ("forward", "main", 0.0, 0.5))]])
    row = row_of(study)
    assert {name for name in BUDGET_COLUMNS if row[name] is not None} == {"forward_s", "unattributed_s"}
    assert (row["exchange_overhead_s"], row["skew_s"]) == (None, None)


def test_phase_of_another_rank_is_zero_on_the_one_that_is_told(study, split_line):
    idle = [split_line(1, 1.0, ("wait", "main", 0.1, 0.9))]
    busy = [split_line(1, 1.0, ("reduce", "main", 0.1, 0.9))]
    study.add_split([[1.0]], [idle, busy], aggregator="host_serial")
    row = row_of(study)
    assert (row["reduce_s"], row["wait_s"]) == (pytest.approx(0.8), 0.0)


@pytest.mark.parametrize("is_known", [True, False])
def test_waiting_exists_where_arrivals_are_known(study, split_line, is_known):
    ranks = busy_ranks(split_line)
    if not is_known:
        ranks = [[{**line, "start_s": None} for line in lines] for lines in ranks]
    study.add_split([[1.0]], ranks, aggregator="ring")
    row = row_of(study)
    assert (row["wait_s"] is not None, row["skew_s"] is not None) == (is_known, is_known)
    assert row["exposed_comm_s"] > 0


def test_skew_is_the_median_of_the_last_arrival_after_the_first(study, split_line):
    def line(number, arrives):
        exchanges = [("communicate", "main", arrives, 8.0), ("communicate", "main", 8.0, 9.0)]
        return split_line(number, 9.0, *exchanges, start_s=20.0 * number)

    def rank(*arrivals):
        return [line(number, arrives) for number, arrives in enumerate(arrivals, 5)]

    study.add_split([[9.0]], [rank(1.0, 1.0, 1.0), rank(2.0, 5.0, 1.5)], aggregator="ring")
    assert row_of(study)["skew_s"] == pytest.approx(1.0)


def test_straggler_makes_the_others_wait_and_shows_as_skew(study, split_line):
    late = [0.0, 0.0, 0.3, 0.0]
    ranks = [
        [split_line(i, 1.5, ("communicate", "main", 0.5 + one, 1.2), start_s=10.0 * i) for i in range(5, 10)]
        for one in late
    ]
    study.add_split([[1.5]], ranks, aggregator="ring")
    waits = step_table(read_cells(study.folder)).groupby("rank")["wait_s"].mean()
    assert waits.tolist() == pytest.approx([0.3, 0.3, 0.0, 0.3])
    row = row_of(study)
    assert row["skew_s"] == pytest.approx(0.3)
    assert (row["wait_s"], row["exposed_comm_s"]) == pytest.approx((0.0, 0.4))


def test_cell_without_split_steps_has_no_budget(study):
    study.add_steps([[1.0, 2.0]])
    (cell,) = read_cells(study.folder)
    assert (cell_budget(cell.launches), row_of(study)["unattributed_s"]) == (None, None)
    assert len(step_table([cell])) == 0


def test_every_rank_and_split_step_has_a_line_that_closes(study, split_line):
    cell_id = study.add_split([[2.0]] * 2, busy_ranks(split_line, steps=3, world_size=2), aggregator="ring")
    text = table_csv(step_table(read_cells(study.folder)), digits=9)
    header, *_ = text.split("\r\n")
    assert header == ",".join(STEP_COLUMNS)
    rows = list(csv.DictReader(io.StringIO(text, newline="")))
    assert len(rows) == 2 * 2 * 3
    expected = {(cell_id, repeat, rank) for repeat in "01" for rank in "01"}
    assert {(row["cell_id"], row["repeat"], row["rank"]) for row in rows} == expected
    assert [row["iteration"] for row in rows[:4]] == ["100", "100", "101", "101"]
    for row in rows:
        parts = [float(row[name]) for name in PARTS if row[name]]
        assert sum(parts) == pytest.approx(float(row["step_s"]), rel=1e-8)
        assert (row["encode_s"], row["hidden_h2d_s"]) == ("", "")
    assert any(float(row["arrived_after_first_s"]) > 0 for row in rows)

"""A cell's budget: which steps, which rank, that it closes; exposed time by spans and by a control arm."""

import csv
import io
import random
import re
from pathlib import Path

import numpy as np
import pytest

from scaling.analysis.budgets import EXPOSED, STEP_COLUMNS, cell_budget, middle_half, step_table
from scaling.analysis.columns import BUDGET_COLUMNS, columns, to_rows
from scaling.analysis.control import (
    COLUMNS_COMPARED,
    ControlPeers,
    control_labels,
    differences_of_launches,
    exposed_check,
)
from scaling.analysis.decisions import Difference
from scaling.analysis.samples import read_cells
from scaling.analysis.summary import summary_table, table_csv
from scaling.report.text import text_of
from scaling.store import ResultsFolder
from tests.made_studies import iteration, row_of, rows_of, split

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


def test_profiling_overhead_is_signed_and_unknown_where_every_step_was_marked(study, line, split_line):
    study.add_split([[2.0]], [[split_line(1, 1.5, ("forward", "main", 0.0, 1.0))]])
    study.add([[[line(0, 1.0, forward_s=0.5)]]])
    assert [row["profiling_overhead_s"] for row in rows_of(study)] == [-0.5, None]


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
    def rank(late_s):
        exchange = ("communicate", "main", 0.5 + late_s, 1.2)
        return [split_line(i, 1.5, exchange, start_s=10.0 * i) for i in range(5, 10)]

    study.add_split([[1.5]], [rank(late_s) for late_s in (0.0, 0.0, 0.3, 0.0)], aggregator="ring")
    waits = step_table(read_cells(study.folder)).groupby("rank")["wait_s"].mean()
    assert waits.tolist() == pytest.approx([0.3, 0.3, 0.0, 0.3])
    row = row_of(study)
    assert row["skew_s"] == pytest.approx(0.3)
    assert (row["wait_s"], row["exposed_comm_s"]) == pytest.approx((0.0, 0.4))


def test_cell_without_split_steps_has_no_budget(study):
    study.add_steps([[1.0, 2.0]])
    (cell,) = read_cells(study.folder)
    assert (cell_budget(cell.launches), row_of(study)["unattributed_s"]) == ({}, None)
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


@pytest.mark.parametrize(("label", "step", "expected"), [
    ("ring", "eager", ["none"]), ("all_reduce", "captured", ["none"]),
    ("all_reduce", "overlapped", ["no_op", "none"]),
    ("all_reduce(path=hook)", "overlapped", ["no_op(path=hook)", "none"]),
    ("ring(directions=2)", "overlapped", ["no_op(path=hook)", "none"]),
    ("none", "eager", []), ("no_op(path=hook)", "overlapped", []),
])  # fmt: skip
def test_control_arm_takes_the_path_of_the_arm(label, step, expected):
    name = label.partition("(")[0]
    assert control_labels({"aggregator": name, "aggregator_label": label, "step": step}) == expected


def by_difference(study, cell_id):
    rows = to_rows(summary_table(study.folder))
    return next(row["exposed_by_difference_s"] for row in rows if row["cell_id"] == cell_id)


OTHERS = [
    *({"world_size": 4}, {"input_placement": "pageable"}, {"step": "captured"}, {"peer_access": False}),
    *({"seed": 1}, {"memory_format": "channels_last"}, {"augmentation": "standard"}, {"batch": 32}),
    {"aa_replicate": 1},
]


@pytest.mark.parametrize(("step_s", "other", "difference_s"), [
    (1.25, {}, 0.25), (0.75, {}, -0.25), *((1.25, other, None) for other in OTHERS),
], ids=str)  # fmt: skip
def test_difference_is_to_the_cell_that_differs_in_the_aggregator_alone(study, step_s, other, difference_s):
    study.add_steps([[9.0]], world_size=4)
    study.add_steps([[1.0]], **{"world_size": 2, **other})
    assert by_difference(study, study.add_steps([[step_s]], aggregator="ring", world_size=2)) == difference_s


def test_overlapped_arm_is_controlled_on_its_path_at_its_bucket_size(study):
    def add(label, step_s, bucket_mb):
        cell = {"aggregator": label.partition("(")[0], "aggregator_label": label, "bucket_mb": bucket_mb}
        return study.add_steps([[step_s]], world_size=2, step="overlapped", **cell)

    add("none", 0.5, None)
    add("no_op", 0.75, 25.0)
    add("no_op(path=hook)", 0.875, 25.0)
    ddp, hook = add("all_reduce", 1.0, 25.0), add("ring", 1.0, 25.0)
    other_size = add("all_reduce", 1.0, 4.0)
    assert (by_difference(study, ddp), by_difference(study, hook)) == (0.25, 0.125)
    assert by_difference(study, other_size) == 0.5, "without a no_op of its bucket size, to none"


def test_control_arms_and_planned_ones_have_no_difference(study):
    none = study.add_steps([[1.0]], world_size=2)
    study.add(["planned"], world_size=4)
    ring = study.add_steps([[1.0]], aggregator="ring", world_size=4)
    assert (by_difference(study, none), by_difference(study, ring)) == (None, None)


def row(**values):
    """A row of the summary: nothing but these values and an iteration of 10 ms."""
    return {**dict.fromkeys(columns()), "aggregator": "none", "typical_iteration_s": 0.010, **values}


def arm(exposed_s, by_difference_s, **values):
    return row(exchange_overhead_s=exposed_s, exposed_by_difference_s=by_difference_s, **values)


def checked(cell, control, half_ratio=0.005, differing_s=None):
    """The check in words, of a difference that is known to within `half_ratio` of the iteration."""
    known = (None, None) if half_ratio is None else (half_ratio / 2, 1000.0)
    if differing_s is None:
        both = [name for name in COLUMNS_COMPARED if None not in (cell[name], control[name])]
        differing_s = {name: cell[name] - control[name] for name in both}
    return text_of(exposed_check(cell, control, Difference(0.0, *known), lambda: differing_s))


HOOK = {"aggregator": "no_op(path=hook)", "exchange_overhead_s": 0.3e-3}


class TestCheck:
    @pytest.mark.parametrize(("cell", "control", "how", "told"), [
        (arm(0.901e-3, 1.0e-3), row(), {}, r"agree \(within 10%\)"),
        (arm(0.899e-3, 1.0e-3), row(), {}, "(?!agree).*"),
        (arm(0.5e-3, 0.65e-3), row(), {"half_ratio": 0.02},
         r"agree \(within the scatter of their launches\)"),
        (arm(0.5e-3, 0.65e-3), row(), {"half_ratio": 0.01}, "(?!agree).*"),
        (arm(0.5e-3, 0.5e-3), row(), {"half_ratio": 0.33}, "not resolved: the launches scatter by 38.2%"),
        # One launch resolves what its A/A pairs tell, and names no cause.
        (arm(0.5e-3, 0.5e-3, noise_floor=0.33), row(), {"half_ratio": None},
         "not resolved: one launch tells the difference to within 33.0%"),
        (arm(0.5e-3, 0.5e-3), row(), {"half_ratio": None}, "not resolved: one launch and no A/A pair.*"),
        (arm(1.0e-3, 2.0e-3, noise_floor=0.01, backward_s=6e-3), row(backward_s=5e-3), {"half_ratio": None},
         ".*one launch shows no cause"),
        # A phase that the launches do not show is no cause.
        (arm(1.0e-3, 1.4e-3, backward_s=5.31e-3), row(backward_s=5.0e-3), {"differing_s": {}},
         ".*not explained"),
        (arm(1.0e-3, -0.5e-3), row(), {},
         "exchange by its spans 1.00 ms, by difference to no exchange -0.500 ms: not explained"),
    ])  # fmt: skip
    def test_times_agree_or_differ_or_are_not_resolved(self, cell, control, how, told):
        assert re.fullmatch(told, checked(cell, control, **how))

    def test_time_that_does_not_exist_is_not_checked(self):
        for cell in (arm(None, 1e-3), arm(1e-3, None)):
            assert exposed_check(cell, row(), Difference(0.0, 0.001, 9.0), dict) is None

    @pytest.mark.parametrize(("by_difference_ms", "of_arm", "of_control", "told"), [
        (1.4, {"backward_s": 5.31e-3, "forward_s": 2.05e-3, "update_s": 0.1e-3},
         {"backward_s": 5.0e-3, "forward_s": 2.0e-3, "update_s": 0.1e-3},
         "exchange by its spans 1.00 ms, by difference to no exchange 1.40 ms: backward takes 0.310 ms "
         "longer than in none: the exchange slows the computation"),
        (1.5, {"backward_s": 5.2e-3, "forward_s": 2.15e-3}, {"backward_s": 5.0e-3, "forward_s": 2.0e-3},
         "backward and forward together take 0.350 ms longer than in none: the exchange slows the "
         "computation"),
        (2.0, {"update_s": 1.1e-3}, {"update_s": 0.1e-3}, "update takes 1.00 ms longer than in none"),
        (0.5, {"backward_s": 4.6e-3}, {"backward_s": 5.0e-3}, "backward takes 0.400 ms shorter than in none"),
        (0.5, {"backward_s": 5.4e-3}, {"backward_s": 5.0e-3}, "not explained"),
        (1.5, {"unattributed_s": 0.6e-3}, {"unattributed_s": 0.1e-3},
         "0.500 ms more than in none are in no phase"),
        (1.0, {"exposed_s": 1.5e-3, "profiling_overhead_s": 0.6e-3}, {"profiling_overhead_s": 0.1e-3},
         "profiling costs 0.500 ms more than in none"),
        (1.5, {"profiling_overhead_s": 0.6e-3}, {"profiling_overhead_s": 0.1e-3}, "not explained"),
        (0.7, {"aggregator": "ring"}, HOOK,
         "0.300 ms of it are the path's own, which no_op(path=hook) has too"),
        (1.0, {"exposed_s": 0.7e-3}, HOOK, "not explained"),
        (2.0, {"backward_s": 5.3e-3}, {"backward_s": 5.0e-3},
         "not explained (what differs most: backward takes 0.300 ms longer than in none)"),
    ], ids=lambda value: value[:30] if isinstance(value, str) else "")  # fmt: skip
    def test_what_explains_half_of_the_difference_is_named(self, by_difference_ms, of_arm, of_control, told):
        values = {"exposed_s": 1e-3, "by_difference_s": by_difference_ms * 1e-3, **of_arm}
        assert checked(arm(**values), row(**of_control)).endswith(told)


class TestDifferencesOfLaunches:
    """Two launches, in which backward passes of all arms take 5 ms, as far as these agree."""

    def differences(self, study, slower_s, scatter_s):
        """Of the first of six arms, whose backward pass takes `slower_s` longer."""
        control = self.add(study, "none", [5e-3, 5.5e-3], scatter_s)
        arms = [
            self.add(study, f"arm-{index}", [5e-3 + more, 5.5e-3 + more], (-1) ** (index + 1) * scatter_s)
            for index, more in enumerate([slower_s, *[0.0] * 5])
        ]
        cells = read_cells(study.folder)
        by_id = {cell.cell_id: cell for cell in cells}
        return differences_of_launches(by_id[arms[0]], by_id[control], ControlPeers(cells))

    def add(self, study, label, launches, scatter_s):
        runs = []
        for backward_s, sign in zip(launches, (1, -1), strict=True):
            end = backward_s + sign * scatter_s
            lines = [iteration(0, end + 1e-3, profiled=False)]
            lines += [split(number, end + 1e-3, ("backward", "compute", 0.0, end)) for number in range(1, 5)]
            runs.append([lines] * 2)
        return study.add(runs, world_size=2, aggregator=label, aggregator_label=label)

    @pytest.mark.parametrize(("scatter_s", "expected"), [
        # With one degree of freedom of its own, a plain t would ask for 12.7 standard errors: 0.127 ms.
        (0.005e-3, {"backward_s": pytest.approx(0.1e-3)}), (0.2e-3, {}),
    ])  # fmt: skip
    def test_phase_is_found_with_its_seconds_where_both_launches_tell(self, study, scatter_s, expected):
        assert self.differences(study, 0.1e-3, scatter_s) == expected

    def test_one_common_launch_shows_nothing(self, study):
        control = study.add_steps([[1.0]], world_size=2)
        ring = study.add_steps([[1.25]], aggregator="ring", world_size=2)
        cells = {cell.cell_id: cell for cell in read_cells(study.folder)}
        assert differences_of_launches(cells[ring], cells[control], ControlPeers(cells.values())) == {}

"""The budgets as text, in the terminal and on the page."""

import re

import pytest

from scaling.analysis.summary import summary_table
from scaling.measure.budget import PARTS
from scaling.report import write_report
from scaling.report.budget_table import budget_table
from scaling.report.figures.budget import GROUPED, answer_bars
from scaling.report.page_tables import page_tables
from scaling.report.terminal import render_tables
from tests.report.conftest import groups_of, printed


def shown(study):
    return printed(render_tables(summary_table(study.folder)))


def add(study, split_line, aggregator, size, exposed_s, **cell):
    """An overlapped step of 4 ms and an exchange that ends so much later."""
    spans = [("forward", "main", 0.0, 1e-3), ("backward", "main", 1e-3, 4e-3)]
    if exposed_s:
        spans.append(("communicate", "comm", 3e-3, 4e-3 + exposed_s))
    step_s = 4e-3 + exposed_s
    ranks = [[split_line(9, step_s, *spans)]] * size
    step = cell.pop("step", "captured")
    return study.add_split([[step_s]] * 2, ranks, aggregator=aggregator, step=step, **cell)


@pytest.fixture
def filled(study, split_line):
    """A control arm and three aggregators on two and four workers."""
    for size in (2, 4):
        for aggregator, exposed_s in (("none", 0.0), ("all_reduce", 1e-3), ("ring", 2e-3)):
            add(study, split_line, aggregator, size, exposed_s)
        add(study, split_line, "one_bit", size, 0.5e-3, aggregator_label="one_bit(threshold=mean)")
    return study


def test_lines_are_of_parts_that_occur_which_add_up_to_the_sum_as_they_are_shown(filled):
    budgets = budget_table(groups_of(filled)[0])
    assert budgets.headings[2:] == [
        *("forward", "backward", "exposed comm.", "wait", "unattributed", "= profiled step", "step",
         "hidden comm."),
        *("profiling overhead", "skew"),
        *("exchange, by its spans", "exchange, vs. no exchange", "do both agree?"),
    ]  # fmt: skip
    assert [row[:2] for row in budgets.rows[:3]] == [["none", "2"], ["none", "4"], ["all_reduce", "2"]]
    ring = dict(zip(budgets.headings, budgets.rows[4], strict=True))
    assert (ring["forward"], ring["exposed comm."], ring["= profiled step"]) == ("1.000", "2.000", "6.000")
    assert (ring["hidden comm."], ring["do both agree?"]) == ("1.000", "yes")
    assert ring["exchange, by its spans"] == ring["exchange, vs. no exchange"] == "2.000"
    for row in budgets.rows:
        *parts, total = (0.0 if value == "–" else float(value) for value in row[2:8])  # noqa: RUF001
        assert sum(parts) == pytest.approx(total, abs=0.001 * len(parts))
    assert sorted(part for parts in GROUPED.values() for part in parts) == sorted(PARTS)


@pytest.mark.usefixtures("without_figures")
def test_group_without_split_steps_has_no_budget(study):
    study.add_steps([[1.0]])
    assert budget_table(groups_of(study)[0]) is None
    assert "split step" not in shown(study)
    assert "Where a step's time goes, ms" not in write_report(study.folder).page.read_text()


def test_terminal_shows_a_block_a_world_size_or_of_many_the_largest_and_what_it_left_out(filled, split_line):
    text = shown(filled)
    assert all(len(row) <= 80 for row in text.splitlines())
    assert "…" not in text
    assert text.count("where a step's time goes on 2 workers, ms") == 1
    for words in ("(threshold=mean)", "exposed comm.", "= profiled step", "do both agree?"):
        assert words in text
    for aggregator in ("tree", "host_parallel"):
        for size in (2, 4):
            add(filled, split_line, aggregator, size, 1e-3)
    text = shown(filled)
    assert ("goes on 4 workers" in text, "goes on 2 workers" in text) == (True, False)
    assert "(not shown: where a step's time goes in 6 more cells; see report.html" in text
    assert all(len(row) <= 80 for row in text.splitlines())


def test_terminal_shows_of_many_bucket_sizes_one_an_aggregator(study, split_line):
    for aggregator in ("all_reduce", "ring"):
        for bucket_mb in range(1, 8):
            add(
                study, split_line, aggregator, 2, 1e-3 / bucket_mb, step="overlapped",
                bucket_mb=float(bucket_mb),
            )  # fmt: skip
    text = shown(study)
    assert "(not shown: where a step's time goes in 12 more cells; see report.html" in text
    assert "all_reduce, 3 MiB" in text
    assert all(len(row) <= 80 for row in text.splitlines())


def test_why_exposed_times_disagree_stands_below(study, split_line):
    for name, unsplit_s, exposed_s in (("none", 4e-3, 0.0), ("ring", 7e-3, 1e-3)):
        spans = [("backward", "main", 0.0, 4e-3), ("communicate", "main", 4e-3, 4e-3 + exposed_s)]
        lines = [split_line(9, 4e-3 + exposed_s, *spans[: 1 + bool(exposed_s)])]
        study.add_split([[unsplit_s * factor] for factor in (0.999, 1, 1.001)], [lines] * 2, aggregator=name)
    both = "exchange by its spans 1.00 ms, by difference to no exchange 3.00 ms"
    remark = f"ring on 2 workers: {both}: profiling costs"
    (group,) = groups_of(study)
    assert [row[-1] for row in budget_table(group).rows] == ["–", "no"]  # noqa: RUF001
    assert remark in " ".join(shown(study).split())
    _, page_table = page_tables(group, [group])
    assert page_table.remarks[0].startswith(remark)
    assert "no" in page_table.rows[1]


def test_warnings_are_marked_and_named_below_the_table(study, split_line):
    for size in (1, 2):
        study.add_split([[1.0]], [[split_line(9, 1.0, ("forward", "main", 0.0, 0.9))]] * size)
    text = shown(study)
    assert [line.rstrip()[-3:] for line in text.splitlines() if line.startswith("none ")] == ["% !"] * 2
    warning = "unattributed: 10.0% of the step is in no phase (none on 1 worker, none on 2 workers)"
    assert f"! {warning}" in " ".join(text.split())
    (group,) = groups_of(study)
    assert page_tables(group, [group])[0].warnings == [warning]


@pytest.mark.usefixtures("without_figures")
def test_noise_floor_stands_below_the_table_and_the_replicate_in_none(study):
    for replicate, step_s in enumerate((1.0, 1.1)):
        study.add_steps([[step_s]], aggregator="ring", world_size=2, aa_replicate=replicate)
    text = shown(study)
    assert "noise floor 9.5% (A/A pair: ring on 2 workers)" in text
    assert sum(line.startswith("ring") for line in text.splitlines()) == 1
    page = write_report(study.folder).page.read_text()
    assert "noise floor 9.5%" in page
    assert len(re.findall('<th scope="row"[^>]*>ring</th>', page)) == 2  # of all, of two workers


@pytest.mark.parametrize(("profiled_s", "is_marked"), [(0.0104, False), (0.011, True), (0.0094, True)])
def test_step_that_differs_from_the_profiled_one_is_marked(study, split_line, profiled_s, is_marked):
    spans = [("forward", "main", 0.0, profiled_s / 2), ("backward", "main", profiled_s / 2, profiled_s)]
    lines = [split_line(9, profiled_s, *spans)]
    study.add_split([[0.01] * 3] * 2, [lines], aggregator="none", step="captured")
    (group,) = groups_of(study)
    table = budget_table(group)
    (row,) = table.rows
    assert row[list(table.headings).index("step")].endswith("*") is is_marked
    assert ("*: the step without profiling differs" in shown(study)) is is_marked
    (bar,) = answer_bars(group, ())[1]
    assert sum(bar.parts_s.values()) == pytest.approx(0.01)


def test_long_steps_are_a_part_of_their_own(study, split_line):
    spans = [("forward", "main", 0.0, 0.005), ("clip", "main", 0.005, 0.01)]
    study.add_split([[0.01] * 9 + [0.03]], [[split_line(9, 0.01, *spans)]], aggregator="none")
    (group,) = groups_of(study)
    (bar,) = answer_bars(group, ())[1]
    shares = {name: seconds for name, seconds in bar.parts_s.items() if seconds}
    assert shares == pytest.approx(
        {"computation": 0.005, "input, update, other": 0.005, "long steps: above the median": 0.002}
    )


def test_without_speedups_the_bars_are_of_the_aggregator_that_the_answer_names(study, split_line):
    for aggregator, step_s in (("one_bit", 0.01), ("ring", 0.02)):
        line = split_line(9, step_s, ("backward", "main", 0.0, step_s))
        study.add_split([[step_s] * 3], [[line]] * 2, aggregator=aggregator)
    (group,) = groups_of(study)
    assert [answer_bars(group, best)[0] for best in ((), ("ring",))] == ["one_bit", "ring"]

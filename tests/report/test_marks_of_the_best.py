"""What is marked as the best, and where the names of lines are written."""

import pytest
from matplotlib.figure import Figure

from scaling.analysis.findings import Finding
from scaling.report import write_report
from scaling.report.blocks import blocks_of
from scaling.report.figures.parts import EndLabel, label_ends
from tests.report.conftest import groups_of


def test_labels_at_the_ends_of_lines_stay_inside_the_plot_and_apart():
    axes = Figure().add_subplot()
    axes.set_ylim(0.0, 1.0)
    label_ends(axes, [EndLabel(height, str(height), "black") for height in (0.99, 0.98, 0.97, 0.1)], gap=0.1)
    assert sorted(text.get_position()[1] for text in axes.texts) == pytest.approx([0.1, 0.8, 0.9, 1.0])


def test_one_worker_without_exchange_is_no_best_aggregator(study):
    study.add_steps([[1.0]] * 2)
    (group,) = groups_of(study)
    answer = Finding("verdict", tuple(row["cell_id"] for row in group.rows), {})
    (block,) = blocks_of([group], [], [], [answer])
    (table,) = block.variants[0].tables
    assert (table.best, table.bounds, "Green" in table.statistic) == ([], [], False)


def answer_table(study, *named):
    (group,) = groups_of(study)
    (block,) = blocks_of([group], [], [], [Finding("verdict", named, {})] if named else [])
    (table,) = block.variants[0].tables
    return table


def test_caption_says_what_green_and_marked_rows_are(study):
    study.add_steps([[1.0]] * 3)
    ring = study.add_steps([[0.6], [0.6], [0.601]], aggregator="ring", world_size=2)
    study.add_steps([[0.6], [0.7], [0.8]], aggregator="tree", world_size=2)
    table = answer_table(study, ring)
    assert table.title == "Aggregators on 2 workers, fastest first"
    assert [row[1].endswith("%") for row in table.rows] == [True, False]
    assert table.rows[1][1].endswith("% ~")
    assert table.statistic.endswith("Green: the answer's aggregators.")
    assert table.remarks == ["~: an interval wider than ±10%."]


def test_group_of_which_one_worker_alone_was_measured_shows_it(study):
    study.add_steps([[1.0]])
    study.add(["planned"], aggregator="ring", world_size=2)
    assert [row[0] for row in answer_table(study).rows] == ["no exchange (none)"]


def test_group_without_answer_and_marks_has_no_key_to_them(study):
    study.add_steps([[1.0]] * 3)
    study.add_steps([[0.6], [0.6], [0.601]], aggregator="ring", world_size=2)
    table = answer_table(study)
    assert ("Green" in table.statistic, list(table.remarks)) == (False, [])


@pytest.mark.parametrize(("backward_s", "mark", "why"), [
    (4e-3, "", None), (6e-3, " †", " (it slows the computation too)"),
])  # fmt: skip
def test_exchange_that_the_difference_to_no_exchange_contradicts_is_marked(
    study, split_line, backward_s, mark, why
):
    for aggregator, end_s, exposed_s in (("none", 4e-3, 0.0), ("ring", backward_s, 1e-3)):
        spans = [("backward", "main", 0.0, end_s), ("communicate", "main", end_s, end_s + exposed_s)]
        step_s = end_s + exposed_s
        lines = [split_line(number, step_s, *spans[: 1 + bool(exposed_s)]) for number in range(9)]
        study.add_split(
            [[step_s * factor] for factor in (0.999, 1, 1.001)], [lines] * 2, aggregator=aggregator
        )
    table = answer_table(study)
    assert table.rows[1][-1] == f"1.00{mark}"
    told = f"†: the difference to the step without exchange is larger{why}; see"
    assert (told in "".join(table.remarks)) is bool(mark)


def test_exchange_that_scatters_too_much_to_be_confirmed_is_marked_where_it_differs(study, split_line):
    """By its spans 1 ms, by the difference 3 ms, of which 2 are a longer update; launches scatter by 30%."""
    for aggregator, update_s, exposed_s in (("none", 1e-3, 0.0), ("ring", 3e-3, 1e-3)):
        spans = [("communicate", "main", 4e-3, 4e-3 + exposed_s), ("backward", "main", 0.0, 4e-3)]
        spans += [("update", "main", 4e-3 + exposed_s, 4e-3 + exposed_s + update_s)]
        step_s = 4e-3 + exposed_s + update_s
        lines = [split_line(number, step_s, *spans[not exposed_s :]) for number in range(9)]
        factors = (0.7, 1, 1.3) if exposed_s else (1.3, 1, 0.7)
        study.add_split([[step_s * factor] for factor in factors], [lines] * 2, aggregator=aggregator)
    table = answer_table(study)
    assert table.rows[1][-1] == "1.00 †"
    why = "the exchange does not count a longer update, for example in the host's memory"
    assert f"larger, or not resolved ({why}); see" in "".join(table.remarks)
    every = write_report(study.folder).content.sections
    (cells,) = [table for section in every for table in section.tables if table.title.startswith("Time of")]
    assert any("1.00 †" in row for row in cells.rows)
    assert "†: the difference" in cells.statistic


@pytest.mark.usefixtures("without_figures")
def test_names_of_headings_and_folds_differ(study):
    study.add_steps([[1.0]])
    study.add_steps([[0.6]], aggregator="ring", world_size=2)
    page = write_report(study.folder).page.read_text()
    assert ("All settings" in page, "<summary>Every measured cell</summary>" in page) == (False, True)

"""What is marked as the best, which lines over the workers are drawn, and where their names are written."""

import html

import pytest
from matplotlib.figure import Figure

from scaling.analysis.findings import Finding
from scaling.report import write_report
from scaling.report.blocks import blocks_of
from scaling.report.figures.parts import EndLabel, label_ends
from scaling.report.figures.scaling_lines import caption_of, draw_scaling, speedup_lines
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
    study.add(["planned"], aggregator="ring", world_size=2)
    assert [row[0] for row in answer_table(study).rows] == ["no exchange (none)"]


def answer_table(study, *named):
    (group,) = groups_of(study)
    (block,) = blocks_of([group], [], [], [Finding("verdict", named, {})] if named else [])
    (table,) = block.variants[0].tables
    return table


def test_caption_says_what_green_and_marked_rows_are(study):
    study.add_steps([[1.0]] * 3)
    ring = study.add_steps([[0.6], [0.6], [0.601]], aggregator="ring", world_size=2)
    table = answer_table(study)
    assert ("Green" in table.statistic, list(table.remarks)) == (False, []), "no answer, no marks, no key"
    study.add_steps([[0.6], [0.7], [0.8]], aggregator="tree", world_size=2)
    table = answer_table(study, ring)
    assert table.title == "Aggregators on 2 workers, fastest first"
    assert [row[1].endswith("%") for row in table.rows] == [True, False]
    assert table.rows[1][1].endswith("% ~")
    assert table.statistic.endswith("Green: the answer's aggregators.")
    assert table.remarks == ["~: an interval wider than ±10%."]


@pytest.mark.parametrize(("backward_s", "mark", "why"), [
    (4e-3, "", None), (6e-3, " †", " (it slows the computation too)"),
])  # fmt: skip
def test_exchange_that_the_difference_contradicts_is_marked(study, split_line, backward_s, mark, why):
    for aggregator, end_s, exposed_s in (("none", 4e-3, 0.0), ("ring", backward_s, 1e-3)):
        spans = [("backward", "main", 0.0, end_s), ("communicate", "main", end_s, end_s + exposed_s)]
        step_s = end_s + exposed_s
        lines = [split_line(number, step_s, *spans[: 1 + bool(exposed_s)]) for number in range(9)]
        launches = [[step_s * factor] for factor in (0.999, 1, 1.001)]
        study.add_split(launches, [lines] * 2, aggregator=aggregator)
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


def lines_of(study, **times):
    """Lines of two workers, where one takes 4 s."""
    study.add_steps([[4.0], [4.001]])
    for aggregator, step_s in times.items():
        study.add_steps([[step_s], [step_s * 1.0001]], aggregator=aggregator, world_size=2)
    (group,) = groups_of(study)
    return speedup_lines(group)


def test_slow_grey_line_does_not_leave_half_of_the_plot_empty(study):
    """On the page it is hidden until it is asked for."""
    lines = lines_of(study, all_reduce=2.0, tree=2.2, host_parallel=6.4)
    axes = draw_scaling("", "speedup", lines, ideal=1.0).axes[0]
    low, high = axes.get_ylim()
    assert 0.75 < low < 1.0
    assert 2.0 < high < 2.5
    for line in axes.lines:
        assert all(low <= value <= high for value in line.get_ydata())
    assert caption_of("Speedup", lines, ()).endswith("Much slower ones are in the table only.")


def test_grey_line_that_is_not_much_slower_is_drawn(study):
    lines = lines_of(study, all_reduce=2.0, tree=4.6)
    low, _ = draw_scaling("", "speedup", lines, ideal=1.0).axes[0].get_ylim()
    assert low < 4.0 / 4.6
    assert "in the table" not in caption_of("Speedup", lines, ())


def test_caption_says_how_to_see_the_grey_lines_and_every_line_begins_at_one_worker(study):
    lines = lines_of(study, none=1.9, all_reduce=2.0, tree=2.2)
    said = 'any aggregator. Press "show others" to see the remaining ones.'
    assert caption_of("Speedup", lines, ()) == (
        "Speedup, 95% intervals. A hollow point has none. No exchange: the same step without communication, "
        f"about the bound for {said}"
    )
    axes = draw_scaling("", "speedup", lines, ideal=1.0).axes[0]
    drawn = [line.get_xydata().tolist() for line in axes.lines if len(line.get_xdata()) > 1]
    spanning = [points for points in drawn if points[-1][0] > points[0][0]]
    # With the ideal one, and those that were timed on several workers alone.
    assert [points[0] for points in spanning] == [[1.0, 1.0]] * 4
    made = write_report(study.folder)
    text = made.markdown()
    assert said in html.unescape(made.page.read_text())
    assert "any aggregator. Grey: the remaining ones." in text
    assert 'Press "show others"' not in text


def test_caption_of_the_step_says_what_is_not_drawn(study, split_line):
    spans = [("forward", "main", 0.0, 0.5), ("backward", "main", 0.5, 1.0)]
    for aggregator, size in (("none", 1), ("all_reduce", 2)):
        study.add_split([[1.0]] * 2, [[split_line(9, 1.0, *spans)]] * size, aggregator=aggregator)
    text = "1 worker exchanges nothing; communication hidden during the computation is not drawn."
    assert text in write_report(study.folder).page.read_text()

"""Which lines over the workers are drawn, and what the caption says of the grey ones."""

import html

from scaling.report import write_report
from scaling.report.figures.scaling_lines import caption_of, draw_scaling, speedup_lines
from tests.report.conftest import groups_of


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


def test_caption_is_short_and_says_how_to_see_the_grey_lines(study):
    lines = lines_of(study, none=1.9, all_reduce=2.0, tree=2.2)
    assert caption_of("Speedup", lines, ()) == (
        "Speedup, 95% intervals (a hollow point has none). No exchange: the same step without communication, "
        "about the bound for any aggregator. "
        'Press "show others" to see the remaining ones.'
    )


def test_markdown_has_no_button_to_press(study):
    lines_of(study, none=1.9, all_reduce=2.0, tree=2.2)
    made = write_report(study.folder)
    said = 'any aggregator. Press "show others" to see the remaining ones.'
    assert said in html.unescape(made.page.read_text())
    text = made.markdown()
    assert "any aggregator. Grey: the remaining ones." in text
    assert 'Press "show others"' not in text


def test_every_line_begins_at_one_worker_without_exchange(study):
    """Also those that were timed on several workers alone."""
    axes = draw_scaling("", "speedup", lines_of(study, none=1.9, all_reduce=2.0, tree=2.2), ideal=1.0).axes[0]
    drawn = [line.get_xydata().tolist() for line in axes.lines if len(line.get_xdata()) > 1]
    spanning = [points for points in drawn if points[-1][0] > points[0][0]]
    assert [points[0] for points in spanning] == [[1.0, 1.0]] * 4  # with the ideal one


def test_caption_of_the_step_says_what_is_not_drawn(study, split_line):
    spans = [("forward", "main", 0.0, 0.5), ("backward", "main", 0.5, 1.0)]
    for aggregator, size in (("none", 1), ("all_reduce", 2)):
        study.add_split([[1.0]] * 2, [[split_line(9, 1.0, *spans)]] * size, aggregator=aggregator)
    text = "1 worker exchanges nothing; communication hidden during the computation is not drawn."
    assert text in write_report(study.folder).page.read_text()

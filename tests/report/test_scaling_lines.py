"""Which lines over the workers are drawn, and what the caption says of the grey ones."""

from scaling.analysis.columns import to_rows
from scaling.analysis.groups import group_rows
from scaling.analysis.summary import summary_table
from scaling.report.figures.scaling_lines import draw_scaling, reading
from scaling.report.figures.speedup import speedup_lines


def lines_of(study, **times):
    """Lines of two workers, where one takes 4 s."""
    study.add_steps([[4.0], [4.001]])
    for aggregator, step_s in times.items():
        study.add_steps([[step_s], [step_s * 1.0001]], aggregator=aggregator, world_size=2)
    (group,) = group_rows(to_rows(summary_table(study.folder)))
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
    assert reading(lines, ()).endswith("Far slower ones: in the table.")


def test_grey_line_that_is_not_much_slower_is_drawn(study):
    lines = lines_of(study, all_reduce=2.0, tree=4.6)
    low, _ = draw_scaling("", "speedup", lines, ideal=1.0).axes[0].get_ylim()
    assert low < 4.0 / 4.6
    assert "in the table" not in reading(lines, ())


def test_caption_says_how_to_see_the_grey_lines(study):
    lines = lines_of(study, all_reduce=2.0, tree=2.2)
    text = "Grey: the other aggregators, each at its fastest bucket size"
    assert f'{text} (on the page: press "others" to show them).' in reading(lines, ())

"""The values that are drawn, and what the files promise."""

import math

import pytest

from scaling.measure.phase_names import PHASES
from scaling.report.columns import to_rows
from scaling.report.figure_data import phase_bars, speedup_lines, training_lines
from scaling.report.figure_style import aggregator_looks
from scaling.report.figures import draw_figures
from scaling.report.groups import group_rows
from scaling.report.samples import read_cells
from scaling.report.tables import build_table, summary_table


def groups_of(study):
    return group_rows(to_rows(summary_table(study.folder)))


def draw(study):
    cells = read_cells(study.folder)
    rows = to_rows(build_table("by-hand", cells))
    return draw_figures(study.folder, rows, {cell.cell_id: cell for cell in cells})


def test_speedup_interval_is_the_times_interval_at_a_fixed_baseline(study):
    study.add_steps([[4.0]])
    study.add_steps([[1.9], [2.0], [2.1]], aggregator="ring", world_size=2)
    (group,) = groups_of(study)
    none, ring = speedup_lines(group)
    assert (none.aggregator, none.world_sizes, none.speedup) == ("none", [1], [1.0])
    assert math.isnan(none.low[0])
    assert (ring.world_sizes, ring.speedup) == ([2], [2.0])
    half_width = 4.302652729911275 * 0.1 / math.sqrt(3)
    assert ring.low[0] == pytest.approx(4.0 / (2 + half_width))
    assert ring.high[0] == pytest.approx(4.0 / (2 - half_width))


def test_speedup_has_no_upper_bound_where_the_times_interval_reaches_below_zero(study):
    study.add_steps([[4.0]])
    study.add_steps([[0.1], [1.0], [9.0]], aggregator="ring", world_size=2)
    _, ring = speedup_lines(groups_of(study)[0])
    assert ring.high == [math.inf]
    assert draw(study)


def test_phase_bars_are_in_milliseconds_and_leave_out_what_never_occurred(study, line):
    study.add([[[line(i, 0.010, backward_s=0.006, forward_s=0.003) for i in range(8)]]])
    (bar,) = phase_bars(groups_of(study)[0])
    assert list(bar.phases_ms) == ["forward", "backward"]
    assert bar.phases_ms == pytest.approx({"forward": 3.0, "backward": 6.0})
    assert (bar.iteration_ms, bar.low_ms, bar.high_ms) == pytest.approx((10.0, 10.0, 10.0))


def test_training_line_is_the_median_over_repeats_with_gaps_where_not_finite(study, epoch_line):
    losses = [(3.0, 1.0), (2.0, 0.5), (1.0, None)]
    study.add(
        [[[epoch_line(1, 1.0, first, 0.5), epoch_line(2, 2.0, last, 0.6)]] for first, last in losses],
        kind="convergence",
    )
    cells = {cell.cell_id: cell for cell in read_cells(study.folder)}
    (line,) = training_lines(groups_of(study)[0], cells)
    assert (line.epochs, line.train_s, line.test_accuracy) == ([1, 2], [1.0, 2.0], [0.5, 0.6])
    assert line.train_loss[0] == 2.0
    assert math.isnan(line.train_loss[1])


def test_groups_part_where_more_than_aggregator_and_world_size_differs(study):
    study.add_steps([[1.0]])
    study.add_steps([[1.0]], aggregator="ring", world_size=2)
    study.add_steps([[1.0]], seed=1)
    study.add_steps([[1.0]], scaling="weak")
    groups = groups_of(study)
    assert [len(group.rows) for group in groups] == [2, 1, 1]
    assert [group.title for group in groups] == [
        "mlp on synthetic, strong scaling, global batch 64, cpu, seed 0",
        "mlp on synthetic, strong scaling, global batch 64, cpu, seed 1",
        "mlp on synthetic, weak scaling, 64 a worker, cpu, seed 0",
    ]
    assert len({group.slug for group in groups}) == 3


def test_slugs_of_awkward_labels_are_short_file_names_and_differ(study):
    for label in ("a/b " * 100, "a\\b " * 100):
        study.add_steps([[1.0]], model_label=label)
    slugs = [group.slug for group in groups_of(study)]
    assert len(set(slugs)) == 2
    assert all(len(slug) < 130 and "/" not in slug and "\\" not in slug for slug in slugs)


def test_every_aggregator_looks_different():
    labels = ["none", "all_reduce", *(f"mine(size={i})" for i in range(20))]
    assert len(set(aggregator_looks(labels).values())) == len(labels)


def test_figures_are_the_same_files_every_time(study, line):
    for size in (1, 2):
        ranks = [[line(i, 0.01 / size, forward_s=0.005) for i in range(8)]] * size
        study.add([ranks], world_size=size)
    first = {figure.name: figure.svg.read_bytes() for figure in draw(study)}
    assert sorted(name.partition("-")[0] for name in first) == ["phases", "speedup"]
    assert {figure.name: figure.svg.read_bytes() for figure in draw(study)} == first


def test_every_phase_and_label_can_be_drawn(study, line):
    phases = {f"{name}_s": 0.001 for name in PHASES}
    study.add([[[line(i, 0.013, **phases) for i in range(8)]]], aggregator_label="_mine(cost=$5 & <more> $6)")
    (figure,) = draw(study)
    assert figure.png.stat().st_size > 0
    assert "cost=$5 &amp; &lt;more&gt; $6" in figure.svg.read_text()


def test_one_world_size_gives_no_speedup_figure(study, line):
    study.add([[[line(i, 0.01) for i in range(8)]]])
    assert draw(study) == []


def test_training_that_diverged_at_once_is_drawn(study, epoch_line):
    study.add([[[epoch_line(1, 1.0, None, None)]]], kind="convergence")
    assert [figure.name.rsplit("-mlp")[0] for figure in draw(study)] == ["loss-epochs", "loss-seconds"]

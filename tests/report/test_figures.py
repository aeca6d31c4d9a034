"""The values that are drawn, and what the files promise."""

import math
import warnings
from dataclasses import replace

import numpy as np
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from scaling.analysis.groups import main_variant
from scaling.analysis.links import CellLinks, LinkUse
from scaling.measure.budget import PARTS, PHASES
from scaling.report.figures import draw as drawing
from scaling.report.figures import parts
from scaling.report.figures.base import FigureInput
from scaling.report.figures.budget import BudgetBar, axis_end_ms, budget_bars, draw_budget
from scaling.report.figures.draw import Formats, draw_figures
from scaling.report.figures.maps import arrivals, draw_links
from scaling.report.figures.scaling_lines import draw_scaling, speedup_lines, throughput_lines
from scaling.report.figures.trade import label_places, trade_points
from scaling.report.figures.training import draw_training, training_lines
from scaling.report.formats import MISSING
from scaling.report.page_tables import columns_of
from scaling.report.text import title_of
from tests.report.conftest import cells_of, groups_of, rows_of

STEP = "step-mlp-synthetic-strong-64-cpu"


def draw(study):
    drawn, failures = draw_figures(study.folder, FigureInput(rows_of(study), cells_of(study)))
    assert failures == []
    return drawn


@pytest.mark.parametrize(
    ("last", "unit", "values"),
    [({"tokens_per_sample": 10}, "tokens/s", [160.0, 320.0]), ({}, "samples/s", [16.0, 32.0])],
)
def test_throughput_is_in_tokens_where_all_rows_have_them(study, line, last, unit, values):
    study.add([[[line(0, 4.0)]]], summary={"tokens_per_sample": 10})
    study.add([[[line(0, 2.0)]] * 2], summary=last, aggregator="ring", world_size=2)
    study.add(["planned"], aggregator="tree", world_size=2)
    (group,) = groups_of(study)
    assert [line.values for line in throughput_lines(group)] == [values[:1], values[1:]]
    headers = [column.header for column in columns_of(group)]
    assert [name for name in headers if name in ("tokens/s", "samples/s")] == [unit]
    (shown,) = [one for one in draw(study) if one.name.startswith("rate-")]
    assert shown.caption.startswith(f"{unit.removesuffix('/s').capitalize()} a second of all workers")


def test_gain_over_the_same_strategy_on_one_worker_is_a_column_where_it_was_timed_there(study):
    study.add_steps([[1.0] * 6], aggregator="none")
    study.add_steps([[1.66] * 6], aggregator="tensorflow")
    study.add_steps([[1.45] * 6], aggregator="tensorflow", world_size=2)
    study.add_steps([[0.7] * 6], aggregator="ring", world_size=2)
    (group,) = groups_of(study)
    (gain,) = [one for one in columns_of(group) if (one.header or "").startswith("gain over the same")]
    shown = {(row["aggregator"], row["world_size"]): gain.text(row) for row in group.rows}
    assert shown["tensorflow", 2] == "14.5%"
    assert {shown["none", 1], shown["tensorflow", 1], shown["ring", 2]} == {MISSING}


def test_gain_without_peer_access_is_over_the_one_worker_that_was_timed_with_it(study):
    gpus = {"aggregator": "mxnet_tree", "device": "cuda"}
    study.add_steps([[1.5] * 6], **gpus, peer_access=True)
    study.add_steps([[1.2] * 6], **gpus, peer_access=False, world_size=2)
    groups = groups_of(study)
    (group,) = [group for group in groups if group.world_sizes == [2]]
    gains = [one.text(group.rows[0]) for one in columns_of(group, groups) if "gain" in str(one.header)]
    assert gains == ["25.0%"]
    assert not [column for column in columns_of(group) if "gain" in str(column.header)]


def test_speedup_interval_holds_the_scatter_of_the_baseline_too(study):
    study.add_steps([[3.9], [4.0], [4.3]])
    study.add_steps([[1.9], [2.0], [2.1]], aggregator="ring", world_size=2)
    (group,) = groups_of(study)
    none, ring = speedup_lines(group)
    assert (none.aggregator, none.world_sizes, none.values) == ("none", [1], [1.0])
    assert math.isnan(none.low[0])
    (row,) = [row for row in group.rows if row["aggregator"] == "ring"]
    assert (ring.low[0], ring.high[0]) == (row["speedup_low"], row["speedup_high"])
    assert ring.high[0] / ring.low[0] > row["iteration_s_high"] / row["iteration_s_low"]
    assert ring.low[0] * ring.high[0] == pytest.approx(ring.values[0] ** 2)


def test_budget_bars_are_in_milliseconds_and_show_what_is_hidden_apart(study, line, split_line):
    study.add([[[line(i, 0.010, backward_s=0.006, forward_s=0.003) for i in range(8)]]])
    (bar,) = budget_bars(groups_of(study)[0])
    assert list(bar.parts_ms) == ["forward", "backward", "unattributed"]
    assert bar.parts_ms == pytest.approx({"forward": 3.0, "backward": 6.0, "unattributed": 1.0})
    assert (bar.iteration_ms, bar.low_ms, bar.high_ms) == pytest.approx((10.0, 10.0, 10.0))
    assert bar.hidden_ms == 0.0
    spans = (("backward", "main", 0.0, 0.006), ("communicate", "comm", 0.004, 0.007))
    study.add_split([[0.007]], [[split_line(1, 0.008, *spans)]], aggregator="ring", step="overlapped")
    (bar,) = budget_bars(groups_of(study)[1])
    assert sum(bar.parts_ms.values()) == pytest.approx(8.0)
    assert (bar.hidden_ms, bar.parts_ms["exposed_comm"]) == pytest.approx((2.0, 1.0))
    assert bar.iteration_ms == 7.0


def late_steps(split_line, late_s, count=3):
    """[rank][line] of ranks that arrive at their exchange so much after the step's start."""
    return [
        [split_line(10 + i, 1.0, ("communicate", "main", late, 0.9), start_s=5.0 * i) for i in range(count)]
        for late in late_s
    ]


def test_arrivals_are_of_the_largest_world_size_by_rank_and_step(study, split_line):
    study.add_split([[1.0]], late_steps(split_line, [0.1, 0.4]), aggregator="ring")
    study.add_split([[1.0]], late_steps(split_line, [0.1, 0.1, 0.3]), aggregator="ring")
    study.add_split([[1.0]], [[split_line(9, 1.0, ("forward", "main", 0.0, 0.5))]] * 3)
    (panel,) = arrivals(groups_of(study)[0], cells_of(study))
    assert (panel.aggregator, panel.iterations) == ("ring", [10, 11, 12])
    assert panel.late_ms == pytest.approx(np.array([[0.0] * 3, [0.0] * 3, [200.0] * 3]))
    names = [figure.name.partition("-mlp")[0] for figure in draw(study)]
    assert names == ["step", "rate", "budget", "arrivals"]


def test_captured_step_layer_by_layer_is_told_from_the_one_that_exchanges_at_the_end(study):
    for bucket_mb in (None, 16.0):
        study.add_steps([[0.1] * 8], aggregator="ring", step="captured", bucket_mb=bucket_mb)
    (group,) = groups_of(study)
    assert [group.name(row) for row in group.rows] == ["ring", "ring, layer by layer, 16 MiB"]


def test_one_worker_without_buckets_begins_the_line_of_those_with_buckets(study):
    study.add_steps([[4.0]], step="captured")
    study.add_steps([[2.0]], step="captured", world_size=2, bucket_mb=25.0)
    (group,) = groups_of(study)
    (none,) = speedup_lines(group)
    assert none.world_sizes == [1, 2]


def test_speedup_shows_of_several_variants_the_fastest_bucket_size_on_the_device(study):
    study.add_steps([[4.0]], step="overlapped")
    for size in (1, 2):
        ring = {"aggregator": "ring", "world_size": size, "step": "overlapped"}
        for bucket_mb, step_s in ((4.0, 5.0 / size), (25.0, 6.0 - 2 * size)):
            study.add_steps([[step_s]], bucket_mb=bucket_mb, **ring)
        study.add_steps([[1.0]], bucket_mb=25.0, input_placement="loader", loader_workers=2, **ring)
    (group,) = groups_of(study)
    assert [row["bucket_mb"] for row in main_variant(group, "ring")] == [25.0, 25.0]
    _, ring = speedup_lines(group)
    assert (ring.aggregator, ring.name) == ("ring", "ring, 25 MiB, device")
    assert (ring.world_sizes, ring.values) == ([1, 2], [1.0, 2.0])


def test_replicates_are_in_no_figure(study):
    study.add_steps([[4.0]])
    for replicate in (0, 1):
        study.add_steps([[2.0 + replicate]], aggregator="ring", world_size=2, aa_replicate=replicate)
    (group,) = groups_of(study)
    assert [row["aa_replicate"] for row in group.replicates] == [1]
    assert [line.values for line in speedup_lines(group)] == [[1.0], [2.0]]


def test_training_line_is_the_median_over_repeats_with_gaps_where_not_finite(study, epoch_line):
    losses = [(3.0, 1.0), (2.0, 0.5), (1.0, None)]
    runs = [[[epoch_line(1, 1.0, first, 0.5), epoch_line(2, 2.0, last, 0.6)]] for first, last in losses]
    study.add(runs, kind="convergence")
    (line,) = training_lines(groups_of(study)[0], cells_of(study))
    assert (line.epochs, line.train_s, line.test_accuracy) == ([1, 2], [1.0, 2.0], [0.5, 0.6])
    assert line.train_loss == pytest.approx([2.0, math.nan], nan_ok=True)


def test_groups_part_where_more_than_aggregator_and_world_size_differs(study):
    study.add_steps([[1.0]])
    study.add_steps([[1.0]], aggregator="ring", world_size=2)
    study.add_steps([[1.0]], seed=1)
    study.add_steps([[1.0]], scaling="weak")
    groups = groups_of(study)
    assert [len(group.rows) for group in groups] == [2, 1, 1]
    cases = [("strong", "global", 0), ("strong", "global", 1), ("weak", "local", 0)]
    assert [title_of(group.given) for group in groups] == [
        f"mlp on synthetic, {kind} scaling, {of} batch 64, cpu, seed {seed}" for kind, of, seed in cases
    ]
    assert len({group.slug for group in groups}) == 3


def test_slugs_of_awkward_labels_are_short_file_names_and_differ(study):
    for label in ("a/b " * 100, "a\\b " * 100):
        study.add_steps([[1.0]], model_label=label)
    slugs = [group.slug for group in groups_of(study)]
    assert len(set(slugs)) == 2
    assert all(len(slug) < 130 and "/" not in slug and "\\" not in slug for slug in slugs)


def test_at_most_six_aggregators_have_a_colour_of_their_own_and_none_means_two_things():
    labels = ["none", "all_reduce", *(f"mine(size={i})" for i in range(20))]
    looks = parts.aggregator_looks(labels, first={"mine(size=19)"})
    coloured = {label: look.colour for label, look in looks.items() if look.colour != parts.OTHER}
    assert len(coloured) == len(set(coloured.values())) == parts.MOST_COLOURED
    assert {"none", "all_reduce", "mine(size=19)"} <= set(coloured)
    roles = [parts.BEST, parts.REFERENCE, parts.BOUND, parts.IDEAL, parts.OTHER, parts.MEASURED]
    roles += [parts.PREDICTED, *parts.FURTHER, *parts.GROUPED_PARTS.values()]
    assert len(set(roles)) == len(roles)
    colours = {parts.part_look(name)["facecolor"] for name in PARTS} - {"#d9d9d9"}
    assert colours <= set(parts.GROUPED_PARTS.values())


def bar(name, iteration_ms, world_size=2):
    return BudgetBar(name, name, world_size, {"backward": iteration_ms}, 0.0, iteration_ms, None, None)


def test_budget_axis_ends_at_the_longest_bar_near_the_median_and_longer_intervals_in_an_arrow():
    usual = [bar("a", 1.0), bar("b", 2.0), bar("c", 3.0)]
    assert axis_end_ms(usual) == pytest.approx(3.09)
    assert axis_end_ms([*usual, bar("slow", 50.0)]) == pytest.approx(3.75)
    assert "50" in [text.get_text() for text in draw_budget("", [*usual, bar("slow", 50.0)]).axes[0].texts]
    axes = draw_budget("", [bar("a", 4.0), replace(bar("slow", 5.0), low_ms=1.0, high_ms=50.0)]).axes[0]
    assert [line.get_xdata()[0] for line in axes.lines if line.get_marker() == ">"] == [axes.get_xlim()[1]]


def test_budget_is_sorted_by_workers_and_time(study, line):
    for label, size, step_s in (("ring", 2, 0.03), ("tree", 2, 0.02), ("none", 1, 0.01), ("caffe", 4, 0.04)):
        lines = [line(i, step_s, forward_s=0.005) for i in range(8)]
        study.add([[lines] * size], aggregator=label, world_size=size)
    assert [bar.aggregator for bar in budget_bars(groups_of(study)[0])] == ["caffe", "tree", "ring", "none"]


def test_grey_lines_intervals_do_not_flatten_the_others(study):
    study.add_steps([[4.0], [4.0]])
    study.add_steps([[2.0], [2.01]], aggregator="ring", world_size=2)
    study.add_steps([[3.0], [6.0]], aggregator="host_parallel", world_size=2)
    (group,) = groups_of(study)
    low, high = draw_scaling("", "speedup", speedup_lines(group), ideal=1.0).axes[0].get_ylim()
    assert 0.5 < low < 4.0 / 4.5
    assert high < 2.5


def test_link_map_has_room_for_long_names_and_a_fixed_scale():
    name = "schedule(collective=stripes, transport=one_kernel), layer by layer, 16 MiB"
    uses = [LinkUse(f"gpu0-nvswitch{index}>", 1e6, 1e9, 0.02) for index in range(4)]
    for count in (1, 4, 12):
        cells = [CellLinks(str(index), "ring", name, 2, uses) for index in range(count)]
        figure = draw_links("Busy part of the links", cells)
        FigureCanvasAgg(figure)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            figure.canvas.draw()
        axes = figure.axes[0]
        assert axes.get_window_extent().height / figure.dpi > 0.15 * len(uses)
        for label in axes.get_xticklabels():
            assert label.get_window_extent().y0 >= 0
    cell = CellLinks("id", "ring", "ring", 2, [LinkUse("gpu0-gpu1>", 1e6, 1e9, 0.02)])
    (image,) = draw_links("", [cell]).axes[0].images
    assert image.get_clim() == (0, 1)


def test_accuracy_against_bytes_counts_all_steps_of_the_training(study, epoch_line):
    lines = [epoch_line(1, 1.0, 0.5, 0.8), epoch_line(2, 2.0, 0.4, 0.97)]
    lines = [{**line, "step_losses": [0.5] * 10} for line in lines]
    for label, num_bytes in (("all_reduce", 3_000_000_000), ("one_bit", 100_000_000)):
        summary = {"wire_bytes_per_rank": [num_bytes]}
        study.add([[lines]], kind="convergence", aggregator=label, summary=summary)
    (group,) = groups_of(study)
    found = {point.name: point.x for point in trade_points(group, cells_of(study), "bytes")}
    assert found == pytest.approx({"all_reduce": 60.0, "one_bit": 2.0})


def test_labels_of_points_do_not_overlap_and_stay_in_the_plot():
    points = [(0.5, 0.5 + 0.01 * index, f"aggregator_{index}") for index in range(5)] + [(0.95, 0.2, "last")]
    found = label_places(points)
    assert found[-1][0] < 0.95  # left of it: there is no room at its right
    known = sorted(place for place in found[:-1] if place is not None)
    assert 2 <= len(known) < 5
    assert all(0 <= x <= 1 and 0 <= y <= 1 for x, y in known)
    assert len(set(known)) == len(known)


def test_training_near_all_right_is_drawn_as_its_error(study, epoch_line):
    study.add([[[epoch_line(1, 1.0, 0.5, 0.8), epoch_line(2, 2.0, 0.4, 0.97)]]], kind="convergence")
    lines = training_lines(groups_of(study)[0], cells_of(study))
    figure = draw_training("", lines, parts.aggregator_looks([lines[0].aggregator]), "epochs")
    assert figure.axes[1].get_yscale() == "log"
    assert figure.axes[1].lines[0].get_ydata() == pytest.approx([0.2, 0.03])


def test_intervals_stay_inside_the_plot_and_a_point_without_one_is_hollow():
    axes = Figure().add_subplot()
    axes.set_ylim(1, 10)
    parts.draw_point(axes, (1, 5), (0.01, 400), (1, 10), "#000000")
    parts.draw_point(axes, (1, 5), (math.nan, math.nan), (1, 10), "#000000")
    full, interval, *arrows, hollow = axes.lines
    assert (list(interval.get_ydata()), [arrow.get_marker() for arrow in arrows]) == ([1, 10], ["v", "^"])
    assert (full.get_markerfacecolor(), hollow.get_markerfacecolor()) == ("#000000", "white")


@pytest.mark.processes
def test_several_processes_draw_the_same_files(study, line, monkeypatch):
    for size in (1, 2):
        study.add([[[line(i, 0.01 / size, forward_s=0.005) for i in range(8)]] * size], world_size=size)
    here = [(figure.name, figure.svg.read_bytes()) for figure in draw(study)]
    monkeypatch.setattr(drawing, "MANY_ROWS", 1)
    monkeypatch.setattr(drawing, "num_usable_cores", lambda: 2)
    assert [(figure.name, figure.svg.read_bytes()) for figure in draw(study)] == here


def test_every_part_and_label_can_be_drawn(study, line):
    phases = {f"{name}_s": 0.001 for name in PHASES}
    lines = [line(i, 0.013, **phases) for i in range(8)]
    study.add([[lines, lines]], aggregator_label="_mine(cost=$5 & <more> $6)", world_size=2)
    (bar,) = budget_bars(groups_of(study)[0])
    assert set(bar.parts_ms) == set(PARTS)
    step, figure = draw(study)
    assert "_mine" in step.svg.read_text()
    assert "cost=$5 &amp; &lt;more&gt; $6" in figure.svg.read_text()


def test_where_the_step_of_one_worker_goes_names_no_aggregator(study, line):
    phases = {f"{name}_s": 0.001 for name in PHASES}
    study.add([[[line(i, 0.013, **phases) for i in range(8)]]], aggregator_label="ring")
    step, *_ = draw(study)
    assert "Where the step goes" in step.svg.read_text()
    assert "goes: ring" not in step.svg.read_text()


def test_one_world_size_gives_no_speedup_figure_and_training_that_diverged_is_drawn(study, line, epoch_line):
    study.add([[[line(i, 0.01) for i in range(8)]]])
    assert draw(study) == []
    study.add([[[epoch_line(1, 1.0, None, None)]]], kind="convergence")
    assert [figure.name.rsplit("-mlp")[0] for figure in draw(study)] == ["loss-epochs", "loss-seconds"]


def test_figures_for_a_paper_are_a_column_wide_without_a_title_and_with_text_as_text(study, line):
    study.add([[[line(i, 0.01, forward_s=0.005) for i in range(8)]]])
    data = FigureInput(rows_of(study), cells_of(study))
    for titles in (False, True):
        draw_figures(study.folder, data, Formats(paper=True, titles=titles))
        text = (study.folder.path / "figures" / "paper" / f"{STEP}.svg").read_text()
        assert 'width="237.60pt"' in text
        assert "milliseconds a step</text>" in text
        assert ("Where the step goes" in text) == titles
        assert "Where the step goes" in (study.folder.path / "figures" / f"{STEP}.svg").read_text()


@pytest.mark.parametrize("width", [5.8, 3.0])
def test_title_ends_where_the_figure_does(width):
    wide = "momentum 0.9, weight decay 0.0001; standard augmentation; batch normalisation of each worker"
    figure = Figure(figsize=(width, 2.0))
    canvas = FigureCanvasAgg(figure)
    parts.set_title(figure, wide)
    lines = figure.get_suptitle()
    assert lines.replace("\n", " ") == wide
    (title,) = [text for text in figure.texts if text.get_text() == lines]
    extent = title.get_window_extent(canvas.get_renderer())
    assert 0.8 * figure.bbox.width < extent.width < extent.x1 < figure.bbox.width

"""What is marked as the best, and where the names of lines are written."""

import pytest
from matplotlib.colors import to_rgba
from matplotlib.figure import Figure

from scaling.analysis.columns import to_rows
from scaling.analysis.findings import Finding
from scaling.analysis.groups import group_rows
from scaling.analysis.samples import read_cells
from scaling.analysis.summary import build_table
from scaling.report.blocks import blocks_of
from scaling.report.figures.base import FigureInput
from scaling.report.figures.buckets import buckets
from scaling.report.figures.parts import EndLabel, label_ends
from scaling.report.figures.style import BEST


def groups_of(study):
    return group_rows(to_rows(build_table("by-hand", read_cells(study.folder))))


def test_labels_at_the_ends_of_lines_stay_inside_the_plot_and_apart():
    axes = Figure().add_subplot()
    axes.set_ylim(0.0, 1.0)
    label_ends(axes, [EndLabel(height, str(height), "black") for height in (0.99, 0.98, 0.97, 0.1)], gap=0.1)
    places = sorted(text.get_position()[1] for text in axes.texts)
    assert places == pytest.approx([0.1, 0.8, 0.9, 1.0])


def test_no_control_arm_is_marked_as_the_best(study):
    for name in ("no_op", "all_reduce"):
        for bucket_mb in (1.0, 25.0):
            study.add_steps(
                [[bucket_mb]] * 2, aggregator=name, world_size=2, step="overlapped", bucket_mb=bucket_mb
            )
    rows = to_rows(build_table("by-hand", read_cells(study.folder)))
    (drawn,) = buckets.draw(FigureInput(rows, {}))
    (axes,) = drawn.figure.axes
    assert [bar.get_facecolor() == to_rgba(BEST) for bar in axes.patches].count(True) == 1


def test_one_worker_without_exchange_is_no_best_aggregator(study):
    study.add_steps([[1.0]] * 2)
    (group,) = groups_of(study)
    answer = Finding("verdict", tuple(row["cell_id"] for row in group.rows), {})
    (block,) = blocks_of([group], [], [], [answer])
    (table,) = block.variants[0].tables
    assert (table.best, table.bounds) == ([], [])

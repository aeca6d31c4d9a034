"""The figures of a report, each as SVG and PNG. The same results folder gives the same SVG, byte for byte."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import matplotlib
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from scaling.errors import StoreError
from scaling.report.columns import Row
from scaling.report.drawing import Looks, draw_phases, draw_speedup, draw_training
from scaling.report.figure_data import phase_bars, speedup_lines, training_lines
from scaling.report.figure_style import SETTINGS, aggregator_looks
from scaling.report.groups import Group, group_rows
from scaling.report.samples import CellResult
from scaling.store import ResultsFolder

SPEEDUP = (
    "Throughput over that of one worker without exchange (column speedup). Bars: the 95% interval of the "
    "iteration time (iteration_s_low, iteration_s_high) at a fixed baseline, cut off at the plot's edge. "
    "Points of one world size are set slightly apart. The aggregator none exchanges nothing: it bounds "
    "the others."
)
PHASES = (
    "Median of every phase, of the rank that the others wait for (columns <phase>_s), and the measured "
    "iteration (iteration_s, with its 95% interval). The phases' medians need not add up to the iteration: "
    "medians do not in general, and time between phases is in none of them."
)
EPOCHS = (
    "Training loss and test accuracy after every epoch, medians over the repeats (train_loss and "
    "test_accuracy of the raw samples; their last points are the columns train_loss, final_test_accuracy). "
    "A line ends or has a gap where a loss was not finite."
)
SECONDS = (
    "Training loss and test accuracy, medians over the repeats, against the slowest rank's seconds of "
    "training without evaluation (train_s of the raw samples; columns train_s and seconds_to_target)."
)


@dataclass(frozen=True)
class SavedFigure:
    """A figure on the disk.

    Attributes:
        name: its files' name without the ending; unique in the folder.
        title: what was compared.
        caption: how to read it, and which columns or samples it shows.
        svg: the vector file.
        png: the same at 150 dots an inch.
    """

    name: str
    title: str
    caption: str
    svg: Path
    png: Path


@dataclass(frozen=True)
class _Drawn:
    name: str
    title: str
    caption: str
    figure: Figure


def draw_figures(
    folder: ResultsFolder, rows: Sequence[Row], cells: Mapping[str, CellResult]
) -> list[SavedFigure]:
    """Draws and saves every figure that the results allow.

    Args:
        folder: where they go.
        rows: the summary.
        cells: the samples, by cell id.

    Raises:
        StoreError: a file cannot be written.
    """
    looks = aggregator_looks(row["aggregator"] for row in rows)
    saved = []
    with matplotlib.rc_context(SETTINGS):
        for group in group_rows(rows):
            saved += [_save(folder, drawn) for drawn in _group_figures(group, looks, cells)]
    return saved


def _group_figures(group: Group, looks: Looks, cells: Mapping[str, CellResult]) -> Iterator[_Drawn]:
    title = group.title
    if group.kind == "iteration":
        lines, bars = speedup_lines(group), phase_bars(group)
        if len({size for line in lines for size in line.world_sizes}) > 1:
            yield _Drawn(f"speedup-{group.slug}", title, SPEEDUP, draw_speedup(title, lines, looks))
        if bars:
            yield _Drawn(f"phases-{group.slug}", title, PHASES, draw_phases(title, bars))
    elif group.kind == "convergence" and (training := training_lines(group, cells)):
        by_epoch = draw_training(title, training, looks, "epochs")
        yield _Drawn(f"loss-epochs-{group.slug}", title, EPOCHS, by_epoch)
        by_second = draw_training(title, training, looks, "seconds")
        yield _Drawn(f"loss-seconds-{group.slug}", title, SECONDS, by_second)


def _save(folder: ResultsFolder, drawn: _Drawn) -> SavedFigure:
    svg, png = (folder.figure_path(f"{drawn.name}.{ending}") for ending in ("svg", "png"))
    FigureCanvasAgg(drawn.figure)
    # Element ids are hashes with this salt instead of random ones; the date would differ at every call.
    with matplotlib.rc_context({"svg.hashsalt": drawn.name}):
        try:
            drawn.figure.savefig(svg, format="svg", metadata={"Date": None, "Creator": None})
            drawn.figure.savefig(png, format="png")
        except OSError as error:
            raise StoreError(f"{svg}: cannot be written: {error.strerror}; choose another --out") from error
    return SavedFigure(drawn.name, drawn.title, drawn.caption, svg, png)

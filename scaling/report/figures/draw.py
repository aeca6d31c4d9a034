"""The figures of a report, each as SVG and PNG. The same results folder gives the same SVG, byte for byte."""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import matplotlib
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from scaling.analysis.columns import Row, has_no_model
from scaling.analysis.formats import workers
from scaling.analysis.groups import Group, group_rows
from scaling.analysis.recipes import recipe_text
from scaling.analysis.samples import CellResult
from scaling.report.budget_data import arrivals, bucket_responses, budget_bars, placed
from scaling.report.figure_data import speedup_lines, training_lines
from scaling.report.figures.arrivals import draw_arrivals
from scaling.report.figures.buckets import draw_buckets, draw_placements
from scaling.report.figures.budget import draw_budget
from scaling.report.figures.link_map import draw_links
from scaling.report.figures.links import CellLinks
from scaling.report.figures.parts import Looks
from scaling.report.figures.speedup import Against, draw_speedup, draw_training, placed_lines
from scaling.report.figures.style import SETTINGS, aggregator_looks
from scaling.report.figures.svg import compact
from scaling.report.figures.target import draw_target
from scaling.report.target_data import target_bars
from scaling.store import ResultsFolder

SPEEDUP = (
    "Throughput over that of one worker without exchange (column speedup). Bars: the 95% interval of the "
    "iteration time (iteration_s_low, iteration_s_high) at a fixed baseline, cut off at the plot's edge. "
    "Points of one world size are set slightly apart. The aggregator none exchanges nothing: it bounds "
    "the others. Of several bucket sizes the one is shown that is fastest on the most workers."
)
BUDGET = (
    "Where a step's time goes: mean over the middle half of the steps whose phases were marked, of the rank "
    "that the others wait for (columns <part>_s, which sum to profiled_iteration_s). Communication under the "
    "computation takes no time of the step: it is outlined above the bar (hidden_comm_s). The diamond is the "
    "iteration without any mark, with its 95% interval (iteration_s); what it lacks to the bar's end is the "
    "profiling overhead (profiling_overhead_s)."
)
ARRIVALS = (
    "How much later than the first rank each rank arrived at the first exchange of a step, on the most "
    "workers, in the split steps of the first launch (arrived_after_first_s of budget.csv; skew_s is the "
    "median of the latest rank's). A row that is dark throughout is a straggler; a dark column is a step "
    "that was disturbed."
)
LINKS = (
    "Simulated, not measured: the bytes that one exchange puts on each direction of a link, by the "
    "aggregator's schedule on topology.yaml, and the time that they take at the link's full bandwidth over "
    "the measured iteration (columns bytes and utilisation of links.csv). A schedule is shown only if it "
    "sends, rank by rank, the bytes that were metered. Aggregators with a star: the library does not tell, "
    "a ring is assumed."
)
BUCKETS = (
    "Iteration time over the bucket size, on the most workers (columns bucket_mb and iteration_s, with its "
    "95% interval, cut off at the plot's edge)."
)
PLACEMENTS = (
    "Iteration time by where the input comes from, on the most workers (columns input_placement and "
    "iteration_s, with its 95% interval)."
)
EPOCHS = (
    "Training loss (mean over the epoch's steps) and accuracy after every epoch, medians over seeds and "
    "repeats in a band from the smallest to the largest (convergence.csv; last points: the columns "
    "train_loss, train_accuracy and final_test_accuracy). Training accuracy, the thin line, is that on as "
    "many training samples as there are test samples, not augmented. A line ends or has a gap where a loss "
    "was not finite; a ring is at the end of trainings that are not over (state of convergence.csv), whose "
    "values are in no other table."
)
SECONDS = (
    "The same against the slowest rank's seconds of training without evaluation (train_s of convergence.csv; "
    "columns train_s and seconds_to_target)."
)
JOULES = (
    "The same against the energy that all GPUs took for training, without evaluation (train_j of "
    "convergence.csv; columns joules_per_sample and joules_to_target)."
)
TARGET = (
    "Seconds of training, without evaluation, to the end of the first epoch that reaches the target (column "
    "seconds_to_target; the median over repeats and seeds, only if all reach it). Predicted: the iteration "
    "time of the timed cell that takes the same step x the iterations to the target, with the 95% interval "
    "of both (columns predicted_s_to_target and its bounds; of one launch with its noise floor), with one "
    "training without that of the iterations; the gap is what a training does besides its steps, and "
    "augmentation where the timed step has none (column prediction_lacks)."
)
TRAININGS: dict[Against, str] = {"epochs": EPOCHS, "seconds": SECONDS, "joules": JOULES}


@dataclass(frozen=True)
class SavedFigure:
    """A figure on the disk.

    Attributes:
        name: its files' name without the ending; unique in the folder.
        title: what was compared.
        caption: how to read it, and which columns or samples it shows.
        svg: the vector file.
        png: the same at 150 dots an inch.
        source: the CSV that holds its values.
    """

    name: str
    title: str
    caption: str
    svg: Path
    png: Path
    source: str = "summary.csv"


@dataclass(frozen=True)
class Drawn:
    """The same before it is saved."""

    name: str
    title: str
    caption: str
    figure: Figure
    source: str = "summary.csv"


def draw_figures(
    folder: ResultsFolder,
    rows: Sequence[Row],
    cells: Mapping[str, CellResult],
    links: Mapping[str, Sequence[CellLinks]] | None = None,
) -> list[SavedFigure]:
    """Draws and saves every figure that the results allow.

    Args:
        folder: where they go.
        rows: the summary.
        cells: the samples, by cell id.
        links: group's slug -> what its cells put on the links of the machine.

    Raises:
        StoreError: a file cannot be written.
    """
    looks = aggregator_looks(row["aggregator"] for row in rows if not has_no_model(row))
    saved = []
    with matplotlib.rc_context(SETTINGS):
        for group in group_rows(rows):
            saved += [save(folder, drawn) for drawn in _group_figures(group, looks, cells)]
            if group.kind == "iteration" and (told := (links or {}).get(group.slug)):
                title = f"{group.title}, on {workers(max(group.world_sizes))}"
                figure = draw_links(title, told)
                saved.append(save(folder, Drawn(f"links-{group.slug}", title, LINKS, figure, "links.csv")))
    return saved


def _group_figures(group: Group, looks: Looks, cells: Mapping[str, CellResult]) -> Iterator[Drawn]:
    title = group.title
    if group.kind == "iteration":
        yield from _iteration_figures(group, looks, cells)
    elif group.kind == "convergence" and (training := training_lines(group, cells)):
        stated = f"{title}. {recipe_text(group.rows[0])[:1].upper()}{recipe_text(group.rows[0])[1:]}"
        for against, caption in TRAININGS.items():
            if known := placed_lines(training, against):
                figure = draw_training(stated, known, looks, against)
                yield Drawn(f"loss-{against}-{group.slug}", title, caption, figure, "convergence.csv")
        if bars := target_bars(group):
            yield Drawn(f"target-{group.slug}", stated, TARGET, draw_target(stated, bars))


def _iteration_figures(group: Group, looks: Looks, cells: Mapping[str, CellResult]) -> Iterator[Drawn]:
    title, slug = group.title, group.slug
    on_most = f"{title}, on {workers(max(group.world_sizes))}"
    lines = speedup_lines(group)
    if len({size for line in lines for size in line.world_sizes}) > 1:
        yield Drawn(f"speedup-{slug}", title, SPEEDUP, draw_speedup(title, lines, looks))
    if bars := budget_bars(group):
        yield Drawn(f"budget-{slug}", title, BUDGET, draw_budget(title, bars))
    if panels := arrivals(group, cells):
        yield Drawn(f"arrivals-{slug}", on_most, ARRIVALS, draw_arrivals(on_most, panels), "budget.csv")
    if responses := bucket_responses(group):
        yield Drawn(f"buckets-{slug}", on_most, BUCKETS, draw_buckets(on_most, responses, looks))
    if places := placed(group):
        yield Drawn(f"input-{slug}", on_most, PLACEMENTS, draw_placements(on_most, places))


def save(folder: ResultsFolder, drawn: Drawn) -> SavedFigure:
    """Writes both files; within `SETTINGS`.

    Raises:
        StoreError: one cannot be written.
    """
    FigureCanvasAgg(drawn.figure)
    # Element ids are hashes with this salt instead of random ones; the date would differ at every call.
    with matplotlib.rc_context({"svg.hashsalt": drawn.name}):
        vectors, pixels = io.StringIO(), io.BytesIO()
        drawn.figure.savefig(vectors, format="svg", metadata={"Date": None, "Creator": None})
        svg = folder.write_figure(f"{drawn.name}.svg", compact(vectors.getvalue()).encode())
        drawn.figure.savefig(pixels, format="png")
        png = folder.write_figure(f"{drawn.name}.png", pixels.getvalue())
    return SavedFigure(drawn.name, drawn.title, drawn.caption, svg, png, drawn.source)

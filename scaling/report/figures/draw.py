"""Draws and saves the figures of a report as SVG, on request as PNG too; many of them by several processes.

The same results folder gives the same SVG, byte for byte.
"""

from __future__ import annotations

import io
import multiprocessing
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import matplotlib
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from scaling.errors import StoreError, StudyError
from scaling.registry import Registry
from scaling.report.figures.base import Drawn, FigureInput, FigureKind
from scaling.report.figures.parts import SETTINGS
from scaling.report.figures.svg import compact, resized
from scaling.report.tables import SavedFigure
from scaling.store import ResultsFolder
from topologies.detect import num_usable_cores

GROUP = "scaling.figures"  # the entry-point group in which other packages offer figures
_HERE = "scaling.report.figures"

BUILT_IN = {
    "speedup": f"{_HERE}.scaling_lines:speedup",
    "step": f"{_HERE}.budget:answer_budget",
    "rate": f"{_HERE}.scaling_lines:throughput",
    "memory": f"{_HERE}.trade:memory",
    "budget": f"{_HERE}.budget:budget",
    "arrivals": f"{_HERE}.maps:late_ranks",
    "axes": "scaling.report.device.axes:choices",
    "costs": f"{_HERE}.trade:others",
    "links": f"{_HERE}.maps:link_map",
    "loss": f"{_HERE}.training:training",
    "trade": f"{_HERE}.trade:trade",
    "target": f"{_HERE}.training:target",
    "workers": f"{_HERE}.training:target_by_workers",
    "predicted": f"{_HERE}.predictions:predicted",
    "bandwidth": f"{_HERE}.transfers:bandwidths",
    "device": "scaling.report.device:experiments",
}
"""Name -> module:attribute, in the order in which they stand in a section of the page."""

FIGURES = Registry("figure", GROUP, BUILT_IN)


OF_QUESTIONS = {"memory": "memory", "buckets": "axes", "compression": "trade", "aggregator": "budget"}
"""Question of a study -> the figure that answers it: it stands open, with those of all studies."""


MANY_ROWS = 40  # cells of a study whose figures are drawn by several processes: fewer take about a second
PAPER_WIDTH = 3.3  # of a figure in a column of a paper, in inches
PAPER_SCALE = 0.8  # of the text in such a figure: 7 points for 9


@dataclass(frozen=True)
class Formats:
    png: bool = False
    paper: bool = False  # for a column of a paper, in figures/paper
    titles: bool = False  # there with titles, not only captions
    everything: bool = False  # also those of all groups of a large study


PAGE_ONLY = Formats()
Placed = tuple[int, SavedFigure]  # a figure, and the place of its group among the groups


def draw_figures(
    folder: ResultsFolder, data: FigureInput, formats: Formats = PAGE_ONLY
) -> tuple[list[SavedFigure], list[str]]:
    """Draws and saves every figure that the results allow; also which of other packages failed, and why."""
    saved: dict[str, Placed] = {}
    registry, failures = FIGURES, []
    try:
        registry.targets()
    except StudyError as error:  # a name is offered twice
        registry = Registry("figure", "", BUILT_IN)
        failures = [f"The figures of other packages are left out: {error}."]
    job = _Job(folder, data, formats)
    for placed in _drawn_by_processes(job, list(BUILT_IN)):
        saved |= placed
    for name in [name for name in registry.targets() if name not in BUILT_IN]:
        try:
            saved |= job.draw(registry, name, saved)
        except StoreError:
            raise
        except Exception as error:  # noqa: BLE001 (another package's figure may raise anything)
            failures.append(f"The figure {name!r} failed: {type(error).__name__}: {error}.")
    order = {name: place for place, name in enumerate(registry.targets())}
    ordered = sorted(saved.values(), key=lambda pair: (pair[0], order[pair[1].kind]))
    return [figure for _, figure in ordered], failures


@dataclass(frozen=True)
class _Job:
    folder: ResultsFolder
    data: FigureInput
    formats: Formats

    def draw(self, registry: Registry, name: str, saved: Mapping[str, Placed]) -> dict[str, Placed]:
        places = {(group.kind, group.slug): place for place, group in enumerate(self.data.groups)}
        made: dict[str, Placed] = {}
        with matplotlib.rc_context(SETTINGS):
            kind = registry.load(name)
            if not isinstance(kind, FigureKind):
                raise StudyError(
                    f"{registry.targets()[name]} is no figure; decorate its function with @figure"
                )
            section = "answer" if OF_QUESTIONS.get(self.data.question) == name else kind.section
            for drawn in kind.draw(self.data):
                if drawn.name in saved or drawn.name in made:
                    raise StudyError(f"there is a figure {drawn.name!r} already; give it another name")
                place = len(places) if drawn.group is None else places[drawn.group.kind, drawn.group.slug]
                made[drawn.name] = (place, save(self.folder, drawn, section, name, self.formats))
        return made

    def draw_built_in(self, name: str) -> dict[str, Placed]:
        return self.draw(Registry("figure", "", BUILT_IN), name, {})


def _drawn_by_processes(job: _Job, names: Sequence[str]) -> Iterator[dict[str, Placed]]:
    """What each name draws: here, or where there is much to draw, in a process for each core."""
    processes = min(num_usable_cores(), len(names))
    if processes < 2 or len(job.data.rows) < MANY_ROWS or sys.platform != "linux":
        yield from map(job.draw_built_in, names)
        return
    # Forked, not started anew: a new process would import matplotlib and read the samples again.
    with multiprocessing.get_context("fork").Pool(processes, _take, (job,)) as pool:
        yield from pool.imap_unordered(_draw_taken, names)


_taken: list[_Job] = []


def _take(job: _Job) -> None:
    _taken[:] = [job]


def _draw_taken(name: str) -> dict[str, Placed]:
    return _taken[0].draw_built_in(name)


def save(
    folder: ResultsFolder, drawn: Drawn, section: str, kind: str, formats: Formats = PAGE_ONLY
) -> SavedFigure:
    """Writes its files, within `SETTINGS`; StoreError: one cannot be written."""
    FigureCanvasAgg(drawn.figure)
    svg = folder.write_figure(f"{drawn.name}.svg", _svg(drawn).encode())
    if formats.png:
        pixels = io.BytesIO()
        drawn.figure.savefig(pixels, format="png")
        folder.write_figure(f"{drawn.name}.png", pixels.getvalue())
    if formats.paper:  # set for a narrower page, with its text at `PAPER_SCALE`; it is of no other use then
        if not formats.titles:
            drawn.figure.suptitle("")
        drawn.figure.set_figwidth(PAPER_WIDTH / PAPER_SCALE)
        folder.write_figure(f"paper/{drawn.name}.svg", resized(_svg(drawn), PAPER_WIDTH).encode())
    group = drawn.group.key if drawn.group else ""
    return SavedFigure(drawn.name, drawn.title, drawn.caption, section, svg, drawn.source, kind, group)


def _svg(drawn: Drawn) -> str:
    return svg_of(drawn.figure, drawn.name, f"{drawn.title}. {drawn.caption}")


def svg_of(figure: Figure, name: str, description: str) -> str:
    """A figure as SVG, the same bytes at every call."""
    # Element ids are hashes with this salt instead of random ones; the date would differ at every call.
    with matplotlib.rc_context({"svg.hashsalt": name}):
        vectors = io.StringIO()
        figure.savefig(vectors, format="svg", metadata={"Date": None, "Creator": None})
    return compact(vectors.getvalue(), description)

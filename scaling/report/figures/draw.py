"""Draws and saves the figures of a report, each as SVG and PNG.

The same results folder gives the same SVG, byte for byte.
"""

from __future__ import annotations

import io
from collections.abc import Iterator

import matplotlib
from matplotlib.backends.backend_agg import FigureCanvasAgg

from scaling.errors import StoreError, StudyError
from scaling.registry import Registry
from scaling.report.figures.base import Drawn, FigureInput, FigureKind, SavedFigure
from scaling.report.figures.style import SETTINGS
from scaling.report.figures.svg import compact
from scaling.store import ResultsFolder

GROUP = "scaling.figures"
"""The entry-point group in which other packages offer figures."""

_HERE = "scaling.report.figures"

BUILT_IN = {
    "speedup": f"{_HERE}.speedup:speedup",
    "budget": f"{_HERE}.budget:budget",
    "arrivals": f"{_HERE}.arrivals:late_ranks",
    "buckets": f"{_HERE}.buckets:buckets",
    "input": f"{_HERE}.placements:placements",
    "links": f"{_HERE}.link_map:link_map",
    "loss": f"{_HERE}.training:training",
    "target": f"{_HERE}.target:target",
    "predicted": f"{_HERE}.predictions:predicted",
    "bandwidth": f"{_HERE}.transfers:bandwidths",
    "device": "scaling.report.device:experiments",
}
"""Name -> module:attribute, in the order in which they stand in a section of the page."""

FIGURES = Registry("figure", GROUP, BUILT_IN)


def draw_figures(folder: ResultsFolder, data: FigureInput) -> tuple[list[SavedFigure], list[str]]:
    """Draws and saves every figure that the results allow.

    Args:
        folder: where they go.
        data: what they are made of.

    Returns:
        The figures, those of a group together; and which figures of other packages failed, and why.

    Raises:
        StoreError: a file cannot be written.
    """
    places = {(group.kind, group.slug): place for place, group in enumerate(data.groups)}
    saved: dict[str, tuple[int, SavedFigure]] = {}
    registry, failures = _usable()
    with matplotlib.rc_context(SETTINGS):
        for name in registry.targets():
            try:
                for section, drawn in _drawn(registry, name, data):
                    if drawn.name in saved:
                        raise StudyError(f"there is a figure {drawn.name!r} already; give it another name")
                    place = len(places) if drawn.group is None else places[drawn.group.kind, drawn.group.slug]
                    saved[drawn.name] = place, save(folder, drawn, section)
            except StoreError:
                raise
            except Exception as error:  # another package's figure may raise anything
                if name in BUILT_IN:
                    raise
                failures.append(f"The figure {name!r} failed: {type(error).__name__}: {error}.")
    return [one for _, one in sorted(saved.values(), key=lambda pair: pair[0])], failures


def _usable() -> tuple[Registry, list[str]]:
    """All figures; where a name is offered twice the built-in ones, and why others are left out."""
    try:
        FIGURES.targets()
    except StudyError as error:
        return Registry("figure", "", BUILT_IN), [f"The figures of other packages are left out: {error}."]
    return FIGURES, []


def _drawn(registry: Registry, name: str, data: FigureInput) -> Iterator[tuple[str, Drawn]]:
    """What one figure draws, each with the section in which it stands."""
    kind = registry.load(name)
    if not isinstance(kind, FigureKind):
        raise StudyError(f"{registry.targets()[name]} is no figure; decorate its function with @figure")
    for drawn in kind.draw(data):
        yield kind.section, drawn


def save(folder: ResultsFolder, drawn: Drawn, section: str) -> SavedFigure:
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
    return SavedFigure(drawn.name, drawn.title, drawn.caption, section, svg, png, drawn.source)

"""What a figure is: a function of what a report is made of, behind `@figure`, which yields what it draws."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

from matplotlib.figure import Figure

from scaling.analysis.columns import Row, has_no_model
from scaling.analysis.groups import CellGroup, group_rows
from scaling.analysis.samples import CellResult
from scaling.analysis.transfers import TransferResult
from scaling.errors import StudyError
from scaling.report.figures.parts import Look, aggregator_looks
from scaling.report.tables import TITLES
from scaling.report.text import title_parts

if TYPE_CHECKING:  # they draw figures themselves
    from scaling.analysis.links import CellLinks
    from scaling.report.device.results import DeviceResults
    from scaling.report.predictions import PredictedCell


@dataclass(frozen=True)
class FigureInput:
    rows: Sequence[Row]  # the summary
    cells: Mapping[str, CellResult]  # the samples, by cell id
    # slug of a group -> what its cells put on the links of the machine
    links: Mapping[str, Sequence[CellLinks]] = field(default_factory=dict)
    transfers: Sequence[TransferResult] = ()  # cells without a model that time copies and messages
    predicted: Sequence[PredictedCell] = ()  # cells that were predicted before they were measured
    experiments: Sequence[DeviceResults] = ()  # device cells, an experiment each
    best: Collection[str] = ()  # ids of the cells that the study's answers choose
    question: str = ""  # the study's

    @cached_property
    def groups(self) -> list[CellGroup]:
        return group_rows(self.rows)

    def groups_of(self, kind: str) -> Iterator[CellGroup]:
        return (group for group in self.groups if group.kind == kind)

    @cached_property
    def looks(self) -> dict[str, Look]:
        labels = [row["aggregator"] for row in self.rows if not has_no_model(row)]
        trained = {row["aggregator"] for row in self.rows if row["kind"] == "convergence"}
        return aggregator_looks(labels, trained)

    def best_of(self, group: CellGroup) -> set[str]:
        return {row["aggregator"] for row in group.rows if row["cell_id"] in self.best}

    def titled(self, what: str, group: CellGroup) -> str:
        """`what`, and what distinguishes the group from the report's others of its kind."""
        parts = [title_parts(other.given) for other in self.groups_of(group.kind)]
        said = {"strong scaling", "weak scaling"} | set(parts[0]).intersection(*parts[1:])  # by the batch
        return ", ".join([what, *(part for part in title_parts(group.given) if part not in said)])


@dataclass(frozen=True)
class Drawn:
    """A figure before it is saved."""

    name: str  # its files' name without the ending; unique in the folder
    title: str  # what was compared
    caption: str  # how to read it, and which columns or samples it shows
    figure: Figure  # the drawing
    source: str = "summary.csv"  # the CSV that holds its values
    group: CellGroup | None = None  # that it shows; None where it shows no group or several


Draw = Callable[[FigureInput], Iterable[Drawn]]


@dataclass(frozen=True)
class FigureKind:
    section: str
    draw: Draw


def figure(*, section: str) -> Callable[[Draw], FigureKind]:
    """Makes a figure of a function that yields what it draws, for that section; else StudyError."""
    if section not in TITLES:
        raise StudyError(f"a figure's section is one of {', '.join(TITLES)}, not {section!r}")
    return lambda draw: FigureKind(section, draw)

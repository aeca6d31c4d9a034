"""How the report of an experiment is declared: what is drawn over what, in which tables, and what is asked.

An experiment's module has one `DeviceReport`. All that experiments have in common follows from it: names
of figures, the table of points without numbers, and the question before its answer.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from scaling.report.device.common import (
    NO_ROWS,
    Variant,
    arms_of,
    device_table,
    interval_cell,
    left_out_table,
    remarks,
    time_cell,
)
from scaling.report.device.comparisons import LEAD
from scaling.report.device.drawing import (
    Panel,
    as_rates,
    draw_lines,
    handles,
    log_axes,
    new_figure,
    time_line,
)
from scaling.report.device.results import DeviceResult, Results, grouped
from scaling.report.figures.base import Drawn
from scaling.report.figures.parts import legend_below
from scaling.report.formats import MISSING, number
from scaling.report.tables import Column, Table

RATE = "samples/s"


@dataclass(frozen=True)
class Lines:
    """Times or rates on logarithmic axes, as lines over a variable.

    Attributes:
        name: of its file, after that of the experiment.
        caption: what it shows.
        title: after the experiment's name.
        panels: what each shows, over which variable.
        y: the values' axis; RATE: samples a second, and not milliseconds.
        hues: the lines of a panel.
        rows: of panels; without it as many as two columns need.
        row_height: of a row of panels, in inches.
        share: which axes the panels share, as `Figure.subplots` takes it.
    """

    name: str
    caption: str
    title: Callable[[Results], str]
    panels: Callable[[Results], Sequence[Panel]]
    y: str = "ms a step"
    hues: Callable[[Results], Iterable[Variant]] = arms_of
    rows: int | None = None
    row_height: float = 2.5
    share: Mapping[str, bool | str] = field(default_factory=dict)

    def draw(self, results: Results, title: str) -> Figure | None:
        """The figure; None where no cell of its panels has a time."""
        panels = self.panels(results)
        timed = [cell for panel in panels for cell in panel.cells if cell.estimate(panel.phase)]
        arms = [arm for arm in self.hues(results) if arm.of(timed)]
        if not arms:
            return None
        rows = self.rows or math.ceil(len(panels) / 2)
        columns = math.ceil(len(panels) / rows) if self.rows else 2
        figure, grid = new_figure(title, 0.9 + self.row_height * rows, rows, columns, **self.share)
        for axes, panel in zip(grid.flat, panels, strict=False):
            self._draw(axes, panel, arms)
        for axes in grid.flat[len(panels) :]:
            axes.set_axis_off()
        legend_below(figure, handles(arms))
        return figure

    def _draw(self, axes: Axes, panel: Panel, arms: Sequence[Variant]) -> None:
        every = [time_line(arm, arm.of(panel.cells), panel.x, panel.phase) for arm in arms]
        lines = [line for line in every if not line.is_empty]
        is_rate = self.y == RATE
        draw_lines(axes, map(as_rates, lines) if is_rate else lines, RATE if is_rate else "ms")
        log_axes(axes, panel.label or panel.x, self.y)
        axes.tick_params(labelbottom=True)
        axes.set_title(panel.title, loc="left")
        if panel.doubles:
            axes.set_xscale("log", base=2)
            values = [*grouped(panel.cells, panel.x)]
            axes.set_xticks(values, labels=[str(value) for value in values])


@dataclass(frozen=True)
class Drawing:
    """A figure of its own kind; `draw` gives None where nothing of it was measured."""

    name: str
    caption: str
    title: Callable[[Results], str]
    draw: Callable[[Results, str], Figure | None]


@dataclass(frozen=True)
class DeviceReport:
    """What the report of an experiment says.

    Attributes:
        question: that the experiment answers; "" where nothing is asked.
        plots: its figures.
        rows: its tables.
        named: the variables that name a point.
        findings: what was found besides.
        answer: to the question; "" where there is none.
        headline: the answer in one short sentence; "" where `answer` is short, or nothing is known.
        over: what the headline's answer is decided over; one launch decides nothing.
    """

    question: str
    plots: Sequence[Lines | Drawing]
    rows: Callable[[Results], Iterator[Table]]
    named: Sequence[str]
    answer: Callable[[Results], str]
    findings: Callable[[Results], Iterator[str]] = lambda _: iter(())
    headline: Callable[[Results], str] = lambda _: ""
    over: Literal["launches", "seeds"] = "launches"

    def short_answer(self, results: Results) -> str:
        """The headline, said to be of one launch where it is."""
        text = self.headline(results)
        if not text or results.num_launches > 1 or self.over != "launches":
            return text
        return LEAD + (text[0].lower() if text[1].islower() else text[0]) + text[1:]

    def figures(self, results: Results) -> Iterator[Drawn]:
        """Those that have something to show, under names that begin with `device-<slug>-`."""
        for plot in self.plots:
            title = f"{results.experiment}: {plot.title(results)}"
            if (figure := plot.draw(results, title)) is not None:
                yield Drawn(f"device-{results.slug}-{plot.name}", title, plot.caption, figure)

    def tables(self, results: Results) -> Iterator[Table]:
        """The experiment's own, and the points without numbers."""
        yield from self.rows(results)
        yield from left_out_table(results, self.named)

    def sentences(self, results: Results) -> Iterator[str]:
        """What was found; the last one answers the question."""
        yield from self.findings(results)
        if answer := " ".join(filter(None, (self.short_answer(results), self.answer(results)))):
            yield f"{self.question} {answer}".strip()


def plain_report(results: Results) -> DeviceReport:
    """Of an experiment that has none of its own: one table of all that was measured, and no figures."""
    variables = list(dict.fromkeys(name for cell in results.cells for name in cell.point))
    columns: list[Column[tuple[DeviceResult, str]]] = [
        *(Column(name, lambda row, name=name: str(row[0].point.get(name, MISSING))) for name in variables),  # type: ignore[misc]
        Column("device", lambda row: row[0].device),
        Column("threads", lambda row: str(row[0].threads)),
        Column("what", lambda row: row[1]),
        Column("ms", lambda row: time_cell(*row)),
        Column("95% interval, ms", lambda row: interval_cell(*row)),
        Column("samples/s", lambda row: number(row[0].samples_per_s)),
        Column("facts", lambda row: ", ".join(f"{name} {value}" for name, value in row[0].scalars.items())),
    ]

    def rows(results: Results) -> Iterator[Table]:
        items = [(cell, phase) for cell in results.cells for phase in cell.phases or [""]]
        below = remarks(results, NO_ROWS)
        yield device_table(results, "", columns, items, cells_of=lambda row: [row[0]], remarks=below)

    def answer(results: Results) -> str:
        measured = sum(bool(cell.phases) for cell in results.cells)
        return (
            f"{results.experiment}: {measured} of {len(results.cells)} points were measured; see its table."
        )

    return DeviceReport("", (), rows, variables, answer)

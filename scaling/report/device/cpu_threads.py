"""How many CPU threads are worth it? Speedup of a training step over threads, for each network."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain, cycle, repeat
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from scaling.report.device.common import (
    OTHER_COLOURS,
    OTHER_MARKERS,
    Cells,
    device_table,
    measured,
    median_text,
    networks_text,
    one_launch,
    spread,
    variable,
)
from scaling.report.device.declared import DeviceReport, Drawing
from scaling.report.device.drawing import DrawnLine, draw_lines, handle, handles, new_figure, seconds_of
from scaling.report.device.remarks import remarks
from scaling.report.device.results import DeviceResult, Results, by_network
from scaling.report.figures.parts import legend_below, plain_ticks
from scaling.report.figures.style import MOST_COLOURED, OTHER
from scaling.report.formats import MISSING, listed, ratio
from scaling.report.tables import Column, Table

ALMOST = 1.05
"""Threads are not worth it that bring less than this over fewer."""

CAPTION = (
    "Time of a training step with the fewest threads over that with more (column iteration_s). Bars: the "
    "ratio of the intervals' opposite ends. Batches are reduced, as the table says."
)


def _title(results: Results) -> str:
    return f"training steps on the CPU{f', {results.num_cores} cores' if results.num_cores else ''}"


def _draw(results: Results, title: str) -> Figure | None:
    """Speedups of all networks over threads."""
    lines = speedup_lines(results)
    if not any(np.isfinite(line.values).sum() > 1 for line in lines):
        return None
    figure, ((axes,),) = new_figure(title, 4.4)
    threads = sorted({int(at) for line in lines for at in line.at})
    linear: dict[str, Any] = {"color": "#999999", "linestyle": (0, (5, 2))}
    axes.plot(threads, [count / threads[0] for count in threads], **linear)
    draw_lines(axes, lines, "times faster")
    axes.set_xscale("log", base=2)
    axes.set_yscale("log", base=2)
    plain_ticks(axes, threads)
    axes.set_xlabel("threads")
    axes.set_ylabel(f"speedup over {threads[0]} thread{'s' * (threads[0] > 1)}")
    legend_below(figure, [*handles(lines), handle("as many times as threads", **linear)])
    return figure


def speedup_lines(results: Results) -> list[DrawnLine]:
    """One for each network: speedup over the fewest threads."""
    lines = []
    colours = chain(OTHER_COLOURS[:MOST_COLOURED], repeat(OTHER))
    looks = zip(colours, cycle(OTHER_MARKERS), strict=False)
    for (model, cells), look in zip(networks(results).items(), looks, strict=False):
        medians, lows, highs = seconds_of(cells)
        if np.isnan(medians[0]):
            continue
        low, high = lows[0] / highs, highs[0] / lows
        low[0] = high[0] = 1.0
        threads = np.array([cell.threads for cell in cells], dtype=np.float64)
        lines.append(DrawnLine(model, *look, threads, medians[0] / medians, low, high))
    return lines


def networks(results: Results) -> dict[str, list[DeviceResult]]:
    """Network -> its cells by batch and threads, ascending."""
    return {
        name: sorted(cells, key=lambda cell: (cell.point["batch"], cell.threads))
        for name, cells in by_network(results, "cpu").items()
    }


def _rows(results: Results) -> Iterator[Table]:
    """A row for each network and number of threads."""
    first = {name: cells[0].estimate() for name, cells in networks(results).items()}

    def speedup(cells: Cells) -> str:
        fewest, more = first[cells[0].point["model"]], cells[0].estimate()
        return ratio(fewest.median / more.median) if fewest and more else MISSING

    yield device_table(
        results,
        ": a training step on the CPU, reduced batches",
        [
            *(variable("model", "network"), variable("batch"), variable("threads")),
            *measured(),
            Column("speedup", speedup),
        ],
        [[cell] for cells in networks(results).values() for cell in cells],
        statistic=f"Speedup: over the fewest threads of the network. {median_text(results)}",
        remarks=remarks(results),
    )


def worthwhile(cells: list[DeviceResult]) -> tuple[int, float] | None:
    """The fewest threads within 5% of the fastest, their speedup; None unless all were tried."""
    measured = [(cell.threads, estimate.median) for cell in cells if (estimate := cell.estimate())]
    if len(measured) < 2 or cells[0].estimate() is None or not all(cell.is_over for cell in cells):
        return None
    best = min(seconds for _, seconds in measured)
    threads, seconds = next((count, taken_s) for count, taken_s in measured if taken_s <= ALMOST * best)
    return threads, measured[0][1] / seconds


def _headline(results: Results) -> str:
    """The fewest and the most threads, and what they gain."""
    worths = [worth for cells in networks(results).values() if (worth := worthwhile(cells))]
    if not worths:
        return ""
    counts = [cell.threads for cell in results.cells]
    enough = spread([threads for threads, _ in worths])
    return (
        f"{enough} of {max(counts)}: a training step is then {spread([gain for _, gain in worths])} times as "
        f"fast as with {min(counts)}{networks_text(len(worths))}."
    )


def _answer(results: Results) -> str:
    """How many threads each network is worth."""
    worths = {model: worth for model, cells in networks(results).items() if (worth := worthwhile(cells))}
    if not worths:
        return "Not answered: no network was measured with all of them."
    most = max(cell.threads for cell in results.cells)
    least = min(cell.threads for cell in results.cells)
    alone = [model for model, (threads, _) in worths.items() if threads == least]
    groups: dict[int, list[str]] = {}
    for model, (threads, gain) in sorted(worths.items(), key=lambda item: -item[1][1]):
        if threads != least:
            groups.setdefault(threads, []).append(f"{model} ({gain:.2f} times as fast as with {least})")
    clauses = [f"{count} for {listed(names)}" for count, names in sorted(groups.items(), reverse=True)]
    if alone:
        clauses.append(f"{least} for {listed(alone)}, which more do not make faster")
    rest = [model for model in networks(results) if model not in worths]
    missing = f" Not answered for {listed(rest)}." if rest else ""
    return (
        f"Of {least} to {most}, the fewest that are within 5% of the "
        f"fastest are {'; '.join(clauses)}{one_launch(results)}.{missing}"
    )


REPORT = DeviceReport(
    question="How many CPU threads are worth it?",
    plots=(Drawing("speedup", CAPTION, _title, _draw),),
    rows=_rows,
    named=("model", "batch"),
    answer=_answer,
    headline=_headline,
)

"""How many CPU threads are worth it? Speedup of a training step over threads, for each network."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain, cycle, repeat
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from scaling.analysis.decisions import TIE_RATIO, Difference
from scaling.report.device.common import (
    OTHER_COLOURS,
    OTHER_MARKERS,
    Cells,
    device_table,
    measured,
    median_text,
    remarks,
    variable,
)
from scaling.report.device.comparisons import Reached, finding, networks_text, reached, spread, times_of
from scaling.report.device.declared import DeviceReport, Drawing
from scaling.report.device.drawing import DrawnLine, draw_lines, handle, handles, new_figure
from scaling.report.device.results import DeviceResult, Results, by_network
from scaling.report.figures.parts import legend_below, plain_ticks
from scaling.report.figures.style import MOST_COLOURED, OTHER
from scaling.report.formats import MISSING, listed, ratio
from scaling.report.tables import Column, Table

CAPTION = (
    "Time of a training step with the fewest threads over that with more (column iteration_s), launch by "
    "launch. Bars: 95% intervals. Batches are reduced, as the table says."
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
    draw_lines(axes, lines, "times")
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
        if cells[0].estimate() is None:
            continue
        differences = [speedup(cells, cell) for cell in cells]
        ends = [(d.ratio, *(d.interval or (np.nan,) * 2)) if d else (np.nan,) * 3 for d in differences]
        ends[0] = (1.0, 1.0, 1.0)
        threads = np.array([cell.threads for cell in cells], dtype=np.float64)
        lines.append(DrawnLine(model, *look, threads, *np.array(ends, dtype=np.float64).T))
    return lines


def networks(results: Results) -> dict[str, list[DeviceResult]]:
    """Network -> its cells by batch and threads, ascending."""
    return {
        name: sorted(cells, key=lambda cell: (cell.point["batch"], cell.threads))
        for name, cells in by_network(results, "cpu").items()
    }


def speedup(cells: Cells, cell: DeviceResult) -> Difference | None:
    """The network's time with the fewest threads over that of the cell; None where one has none."""
    return cell.difference(cells[0])


def _rows(results: Results) -> Iterator[Table]:
    """A row for each network and number of threads."""
    every = networks(results)

    def text(cells: Cells) -> str:
        difference = speedup(every[cells[0].point["model"]], cells[0])
        return ratio(difference.ratio) if difference else MISSING

    yield device_table(
        results,
        ": a training step on the CPU, reduced batches",
        [
            variable("model", "network"),
            variable("batch"),
            variable("threads"),
            *measured(),
            Column("speedup", text),
        ],
        [[cell] for cells in every.values() for cell in cells],
        statistic=f"Speedup: over the fewest threads of the network. {median_text(results)}",
        remarks=remarks(results),
    )


def worthwhile(cells: list[DeviceResult]) -> Reached | None:
    """The fewest threads that take at most 3% more than the least time; None unless all were tried."""
    num_measured = sum(cell.estimate() is not None for cell in cells)
    if num_measured < 2 or cells[0].estimate() is None or not all(cell.is_over for cell in cells):
        return None
    return reached(cells, "threads", 1 + TIE_RATIO)


def _gains(results: Results) -> dict[str, tuple[Reached, Difference]]:
    """Network -> the threads that are worth it, and the time with the fewest over that with these."""
    gains = {}
    for model, cells in networks(results).items():
        worth = worthwhile(cells)
        if worth and (gain := speedup(cells, worth.shown)):
            gains[model] = (worth, gain)
    return gains


def _headline(results: Results) -> str:
    """The fewest and the most threads, and what they gain."""
    gains = _gains(results)
    if not gains:
        return ""
    counts = [cell.threads for cell in results.cells]
    enough = spread([worth.shown.threads for worth, _ in gains.values()])
    longer = spread([gain.ratio for _, gain in gains.values()])
    return (
        f"{enough} of {max(counts)}: a training step takes {longer} times as long with {min(counts)}"
        f"{networks_text(len(gains))}."
    )


def _answer(results: Results) -> str:
    """How many threads each network is worth."""
    gains = _gains(results)
    if not gains:
        return "Not answered: no network was measured with all of them."
    counts = [cell.threads for cell in results.cells]
    least, most = min(counts), max(counts)
    with_least = [model for model, (worth, _) in gains.items() if worth.shown.threads == least]
    groups: dict[tuple[int, str], list[str]] = {}
    for model, (worth, gain) in sorted(gains.items(), key=lambda item: -item[1][1].ratio):
        if model not in with_least:
            key = (worth.shown.threads, worth.text("threads"))
            groups.setdefault(key, []).append(f"{model} ({times_of([gain])})")
    clauses = [f"{text} for {listed(names)}" for (_, text), names in sorted(groups.items(), reverse=True)]
    if with_least:
        clauses.append(f"{least} for {listed(with_least)}, where more take no less")
    rest = [model for model in networks(results) if model not in gains]
    before = (
        f"Of {least} to {most}, the fewest that take at most {TIE_RATIO:.0%} more than the least time (in "
        f"brackets how long {least} take{'s' * (least == 1)}) are "
    )
    missing = [f"Not answered for {listed(rest)}."] if rest else []
    return " ".join([*finding(results, before, clauses), *missing])


REPORT = DeviceReport(
    question="How many CPU threads are worth it?",
    plots=(Drawing("speedup", CAPTION, _title, _draw),),
    rows=_rows,
    named=("model", "batch"),
    answer=_answer,
    headline=_headline,
)

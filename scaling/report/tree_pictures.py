"""A schedule's spanning trees as an SVG picture: for each chunk, how it goes from rank to rank at the end.

One circle of ranks a chunk, with the transfers that copy it, numbered by their steps: the all-gather. The
reduce-scatter before it goes up trees of the same kind.
"""

from __future__ import annotations

import math

import numpy as np
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from scaling.collectives.schedule import Schedule
from scaling.report.figures.draw import svg_of
from scaling.report.machine_pictures import POINTS_PER_INCH, STYLE, plate

MAX_CHUNKS = 16
PANELS_PER_ROW = 4
SIZE, TOP = 170.0, 34.0
COLORS = ("#1b6ca8", "#d1495b", "#2e8b57", "#b8860b", "#6a4c93", "#777777")


def draw(schedule: Schedule, title: str) -> str:
    """The picture as the text of an SVG file; of many chunks the first ones."""
    chunks = min(schedule.num_chunks, MAX_CHUNKS)
    columns = min(chunks, PANELS_PER_ROW)
    rows = math.ceil(chunks / columns)
    width, height = max(SIZE * columns, 7.0 * len(title)), TOP + SIZE * rows
    with rc_context(STYLE):
        figure = Figure(figsize=(width / POINTS_PER_INCH, height / POINTS_PER_INCH))
        figure.text(8 / width, 1 - 20 / height, title, size=12, weight="bold")
        for chunk in range(chunks):
            corner = SIZE * (chunk % columns), height - TOP - SIZE * (chunk // columns + 1)
            place = (corner[0] / width, corner[1] / height, SIZE / width, SIZE / height)
            _panel(figure.add_axes(place, xlim=(-1.5, 1.5), ylim=(-1.5, 1.5)), schedule, chunk)
        return svg_of(figure, title, title)


def _panel(axes: Axes, schedule: Schedule, chunk: int) -> None:
    axes.axis("off")
    axes.text(0, -1.45, f"chunk {chunk}", size=10, ha="center")
    angles = 2 * math.pi * np.arange(schedule.world_size) / schedule.world_size
    places = np.stack([np.sin(angles), np.cos(angles)], axis=1)
    for rank, (x, y) in enumerate(places):
        axes.text(x, y, str(rank), size=11, ha="center", va="center")
    moves = [
        (number, transfer)
        for number, step in enumerate(schedule.steps, 1)
        for transfer in step
        if transfer.operation == "copy" and transfer.start <= chunk < transfer.stop
    ]
    for number, transfer in moves:
        start, way = places[transfer.source], places[transfer.target] - places[transfer.source]
        color = COLORS[(number - moves[0][0]) % len(COLORS)]
        axes.plot(*np.stack([start + 0.12 * way, start + 0.88 * way], axis=1), color=color, lw=1.8)
        x, y = start + 0.72 * way
        axes.text(x, y, str(number), size=9, color=color, ha="center", va="center", bbox=plate(0.5))

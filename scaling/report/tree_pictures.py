"""A schedule's spanning trees as an SVG picture: for each chunk, how it goes from rank to rank at the end.

One circle of ranks a chunk, with the transfers that copy it, numbered by their steps: the all-gather. The
reduce-scatter before it goes up trees of the same kind.
"""

from __future__ import annotations

import math

from scaling.collectives.schedule import Schedule
from topologies.svg import INK, Point, document, line, text

MAX_CHUNKS = 16
PANELS_PER_ROW = 4
SIZE, RADIUS, TOP = 170.0, 58.0, 34.0
COLORS = ("#1b6ca8", "#d1495b", "#2e8b57", "#b8860b", "#6a4c93", "#777777")


def draw(schedule: Schedule, title: str) -> str:
    """The picture as the text of an SVG file; of many chunks the first ones."""
    chunks = min(schedule.num_chunks, MAX_CHUNKS)
    columns = min(chunks, PANELS_PER_ROW)
    parts = [text((8, 20), title, size=12, anchor="start", bold=True)]
    for chunk in range(chunks):
        parts += _panel(schedule, chunk, (SIZE * (chunk % columns), TOP + SIZE * (chunk // columns)))
    width = max(SIZE * columns, 7.0 * len(title))
    return document(width, TOP + SIZE * math.ceil(chunks / columns), title, parts)


def _panel(schedule: Schedule, chunk: int, corner: Point) -> list[str]:
    places = [
        (
            corner[0] + SIZE / 2 + RADIUS * math.sin(2 * math.pi * rank / schedule.world_size),
            corner[1] + SIZE / 2 - RADIUS * math.cos(2 * math.pi * rank / schedule.world_size),
        )
        for rank in range(schedule.world_size)
    ]
    moves = [
        (number, transfer)
        for number, step in enumerate(schedule.steps, 1)
        for transfer in step
        if transfer.operation == "copy" and transfer.start <= chunk < transfer.stop
    ]
    lines, labels = [], []
    for number, transfer in moves:
        start, end = places[transfer.source], places[transfer.target]
        color = COLORS[(number - moves[0][0]) % len(COLORS)]
        lines.append(line([_between(start, end, 0.12), _between(start, end, 0.88)], color=color, width=1.8))
        labels.append(text(_between(start, end, 0.72), str(number), size=9, color=color, halo=True))
    ranks = [text((x, y + 4), str(rank), size=11, color=INK, halo=True) for rank, (x, y) in enumerate(places)]
    at = (corner[0] + SIZE / 2, corner[1] + SIZE - 4)
    return [*lines, *labels, *ranks, text(at, f"chunk {chunk}", size=10)]


def _between(start: Point, end: Point, share: float) -> Point:
    return start[0] + (end[0] - start[0]) * share, start[1] + (end[1] - start[1]) * share

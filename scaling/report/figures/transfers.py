"""Bandwidth over size, both axes logarithmic: copies and messages of one world size."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, LogLocator

from scaling.analysis.columns import by_key
from scaling.analysis.transfers import MESSAGES, TransferGroup, TransferLine, What, lines_of, transfer_groups
from scaling.measure.probe.series import size_text
from scaling.report.figures import parts
from scaling.report.figures.base import Drawn, FigureInput, figure
from scaling.report.figures.svg import with_tip
from scaling.report.transfer_tables import NAMES, name_of, title_of, who_did

CAPTION = (
    "Bus bandwidth of the median time. busbw of nccl-tests: column busbw_bytes_per_s of transfers.csv. "
    "Bars: 95% intervals; a hollow point has none."
)

TO_HOST = ("h2d", "d2h", "h2d_d2h")
TO_PEER = ("peer_copy", "peer_shift", "send", "swap", "shift")
TOGETHER = tuple(name for name in MESSAGES if name not in TO_PEER)
COLOURS = (parts.REFERENCE, *parts.FURTHER)
HOST_ONLY = ", host-only"
LABEL_CHARACTERS = 28  # longer labels at the ends of lines take two lines
MOST_OPERATIONS = 3
"""Of a figure stand out, each in its fastest form; those measured with and without peer access first."""

HEIGHT = 3.0
AXIS_SIZES = tuple(1024 * 16**step for step in range(6))
PLAIN: parts.LineStyle = "-"
DASHED: parts.LineStyle = (0, (5, 2))


@figure(section="transfers")
def bandwidths(data: FigureInput) -> Iterator[Drawn]:
    for group in transfer_groups(data.transfers):
        panels = _panels_of(group)
        for name, title, lines in panels:
            # The figures with and without peer access show the same operations.
            family = [line for other, _, more in panels if FAMILIES[other] == FAMILIES[name] for line in more]
            standing = standing_out(family)
            dashed = " Dashed: without peer access." if any(line.host_only for line in lines) else ""
            grey = (
                f" Grey: all others{parts.ON_REQUEST}." if any(line not in standing for line in lines) else ""
            )
            yield Drawn(
                f"bandwidth-{name}-{group.slug}",
                f"{title_of(group)}: {title}",
                f"{CAPTION}{dashed}{grey}",
                draw_bandwidths(f"{title[0].upper()}{title[1:]}", lines, standing),
                "transfers.csv",
            )


@dataclass(frozen=True)
class BandwidthLine:
    """One line of the figure: bus bandwidths in GB/s over sizes in bytes."""

    label: str
    what: What
    host_only: bool
    sizes_bytes: list[int]
    busbw: list[float]
    low: list[float]
    high: list[float]


def bandwidth_lines(group: TransferGroup, operations: Sequence[str]) -> list[BandwidthLine]:
    wanted = [line for line in lines_of(group) if line.what.operation in operations]
    series = by_key(wanted, lambda line: (line.what, line.host_only, line.who))
    return [_line(same) for same in series.values() if len(same) > 1]


def _line(lines: Sequence[TransferLine]) -> BandwidthLine:
    first = lines[0]

    def rates(times: Sequence[float | None]) -> list[float]:
        """A time's bound is the opposite bound of the bandwidth."""
        return [
            line.busbw_bytes_per_s * line.seconds / seconds / 1e9 if seconds else math.nan
            for line, seconds in zip(lines, times, strict=True)
        ]

    return BandwidthLine(
        label=f"{name_of(first)}, {who_did(first)}",
        what=first.what,
        host_only=first.host_only,
        sizes_bytes=[line.num_bytes for line in lines],
        busbw=[line.busbw_bytes_per_s / 1e9 for line in lines],
        low=rates([line.high_s for line in lines]),
        high=rates([line.low_s for line in lines]),
    )


FAMILIES = {"host": "host", "peers": "peers", "host-only": "peers", "collectives": "collectives"}
"""Names of figures -> what is compared in them."""


def _panels_of(group: TransferGroup) -> list[tuple[str, str, list[BandwidthLine]]]:
    """What is drawn: name, title and lines of each figure that has any."""
    peers = bandwidth_lines(group, TO_PEER)
    # Copies between host and device do not depend on access between GPUs: one setting of it is enough.
    host = bandwidth_lines(group, TO_HOST)
    between = "between GPUs" if group.device == "cuda" else "between ranks"
    panels = [
        ("host", "host to device and back", [line for line in host if not line.host_only] or host),
        ("peers", between, [line for line in peers if not line.host_only]),
        ("host-only", f"{between}{HOST_ONLY}", [line for line in peers if line.host_only]),
        ("collectives", "collectives", bandwidth_lines(group, TOGETHER)),
    ]
    return [panel for panel in panels if panel[2]]


def standing_out(lines: Sequence[BandwidthLine]) -> list[BandwidthLine]:
    """Of at most `MOST_OPERATIONS` the fastest line with peer access and without, the fastest first."""
    settings: dict[str, set[bool]] = {}
    for line in lines:
        settings.setdefault(line.what.operation, set()).add(line.host_only)
    ranked = sorted(lines, key=lambda line: (-len(settings[line.what.operation]), -line.busbw[-1]))
    operations = list(dict.fromkeys(line.what.operation for line in ranked))[:MOST_OPERATIONS]
    fastest: dict[tuple[str, bool], BandwidthLine] = {}
    for line in ranked:
        if line.what.operation in operations:
            fastest.setdefault((line.what.operation, line.host_only), line)
    return list(fastest.values())


def draw_bandwidths(title: str, lines: Sequence[BandwidthLine], standing: Sequence[BandwidthLine]) -> Figure:
    figure, axes = parts.one_plot(title, HEIGHT, parts.WIDTH)
    _label_axes(axes, lines)
    operations = dict.fromkeys(line.what.operation for line in standing)
    colours = dict(zip(operations, COLOURS, strict=False))
    labels = []
    for line in sorted(lines, key=lambda line: line in standing):
        if line not in standing:
            _draw(axes, line, parts.OTHER, parts.OTHERS)
            continue
        colour, series = colours[line.what.operation], NAMES.get(line.what.operation, line.what.operation)
        _draw(axes, line, colour, series)
        labels.append(
            parts.EndLabel(line.busbw[-1], textwrap.fill(line.label, LABEL_CHARACTERS), colour, series)
        )
    parts.label_ends(axes, labels, gap=0.17, size=7.5)
    return figure


def _draw(axes: Axes, line: BandwidthLine, colour: str, series: str) -> None:
    dashes = DASHED if line.host_only else PLAIN
    (drawn,) = axes.plot(line.sizes_bytes, line.busbw, color=colour, linestyle=dashes, linewidth=1.2)
    with_tip(drawn, "", series)
    for at, (size, busbw) in enumerate(zip(line.sizes_bytes, line.busbw, strict=True)):
        parts.draw_point(axes, (size, busbw), (line.low[at], line.high[at]), axes.get_ylim(), colour, series)
        parts.add_tip(axes, size, busbw, f"{line.label}, {size_text(size)}: busbw {busbw:.4g} GB/s", series)


def _label_axes(axes: Axes, lines: Sequence[BandwidthLine]) -> None:
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    sizes = sorted({size for line in lines for size in line.sizes_bytes})
    values = [value for line in lines for value in line.busbw]
    axes.set_xlim(sizes[0] / 1.5, sizes[-1] * 1.5)
    axes.set_ylim(min(values) / 1.6, max(values) * 1.6)
    shown = [size for size in AXIS_SIZES if sizes[0] / 1.5 <= size <= sizes[-1] * 1.5]
    parts.numbers_at(axes.xaxis, FixedLocator(shown), lambda value: size_text(round(value)))
    parts.numbers_at(axes.yaxis, LogLocator(subs=(1.0, 3.0)))
    axes.set_xlabel("size of one operation")
    axes.set_ylabel("busbw, GB/s")

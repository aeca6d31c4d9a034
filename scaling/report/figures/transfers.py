"""Bandwidth over size, both axes logarithmic: copies and messages of one world size."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, NullLocator

from scaling.analysis.transfer_lines import Line, TransferGroup, What, lines_of, transfer_groups
from scaling.analysis.transfers import MESSAGES
from scaling.measure.probe.series import size_text
from scaling.report.figures.base import Drawn, FigureInput, figure
from scaling.report.figures.parts import WIDTH, add_tip, legend_below, set_title
from scaling.report.figures.style import (
    BLACK,
    BLUE,
    GREEN,
    ORANGE,
    PURPLE,
    SKY_BLUE,
    VERMILLION,
    LineStyle,
)
from scaling.report.transfer_tables import name_of, title_of, who_did

CAPTION = (
    "Bus bandwidth (busbw of nccl-tests; column busbw_bytes_per_s of transfers.csv) of the median time, and "
    "its 95% interval as a bar, over the size; both axes are logarithmic. Alone and in pairs: the median of "
    "the ranks or pairs that did the same. Host-only is without access between GPUs, captured is replayed "
    "from a CUDA graph; hollow markers: the host starts each message."
)

COPIES = ("h2d", "d2h", "h2d_d2h", "peer_copy", "peer_shift")

COLOURS = {
    "h2d": BLUE,
    "d2h": ORANGE,
    "h2d_d2h": GREEN,
    "peer_copy": BLACK,
    "peer_shift": PURPLE,
    "send": BLACK,
    "swap": PURPLE,
    "shift": SKY_BLUE,
    "all_reduce": VERMILLION,
    "mpi_all_reduce": ORANGE,
}

MARKERS = {"alone": "o", "pair": "s", "at once": "^"}

AXIS_SIZES = tuple(1024 * 16**step for step in range(6))

PLAIN: LineStyle = "-"

DASHED: LineStyle = (0, (5, 2))


@figure(section="transfers")
def bandwidths(data: FigureInput) -> Iterator[Drawn]:
    """One a device and world size that has an operation of several sizes."""
    for group in transfer_groups(data.transfers):
        if (drawing := draw_bandwidths(group)) is not None:
            yield Drawn(f"bandwidth-{group.slug}", title_of(group), CAPTION, drawing, "transfers.csv")


@dataclass(frozen=True)
class BandwidthLine:
    """One line of the figure: bus bandwidths in GB/s over sizes in bytes.

    Attributes:
        label: for the legend.
        operation, who: decide colour and marker.
        dashes: plain; dashed where it is host-only or pageable.
        is_hollow: its markers, where the host starts each message on a GPU.
        sizes_bytes, busbw, low, high: a value for each size; low and high None where there is no interval.
    """

    label: str
    operation: str
    who: str
    dashes: LineStyle
    is_hollow: bool
    sizes_bytes: list[int]
    busbw: list[float]
    low: list[float | None]
    high: list[float | None]


def bandwidth_lines(group: TransferGroup, operations: Sequence[str]) -> list[BandwidthLine]:
    """One line for each of these operations that has several sizes."""
    found: dict[tuple[What, bool, str], list[Line]] = {}
    for line in lines_of(group):
        if line.what.operation in operations:
            found.setdefault((line.what, line.host_only, line.who), []).append(line)
    return [_line(group, own) for own in found.values() if len(own) > 1]


def _line(group: TransferGroup, lines: Sequence[Line]) -> BandwidthLine:
    first = lines[0]
    example = first.members[0].example

    def rates(times: Sequence[float | None]) -> list[float | None]:
        """A time's bound is the opposite bound of the bandwidth."""
        return [
            line.busbw_bytes_per_s * line.seconds / seconds / 1e9 if seconds else None
            for line, seconds in zip(lines, times, strict=True)
        ]

    return BandwidthLine(
        label=f"{name_of(first)}, {who_did(first)}",
        operation=example.operation,
        who=first.who,
        dashes=DASHED if first.host_only or example.memory == "pageable" else PLAIN,
        is_hollow=example.operation in MESSAGES and group.device == "cuda" and not example.captured,
        sizes_bytes=[line.num_bytes for line in lines],
        busbw=[line.busbw_bytes_per_s / 1e9 for line in lines],
        low=rates([line.high_s for line in lines]),
        high=rates([line.low_s for line in lines]),
    )


def draw_bandwidths(group: TransferGroup) -> Figure | None:
    """Copies above, messages below; None where no operation has several sizes."""
    panels = [
        (title, lines)
        for title, operations in (("copies", COPIES), ("messages and collectives", MESSAGES))
        if (lines := bandwidth_lines(group, operations))
    ]
    if not panels:
        return None
    figure = Figure(figsize=(WIDTH, 0.6 + 5.0 * len(panels)), layout="constrained")
    set_title(figure, title_of(group))
    subfigures = figure.subfigures(len(panels), 1, squeeze=False)[:, 0]
    for subfigure, (title, lines) in zip(subfigures, panels, strict=True):
        axes = subfigure.add_subplot()
        for line in lines:
            _draw(axes, line)
        _label_axes(axes, title, lines)
        legend_below(subfigure, axes.get_legend_handles_labels()[0])
    return figure


def _draw(axes: Axes, line: BandwidthLine) -> None:
    colour = COLOURS[line.operation]
    axes.plot(
        line.sizes_bytes,
        line.busbw,
        color=colour,
        marker=MARKERS[line.who],
        linestyle=line.dashes,
        markersize=4,
        markerfacecolor="white" if line.is_hollow else colour,
        linewidth=1.2,
        label=line.label,
    )
    for size, low, high in zip(line.sizes_bytes, line.low, line.high, strict=True):
        if low is not None and high is not None:
            axes.plot([size, size], [low, high], color=colour, linewidth=0.8)
    for size, busbw in zip(line.sizes_bytes, line.busbw, strict=True):
        add_tip(axes, size, busbw, f"{line.label}, {size_text(size)}: busbw {busbw:.4g} GB/s")


def _label_axes(axes: Axes, title: str, lines: Sequence[BandwidthLine]) -> None:
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    sizes = sorted({size for line in lines for size in line.sizes_bytes})
    shown = [size for size in AXIS_SIZES if sizes[0] / 4 <= size <= sizes[-1] * 4]
    axes.xaxis.set_major_locator(FixedLocator(shown))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: size_text(round(value))))
    axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 3.0)))
    axes.yaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.set_title(title, loc="left")
    axes.set_xlabel("size of one operation")
    axes.set_ylabel("bus bandwidth, GB/s")

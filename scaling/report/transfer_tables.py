"""Transfers in a terminal of 80 columns, and as tables of the page."""

from __future__ import annotations

from collections.abc import Sequence

from rich.table import Table
from rich.text import Text

from scaling.analysis.formats import milliseconds, number
from scaling.analysis.transfer_lines import Line, TransferGroup, largest_of, lines_of, transfer_groups
from scaling.analysis.transfers import TransferResult
from scaling.measure.probe.series import size_text
from scaling.report.page_tables import PageTable

HEADINGS = ("what", "who", "size", "ms", "low", "high", "algbw", "busbw")
WHAT_WIDTH = 24
"""Longer names are folded: what 80 columns leave."""

HOST_ONLY = "host-only"

STATISTIC = (
    "Milliseconds of one operation: median of the samples of all repeats, each as long as on its slowest "
    "rank; low and high: the ends of the 95% interval. Ranks that did the same alone, or in pairs, share a "
    "line: the median of their medians, the lowest and the highest end. At once: every rank at the same "
    "time, on buffers of its own. algbw: bytes over time, GB/s; busbw: for all-reduce times 2(n-1)/n, as in "
    "nccl-tests. Host-only: without access between GPUs. Captured: replayed from a CUDA graph. Every rank "
    "and pair, quartiles, and latency and bandwidth of the line through all sizes: transfers.csv. The "
    "machine file: probed.yaml."
)


def render_transfers(results: Sequence[TransferResult]) -> list[Table]:
    """One table for each world size: the largest size of every operation."""
    return [_render(group) for group in transfer_groups(results)]


def _render(group: TransferGroup) -> Table:
    title = Text(f"{group.title}; ms, GB/s (more sizes: transfers.csv)")
    rendered = Table(title=title, title_justify="left", box=None, pad_edge=False, padding=(0, 1, 0, 0))
    rendered.add_column(HEADINGS[0], overflow="fold", max_width=WHAT_WIDTH)
    for name in HEADINGS[1:]:
        rendered.add_column(name, justify="right", no_wrap=True)
    for line in largest_of(lines_of(group)):
        rendered.add_row(*(Text(value) for value in _values(line)))
    return rendered


def page_tables(results: Sequence[TransferResult]) -> list[PageTable]:
    """One table for each world size: every operation and size."""
    return [
        PageTable(
            group.title,
            "Read as the table above." if at else STATISTIC,
            list(HEADINGS),
            [_values(line) for line in lines_of(group)],
            cells=[
                list(dict.fromkeys(one.result.cell_id for one in line.members)) for line in lines_of(group)
            ],
            section="transfers",
            source="transfers.csv",
        )
        for at, group in enumerate(transfer_groups(results))
    ]


def _values(line: Line) -> list[str]:
    low, high = line.low_s, line.high_s
    width = None if low is None or high is None else high - low
    return [
        f"{line.what}, {HOST_ONLY}" if line.host_only else line.what,
        line.who_text,
        size_text(line.num_bytes),
        milliseconds(line.seconds, width),
        milliseconds(low, width),
        milliseconds(high, width),
        number(line.algbw_bytes_per_s / 1e9),
        number(line.busbw_bytes_per_s / 1e9),
    ]

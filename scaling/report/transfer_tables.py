"""The tables of transfers: of every operation and size on the page, of the largest size in a terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import rich.table
from rich.text import Text

from scaling.analysis.transfers import (
    TransferGroup,
    TransferLine,
    TransferResult,
    largest_of,
    lines_of,
    transfer_groups,
)
from scaling.axes import workers
from scaling.measure.probe.series import size_text
from scaling.report.formats import MISSING, milliseconds, number
from scaling.report.tables import Column, Table, in_terminal, table_of, without_empty_columns

WHAT_WIDTH = 24  # longer names are folded: what 80 columns leave
STATISTIC = (
    "Milliseconds of one operation: median of the samples of all repeats, each as long as on its slowest "
    "rank; low and high: the ends of the 95% interval. Ranks that did the same alone, or in pairs, share a "
    "line: the median of their medians, the lowest and the highest end. At once: every rank at the same "
    "time, on buffers of its own. algbw: bytes over that median, GB/s; busbw: for all-reduce times 2(n-1)/n, "
    "as in nccl-tests. Host-only: without access between GPUs. Captured: replayed from a CUDA graph. Every "
    "rank and pair, quartiles, and latency and bandwidth of the line through all sizes: transfers.csv. The "
    "machine file: probed.yaml."
)


NAMES = {
    "h2d_d2h": "h2d and d2h at once",
    "peer_copy": "copy to a peer",
    "peer_shift": "copies to the next",
    "send": "message",
    "swap": "messages both ways",
    "shift": "messages to the next",
    "all_reduce": "all-reduce",
    "mpi_all_reduce": "MPI all-reduce",
    "host_copy": "host memory, copy",
    "host_sum": "host memory, sum",
    "device_copy": "GPU memory, copy",
    "device_sum": "GPU memory, sum",
}
"""What operations are called; others keep their names."""


def title_of(group: TransferGroup) -> str:
    """`Transfers: 4 GPUs, 1 thread each`."""
    gpus = f"{group.world_size} GPU{'s' if group.world_size > 1 else ''}"
    who = gpus if group.device == "cuda" else f"{workers(group.world_size)} on the CPU"
    return f"Transfers: {who}, {group.threads} thread{'s' if group.threads > 1 else ''} each"


def name_of(line: TransferLine) -> str:
    """`h2d pinned`, `all-reduce, captured, host-only`."""
    what = line.what
    named = " ".join(filter(None, [NAMES.get(what.operation, what.operation), what.memory]))
    threads = "1 thread" if what.num_threads == 1 else ""
    captured = "captured" if what.captured else ""
    return ", ".join(filter(None, [named, threads, captured, "host-only" if line.host_only else ""]))


def who_did(line: TransferLine) -> str:
    """`4 alone`, `12 pairs`, `4 at once`."""
    if line.who == "at once":
        return f"{len(line.members[0].example.ranks)} at once"
    count = len(line.members)
    return f"{count} pair{'s' if count > 1 else ''}" if line.who == "pair" else f"{count} alone"


def _milliseconds(line: TransferLine, seconds: float | None) -> str:
    low, high = line.low_s, line.high_s
    return milliseconds(seconds, None if low is None or high is None else high - low)


COLUMNS: tuple[Column[TransferLine], ...] = (
    Column("what", name_of, "what", WHAT_WIDTH),
    Column("who", who_did, "who"),
    Column("size", lambda line: size_text(line.num_bytes), "size"),
    Column("ms", lambda line: _milliseconds(line, line.seconds), "ms"),
    Column("low", lambda line: _milliseconds(line, line.low_s), "low"),
    Column("high", lambda line: _milliseconds(line, line.high_s), "high"),
    Column("algbw", lambda line: number(line.algbw_bytes_per_s / 1e9), "algbw"),
    Column("busbw", lambda line: number(line.busbw_bytes_per_s / 1e9), "busbw"),
)


def render_transfers(results: Sequence[TransferResult]) -> list[rich.table.Table]:
    more = "; ms, GB/s (more sizes: transfers.csv)"
    return [
        in_terminal(Text(title_of(group) + more), COLUMNS, largest_of(lines_of(group)), gap=1)
        for group in transfer_groups(results)
    ]


LINKS = {
    "h2d": "host to GPU",
    "d2h": "GPU to host",
    "peer_copy": "GPU to GPU",
    "peer_shift": "GPU to GPU",
    "all_reduce": "all-reduce",
}
"""Operation -> its row in the table that the report begins with."""


def answer_table(results: Sequence[TransferResult]) -> Table | None:
    """A row a link, of the most workers; None without any. Of these an all-reduce alone needs peer access."""
    links: dict[str, dict[bool, TransferLine]] = {}  # whether all were at it at once -> the line
    lines = [line for group in transfer_groups(results)[-1:] for line in largest_of(lines_of(group))]
    # Of equal ones the first stays: with access between GPUs, and captured.
    for line in sorted(lines, key=lambda line: (line.host_only, not line.what.captured)):
        if line.what.operation in LINKS and line.what.memory != "pageable":
            off = ", host-only" if line.host_only and line.what.operation == "all_reduce" else ""
            link = links.setdefault(LINKS[line.what.operation] + off, {})
            link.setdefault(line.who == "at once", line)
    order = [*dict.fromkeys(LINKS.values()), "all-reduce, host-only"]
    found = sorted(links.items(), key=lambda link: order.index(link[0]))
    rows = [
        [name, size_text(max(line.num_bytes for line in of.values())), _busbw(of, False), _busbw(of, True)]
        for name, of in found
    ]
    if not rows:
        return None
    headings = ["link", "size", "one alone, GB/s", "all at once, GB/s"]
    cells = [_cells(*of.values()) for _, of in found]
    statistic = "Bytes over the median time at the largest size, of an all-reduce times 2(n-1)/n."
    return without_empty_columns(Table("The rate of each link", statistic, headings, rows, cells=cells))


def _busbw(lines: Mapping[bool, TransferLine], at_once: bool) -> str:
    return number(lines[at_once].busbw_bytes_per_s / 1e9) if at_once in lines else MISSING


def _cells(*lines: TransferLine) -> list[str]:
    return [*dict.fromkeys(member.result.cell_id for line in lines for member in line.members)]


def page_tables(results: Sequence[TransferResult]) -> list[Table]:
    tables: list[Table] = []
    for group in transfer_groups(results):
        statistic, lines = "Read as the table above." if tables else STATISTIC, lines_of(group)
        more = {"section": "transfers", "source": "transfers.csv", "cells": [*map(_cells, lines)]}
        tables.append(table_of(title_of(group), statistic, COLUMNS, lines, **more))
    return tables

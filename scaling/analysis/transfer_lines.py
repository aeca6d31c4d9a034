"""Transfers grouped for comparison: ranks that did the same, alone or in pairs, share a line."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from scaling.analysis.columns import by_key
from scaling.analysis.findings import Finding
from scaling.analysis.transfers import TransferResult, TransferSamples


@dataclass(frozen=True)
class TransferGroup:
    """Cells that are shown together: one world size, with and without GPU peer access."""

    device: str  # device, world_size, threads: of its cells
    world_size: int
    threads: int
    results: list[TransferResult]  # one or two

    @property
    def slug(self) -> str:
        return f"{self.device}-{self.world_size}x{self.threads}"


class What(NamedTuple):
    """What was done, for any size and ranks."""

    operation: str
    memory: str
    num_threads: int | None
    captured: bool


@dataclass(frozen=True)
class TransferLine:
    """An operation of one size, over all ranks or equal pairs."""

    what: What  # the operation, its memory, on how many threads, whether it was captured
    host_only: bool  # without access between GPUs
    who: str  # `alone`, `pair` or `at once`
    members: list[TransferSamples]  # of which there are several alone or in pairs

    @property
    def num_bytes(self) -> int:
        return self.members[0].num_bytes

    @property
    def seconds(self) -> float:
        return float(np.median([member.estimate.median for member in self.members]))

    @property
    def low_s(self) -> float | None:
        ends = [member.estimate.low for member in self.members]
        return None if None in ends else min(end for end in ends if end is not None)

    @property
    def high_s(self) -> float | None:
        ends = [member.estimate.high for member in self.members]
        return None if None in ends else max(end for end in ends if end is not None)

    @property
    def algbw_bytes_per_s(self) -> float:
        return self.num_bytes / self.seconds

    @property
    def busbw_bytes_per_s(self) -> float:
        member = self.members[0]
        return self.algbw_bytes_per_s * member.busbw_bytes_per_s / member.algbw_bytes_per_s


def transfer_groups(results: Sequence[TransferResult]) -> list[TransferGroup]:
    cells = by_key(results, lambda one: (one.cell["device"], one.cell["world_size"], one.cell["threads"]))
    return [TransferGroup(*key, members) for key, members in cells.items()]


def lines_of(group: TransferGroup) -> list[TransferLine]:
    """Every operation with its sizes, those without GPU peer access last."""
    lines: dict[tuple[Any, ...], TransferLine] = {}
    for result in group.results:
        host_only = result.cell["peer_access"] is False
        for transfer in result.transfers:
            example = transfer.example
            what = What(example.operation, example.memory, example.num_threads, example.captured)
            key = (what, host_only, transfer.who)
            line = lines.setdefault((*key, transfer.num_bytes), TransferLine(*key, []))
            line.members.append(transfer)
    order = {(line.what, line.host_only, line.who): at for at, line in reversed([*enumerate(lines.values())])}
    return sorted(
        lines.values(), key=lambda line: (order[line.what, line.host_only, line.who], line.num_bytes)
    )


def largest_of(lines: Sequence[TransferLine]) -> list[TransferLine]:
    return list({(line.what, line.host_only, line.who): line for line in lines}.values())


_Lines = Mapping[tuple[What, bool, str], TransferLine]


def transfer_findings(results: Sequence[TransferResult]) -> Iterator[Finding]:
    """What the largest world size of each device reached."""
    groups = {group.device: group for group in transfer_groups(results)}  # sizes ascend: the last one stays
    for device, group in groups.items():
        lines = {(line.what, line.host_only, line.who): line for line in largest_of(lines_of(group))}
        copies = [_copies(lines, who) for who in ("alone", "at once")]
        sums = [_all_reduce(lines, host_only) for host_only in (False, True)]
        if any(copies) or any(sums):
            values = {"device": device, "world_size": group.world_size, "alone": copies[0]}
            cells = tuple(result.cell_id for result in group.results)
            reduced = {"all_reduce": sums[0], "all_reduce_host_only": sums[1]}
            yield Finding("transfer_rates", cells, {**values, "at_once": copies[1], **reduced})


def _copies(lines: _Lines, who: str) -> dict[str, float] | None:
    """Bytes per second from and to pinned memory; None if one of them was not measured."""
    rates = {
        name: line.algbw_bytes_per_s
        for name in ("h2d", "d2h")
        for line in [_pinned(lines, name, who)]
        if line
    }
    return rates if len(rates) == 2 else None


def _pinned(lines: _Lines, operation: str, who: str) -> TransferLine | None:
    """The pinned copies, with GPU peer access if that was measured."""
    every = [
        line
        for line in lines.values()
        if (line.what.operation, line.what.memory, line.who) == (operation, "pinned", who)
    ]
    return min(every, key=lambda line: line.host_only, default=None)


def _all_reduce(lines: _Lines, host_only: bool) -> dict[str, float] | None:
    every = [
        line
        for line in lines.values()
        if (line.what.operation, line.host_only, line.who) == ("all_reduce", host_only, "at once")
    ]
    line = max(every, key=lambda line: line.what.captured, default=None)
    return (
        None if line is None else {"busbw_bytes_per_s": line.busbw_bytes_per_s, "num_bytes": line.num_bytes}
    )

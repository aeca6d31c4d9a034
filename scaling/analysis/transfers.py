"""The samples of transfer cells: one estimate per operation, size and set of ranks, and the machine file.

A sample is already that of the slowest rank (`scaling.measure.probe.ranks`); rank 0 holds all of them. What
ranks did alone or in pairs is given for each of them in transfers.csv, and for equal ones together in tables.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import median
from typing import Any, NamedTuple

import numpy as np

from scaling.analysis.columns import by_key, safe_cell
from scaling.analysis.findings import Finding
from scaling.analysis.samples import where_of
from scaling.analysis.study_scatter import CellTimes, estimate_within, study_scatter
from scaling.errors import StoreError
from scaling.measure.probe.cases import ProbeSample, bus_factor
from scaling.measure.probe.machine_file import result_of
from scaling.measure.probe.series import OneSeries, Series
from scaling.measure.statistics import Estimate
from scaling.store import ResultsFolder, RunRecord
from scaling.store.files import MEND_SAMPLES, fitting
from scaling.store.records import MEND
from scaling.store.run_samples import TransferLineModel, validate_lines

KIND = "transfer"
PAIRWISE = ("peer_copy", "send", "swap")
MESSAGES = ("send", "swap", "shift", "all_reduce", "mpi_all_reduce")
COMMAND = "scaling run"


@dataclass(frozen=True)
class TransferResult:
    cell_id: str  # the cell's hash
    cell: Mapping[str, Any]  # its variables (`TransferCell.to_dict()`)
    where: str  # the samples of its first done run
    facts: Mapping[str, Any]  # in them (`scaling.measure.probe.machine_file.with_detected`)
    launches: list[list[ProbeSample]]  # the samples of each done run
    notes: list[str]  # what was left out
    num_nodes: int | None  # of its launches; None where they differ or were not recorded

    @cached_property
    def transfers(self) -> list[TransferSamples]:
        pooled = Series(sample for launch in self.launches for sample in launch)
        by_launch = {
            repeat: {series.example.series: series for series in Series(launch).all()}
            for repeat, launch in enumerate(self.launches)
            if launch
        }
        sizes = [(series, num_bytes) for series in pooled.all() for num_bytes in sorted(series.seconds)]
        seconds = [
            {
                repeat: samples
                for repeat, every in by_launch.items()
                if series.example.series in every
                and (samples := every[series.example.series].seconds.get(num_bytes))
            }
            for series, num_bytes in sizes
        ]
        times: dict[Hashable, CellTimes] = {
            index: CellTimes(None, {repeat: median(samples) for repeat, samples in launches.items()})
            for index, launches in enumerate(seconds)
        }
        scatter = study_scatter(times) if len(by_launch) > 1 else None
        return [
            TransferSamples(
                self, *size, [*launches.values()], estimate_within([*launches.values()], scatter, index)
            )
            for index, (size, launches) in enumerate(zip(sizes, seconds, strict=True))
        ]


@dataclass(frozen=True)
class TransferSamples:
    """One operation of one size, by one set of ranks."""

    result: TransferResult  # the cell that it is of
    series: OneSeries  # its samples of all sizes and launches
    num_bytes: int  # the size
    seconds: list[list[float]]  # of each launch, one operation
    # of the time: median and 95% interval, of several launches by the scatter of all transfers
    estimate: Estimate

    @property
    def algbw_bytes_per_s(self) -> float:
        """The size over the median time."""
        return self.num_bytes / self.estimate.median

    @property
    def busbw_bytes_per_s(self) -> float:
        """The bus bandwidth as nccl-tests defines it."""
        return self.algbw_bytes_per_s * bus_factor(self.example.operation, len(self.example.ranks))

    @property
    def example(self) -> ProbeSample:
        return self.series.example

    @property
    def who(self) -> str:
        """`alone`, `pair` or `at once`."""
        if len(self.example.ranks) == 1:
            return "alone"
        return "pair" if self.example.operation in PAIRWISE else "at once"


def read_transfers(folder: ResultsFolder) -> list[TransferResult]:
    """The folder's measured transfer cells, by device, world size and peer access; StoreError: damaged."""
    records = (run for run in folder.runs() if run.cell.get("kind") == KIND and run.state == "done")
    done = by_key(records, lambda record: record.cell_id)

    def order(result: TransferResult) -> tuple[Any, ...]:
        cell = result.cell
        how = (cell["device"], cell["world_size"], cell["threads"], cell["peer_access"] is False)
        return *how, result.cell_id

    return sorted((_read(folder, records) for records in done.values()), key=order)


def _read(folder: ResultsFolder, records: Sequence[RunRecord]) -> TransferResult:
    launches, facts, notes = [], [], []
    for record in records:
        where = where_of(folder, record)
        (rows, *_) = folder.samples(record.cell_id, record.repeat) or [[]]
        validate_lines(TransferLineModel, rows, f"{where}/rank0.jsonl")
        launches.append([ProbeSample.from_row(row["sample"]) for row in rows if row.get("sample")])
        facts += [row["facts"] for row in rows if row.get("facts")]
        if not launches[-1] or not facts:
            raise StoreError(f"{where}: the run is done, but nothing that it measured was recorded; {MEND}")
        notes += record.notes
    nodes = {record.launch.get("num_nodes") for record in records}
    return TransferResult(
        cell_id=records[0].cell_id,
        cell=records[0].cell,
        where=f"{where_of(folder, records[0])}/rank0.jsonl",
        facts=facts[0],
        launches=launches,
        notes=list(dict.fromkeys(notes)),
        num_nodes=nodes.pop() if len(nodes) == 1 else None,
    )


COLUMNS = (
    *("study", "device", "world_size", "threads", "peer_access", "operation", "memory", "captured"),
    *("num_threads", "who", "ranks", "num_bytes", "n", "launches", "seconds", "seconds_q1", "seconds_q3"),
    *("seconds_low", "seconds_high", "interval_method", "algbw_bytes_per_s", "busbw_bytes_per_s"),
    *("latency_s", "latency_s_low", "latency_s_high", "bandwidth_bytes_per_s", "bandwidth_bytes_per_s_low"),
    *("bandwidth_bytes_per_s_high", "line_worst_error", "line_worst_error_bytes", "cell_id"),
)
"""Of transfers.csv: what was done, the time, the bandwidths of this size, and the line through all sizes."""


def transfers_csv(study: str, results: Iterable[TransferResult]) -> str:
    """One row per operation, size and set of ranks, as RFC 4180 text; missing values are empty."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\r\n")
    writer.writerow(COLUMNS)
    for row in transfer_rows(results):
        values = map({"study": study, **row}.__getitem__, COLUMNS)
        writer.writerow([f"{one:.7g}" if isinstance(one, float) else safe_cell(one) for one in values])
    return text.getvalue()


def transfer_rows(results: Iterable[TransferResult]) -> list[dict[str, Any]]:
    return [_row(transfer) for result in results for transfer in result.transfers]


def _row(transfer: TransferSamples) -> dict[str, Any]:
    example, estimate = transfer.example, transfer.estimate
    pooled = [value for launch in transfer.seconds for value in launch]
    first, third = (float(value) for value in np.percentile(pooled, [25, 75]))
    cell = transfer.result.cell
    return {
        **{name: cell[name] for name in ("device", "world_size", "threads", "peer_access")},
        "operation": example.operation,
        "memory": example.memory or None,
        "captured": example.captured,
        "num_threads": example.num_threads,
        "who": transfer.who,
        "ranks": " ".join(map(str, example.ranks)),
        "num_bytes": transfer.num_bytes,
        "n": estimate.num_samples,
        "launches": estimate.num_launches,
        "seconds": estimate.median,
        "seconds_q1": first,
        "seconds_q3": third,
        "seconds_low": estimate.low,
        "seconds_high": estimate.high,
        "interval_method": estimate.method,
        "algbw_bytes_per_s": transfer.algbw_bytes_per_s,
        "busbw_bytes_per_s": transfer.busbw_bytes_per_s,
        **_line(transfer.series),
        "cell_id": transfer.result.cell_id,
    }


def _line(series: OneSeries) -> dict[str, Any]:
    """Latency and bandwidth fitted over all sizes; empty with a single size."""
    fit, latency, bandwidth = series.fit, series.latency, series.bandwidth
    if fit is None or latency is None:
        return dict.fromkeys(name for name in COLUMNS if name.startswith(("latency", "bandwidth", "line")))
    return {
        "latency_s": latency.value,
        "latency_s_low": latency.low,
        "latency_s_high": latency.high,
        "bandwidth_bytes_per_s": bandwidth.value,
        "bandwidth_bytes_per_s_low": bandwidth.low,
        "bandwidth_bytes_per_s_high": bandwidth.high,
        "line_worst_error": fit.worst_error_ratio,
        "line_worst_error_bytes": fit.worst_error_bytes,
    }


def machine_text(results: Sequence[TransferResult]) -> str | None:
    """The machine file made from the samples of the largest world size, on GPUs if any: copies with peer
    access, messages without it as well; None if no cell ran on a single node."""
    on_one_node = [result for result in results if result.num_nodes in (1, None)]
    if not on_one_node:
        return None

    def order(result: TransferResult) -> tuple[bool, int, int]:
        return (result.cell["device"] == "cuda", result.cell["world_size"], result.cell["threads"])

    chosen = [result for result in on_one_node if order(result) == max(map(order, on_one_node))]
    first = chosen[0]  # the one with access between GPUs comes first
    samples = [sample for launch in first.launches for sample in launch]
    for other in chosen[1:]:
        is_second = other.cell["peer_access"] is not first.cell["peer_access"]
        samples += [
            sample
            for launch in other.launches
            for sample in launch
            if not is_second or sample.operation in MESSAGES
        ]
    notes = list(dict.fromkeys(note for result in chosen for note in result.notes))
    with fitting(first.where, MEND_SAMPLES):
        return result_of(first.facts, samples, notes, COMMAND).machine


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
    return sorted(lines.values(), key=lambda one: (order[one.what, one.host_only, one.who], one.num_bytes))


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
    if line is None:
        return None
    return {"busbw_bytes_per_s": line.busbw_bytes_per_s, "num_bytes": line.num_bytes}

"""The trace event format, for chrome://tracing and Perfetto: steps and phases of all ranks on one clock.

pid is the rank, tid the stream: `step` holds whole steps (unprofiled, profiled, warm-up), `main` the
phases of the computation, `comm`, `copy` and `hook` what runs concurrently. Phases stand in profiled
steps alone; of the others only start and length were recorded. The clock is that of rank 0's host, to
which the ranks' own are tied to some 20 us (`clock_uncertainty_s` in run.json, repeated under otherData).
Zero is the first step. A span of `communicate` has what the rank sends to each other node in a whole step
(`sent_bytes_a_step`), by the plan that the run recorded.

Reference: Google, "Trace Event Format", https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from scaling.analysis.links import known_plan
from scaling.analysis.sample_lines import rank_step
from scaling.analysis.samples import CellResult
from scaling.errors import ScalingError
from scaling.store import ResultsFolder

STREAMS = {"step": 0, "main": 1, "comm": 2, "copy": 3, "hook": 4}  # lane -> tid
OTHER_STREAM = 9  # of lanes that are none of these
Event = dict[str, Any]


def chrome_trace(folder: ResultsFolder, cells: Sequence[CellResult]) -> Iterator[str]:
    """The lines of a JSON object, an event a line; ScalingError: no step has a time on the common clock."""
    runs = [(cell, record.repeat) for cell in cells if cell.launches for record in cell.done]
    events = [event for cell, repeat in runs for event in _run(folder, cell, repeat)]
    if not events:
        raise ScalingError(
            "none of these cells has steps on a clock: timings of kind iteration have, "
            "unless they were measured before start_s was recorded; run them again"
        )
    first = min(event["ts"] for event in events)
    records = (record for cell in cells for record in cell.done)
    of_ranks = (value for record in records for value in record.summary.get("clock_uncertainty_s") or [])
    about = {"clock_uncertainty_s": max((float(one) for one in of_ranks if one is not None), default=None)}
    yield f'{{"displayTimeUnit": "ms", "otherData": {json.dumps(about)},'
    yield '"traceEvents": ['
    for event in _names(events):
        yield json.dumps(event) + ","
    for index, event in enumerate(events):
        moved = {**event, "ts": round(event["ts"] - first, 3)}
        yield json.dumps(moved) + ("," if index + 1 < len(events) else "")
    yield "]}"


def _run(folder: ResultsFolder, cell: CellResult, repeat: int) -> Iterator[Event]:
    where = f"{folder.path}/runs/{cell.cell_id}/{repeat}"
    about = {"cell": cell.cell_id, "aggregator": cell.label("aggregator"), "repeat": repeat}
    plan = known_plan(cell)
    for rank, lines in enumerate(folder.samples(cell.cell_id, repeat)):
        sent = {"sent_bytes_a_step": plan.sent_to(rank)} if plan else {}
        for line in lines:
            if line.get("start_s") is not None:
                yield from _step(line, rank, about, sent, where)


def _step(
    line: dict[str, Any], rank: int, about: Mapping[str, Any], sent: Mapping[str, Any], where: str
) -> Iterator[Event]:
    start_s, step_s = line["start_s"], line["step_s"]
    kind = "warm-up" if line.get("warmup") else "profiled" if line.get("profiled") else "unprofiled"
    args = {**about, "iteration": line.get("iteration"), "kind": kind}
    yield _complete(f"step ({kind})", "step", rank, start_s, step_s, args)
    if line.get("profiled"):
        for span in rank_step(line, where).spans:
            length_s = span.stop_s - span.start_s
            more = sent if span.phase == "communicate" else {}
            yield _complete(span.phase, span.lane, rank, start_s + span.start_s, length_s, {**args, **more})


def _complete(
    name: str, lane: str, rank: int, start_s: float, length_s: float, args: Mapping[str, Any]
) -> Event:
    return {
        "name": name,
        "cat": lane,
        "ph": "X",
        "ts": 1e6 * start_s,
        "dur": round(1e6 * length_s, 3),
        "pid": rank,
        "tid": STREAMS.get(lane, OTHER_STREAM),
        "args": dict(args),
    }


def _names(events: Sequence[Event]) -> Iterator[Event]:
    for rank in sorted({event["pid"] for event in events}):
        yield {"name": "process_name", "ph": "M", "pid": rank, "args": {"name": f"rank {rank}"}}
        for lane, tid in {**STREAMS, "other": OTHER_STREAM}.items():
            if any(event["pid"] == rank and event["tid"] == tid for event in events):
                yield {"name": "thread_name", "ph": "M", "pid": rank, "tid": tid, "args": {"name": lane}}

"""Predictions as rows: what `--json`, predictions.json and the tables show. All of them say `simulated`."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from scaling.axes import AXES, Role
from scaling.errors import PredictionError
from scaling.prediction.compute import ComputeModel
from scaling.prediction.estimate import PredictedValue
from scaling.prediction.predict import Prediction
from scaling.prediction.strategy import is_by_gpu

CELL_FIELDS = ("model", "dataset", "aggregator")


def row_of(
    prediction: Prediction, compute: ComputeModel | None, cell_id: str | None = None
) -> dict[str, Any]:
    """One object. Times in seconds; what is not known is None."""
    cell = prediction.cell
    batch = cell.get("global_batch")
    iteration = prediction.iteration
    speedup = _speedup(prediction, compute)
    return {
        "simulated": True,
        "cell_id": cell_id,
        **cell_fields(cell),
        "topology": prediction.topology,
        **_interval("iteration_s", iteration),
        "samples_per_s": batch / iteration.value if iteration and batch else None,
        **_interval("speedup", speedup),
        "parallel_efficiency": speedup.value / cell["world_size"] if speedup else None,
        **_interval("compute_s", prediction.compute),
        **_interval("exchange_s", prediction.exchange),
        **_interval("exposed_comm_s", prediction.exposed_exchange),
        "transport": prediction.transport,
        "busiest_link": prediction.busiest,
        "terms": [
            {"name": term.name, "kind": term.kind, "seconds": term.seconds, "choice": term.choice or None}
            for term in prediction.terms
        ],
        "largest_terms": [{"name": name, "seconds": seconds} for name, seconds in largest_terms(prediction)],
        "notes": list(prediction.notes),
        "compute_notes": list(prediction.compute_notes),
        "remarks": list(prediction.remarks),
    }


def largest_terms(prediction: Prediction) -> list[tuple[str, float]]:
    """The parts of the step that take most, by name; of an exchange what is not hidden."""
    if prediction.iteration is None or prediction.compute is None:
        return []
    parts = {"computation": prediction.compute.value}
    if prediction.waiting.value:
        parts["the slowest of the ranks"] = prediction.waiting.value
    by_gpu = sum(term.seconds for term in prediction.terms if is_by_gpu(term.kind))
    others = sum(term.seconds for term in prediction.terms) - by_gpu
    shown = max(0.0, prediction.exposed_exchange.value - by_gpu) / others if others else 0.0
    for term in prediction.terms:
        share, apart = (1.0, False) if is_by_gpu(term.kind) else (shown, bool(term.latency_s))
        parts[f"bytes of {term.name}" if apart else term.name] = share * (term.seconds - term.latency_s)
        if apart:
            parts[f"latency of {term.name}"] = share * term.latency_s
    return sorted(parts.items(), key=lambda part: -part[1])[:NUM_LARGEST]


def _largest_line(row: Mapping[str, Any]) -> str:
    parts = [f"{part['name']} {part['seconds'] / row['iteration_s']:.0%}" for part in row["largest_terms"]]
    return f"{row.get('aggregator', '')} on {row['world_size']} ranks: {', '.join(parts)} of the step"


def reason_row(
    cell: Mapping[str, Any], topology: str, reason: str, cell_id: str | None = None
) -> dict[str, Any]:
    identity = {"simulated": True, "cell_id": cell_id, **cell_fields(cell)}
    return {**identity, "topology": topology, "reason": reason}


def cell_fields(cell: Mapping[str, Any]) -> dict[str, Any]:
    labels = {name: cell[f"{name}_label"] for name in CELL_FIELDS if f"{name}_label" in cell}
    values = {axis.name: cell[axis.name] for axis in AXES if axis.role & Role.PREDICTED and axis.name in cell}
    return {**labels, **values} or dict(cell)


def _speedup(prediction: Prediction, compute: ComputeModel | None) -> PredictedValue | None:
    """Throughput over that of one rank without exchange at the same batch rule."""
    cell = prediction.cell
    if compute is None or prediction.iteration is None or not prediction.iteration.value:
        return None
    strong = cell["scaling"] == "strong"
    alone_batch = int(cell["global_batch"] if strong else cell["local_batch"])
    alone = {**cell, "aggregator": "none", "exchanges": False, "world_size": 1}
    try:
        step = compute.step(alone, alone_batch).step_s
    except PredictionError:
        return None
    ratio = step.over(prediction.iteration)
    return ratio if strong else ratio.times(cell["world_size"])


def _interval(name: str, estimate: PredictedValue | None) -> dict[str, float | None]:
    values = (None, None, None) if estimate is None else (estimate.value, *estimate.interval)
    return dict(zip((name, f"{name}_low", f"{name}_high"), values, strict=True))


NUM_LARGEST = 3
COLUMNS = ("aggregator", "ranks", "iteration, ms", "speedup", "exposed, ms", "busiest link")
LINE_WIDTH = 80
NOTHING_MEASURED = (
    "Without measured computation there is communication alone: --from RESULTS, with cells of one worker, "
    "gives iterations and speedups."
)


def fastest(rows: Iterable[Mapping[str, Any]]) -> str:
    """The fastest of the most ranks, in a line of its own; "" where no time is known."""
    known = [row for row in rows if row.get("iteration_s") is not None]
    best = min(known, key=lambda row: (-row["world_size"], row["iteration_s"]), default={})
    speedup = f", {best['speedup']:.2f} times as fast as one" if best.get("speedup") else ""
    what = f"{best.get('aggregator', 'a step')} on {best.get('world_size')} ranks"
    time = _text(best, "iteration_s", 1e3, with_interval=True)
    return f"\n{what} takes {time} ms a step{speedup}" if best else ""


def text_table(rows: Iterable[Mapping[str, Any]]) -> str:
    """For people: under a line for each model and step, with notes below. Names are never cut."""
    groups, notes = dict[str, list[list[str]]](), dict[str, str]()
    alone, largest = True, dict[tuple[str, str], Mapping[str, Any]]()
    for row in rows:
        marks = []
        for note in [row["reason"]] if "reason" in row else row.get("notes", []):
            notes.setdefault(note, f"({len(notes) + 1})")
            marks.append(notes[note])
        words = [str(row[key]) for key in ("model", "workload", "step") if row.get(key) is not None]
        which = "global_batch" if row.get("scaling") == "strong" else "local_batch"
        if row.get(which):
            words.append(f"{which.replace('_', ' ')} {row[which]:,}")
        title = ", ".join(words)
        groups.setdefault(title, [list(COLUMNS)]).append(_cells(row, " ".join(marks)))
        alone = alone and row.get("iteration_s") is None
        if row.get("largest_terms") and row["world_size"] > 1:
            key = (title, str(row.get("aggregator")))
            largest[key] = max(largest.get(key, row), row, key=lambda one: int(one["world_size"]))
    parts = [line for title, lines in groups.items() for line in (title, *_aligned(lines))]
    explained = [*map(_largest_line, largest.values())]
    explained += [f"{mark} {note}" for note, mark in notes.items()]
    if alone and groups:
        explained.append(NOTHING_MEASURED)
    return "\n".join([*parts, *(textwrap.fill(text, LINE_WIDTH) for text in explained)])


def _aligned(lines: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(len(line[i]) for line in lines) for i in range(len(COLUMNS))]
    return [
        "  ".join(part.ljust(width) for part, width in zip(line, widths, strict=True)).rstrip()
        for line in lines
    ]


def _cells(row: Mapping[str, Any], notes: str) -> list[str]:
    placement = row.get("input_placement", "device")
    marks = {
        ", host-only": row.get("peer_access") is False,
        f", input {placement}": placement != "device",
        ", channels_last": row.get("memory_format") == "channels_last",
        ", tf32": row.get("tf32"),
        ", augmented": row.get("augmentation") == "standard",
    }
    name = "".join([str(row.get("aggregator", "")), *(mark for mark, is_so in marks.items() if is_so)])
    first = [name, str(row.get("world_size", ""))]
    if "reason" in row:
        return [*first, "not predicted", "", "", notes]
    link = str(row.get("busiest_link") or "").partition("/")[2]
    return [
        *first,
        _text(row, "iteration_s", 1e3, with_interval=True),
        _text(row, "speedup"),
        _text(row, "exposed_comm_s", 1e3),
        f"{link} {notes}".strip(),
    ]


def _text(row: Mapping[str, Any], name: str, scale: float = 1.0, *, with_interval: bool = False) -> str:
    """A number; its interval, if it is not shown, is in `--json`."""
    if row.get(name) is None:
        return "-"
    text = f"{row[name] * scale:.4g}"
    low, high = (row[f"{name}_{end}"] * scale if with_interval else 0.0 for end in ("low", "high"))
    return text if low == high else f"{text} [{low:.3g}, {high:.3g}]"

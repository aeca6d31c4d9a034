"""A table of throughput against GPUs, made by something else, as a results folder: a header, as
`GPUs,images_per_sec`, and lines, as `8,1877.4`.

A column `seed` (or `run`) distinguishes repeats, else lines with the same number of GPUs are repeats. A line
is one run with one sample, its mean step: the batch over the throughput. Of one GPU it is the step without
exchange, the baseline of speedups.
"""

from __future__ import annotations

import csv
import math
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any, Literal

from scaling.axes import ATTACHED
from scaling.errors import StudyError
from scaling.files.documents import DocumentError, read_text
from scaling.store import ResultsFolder, RunRecord
from scaling.study.cell import digest

DATASET = "an imported table"
GPUS = ("gpus", "num_gpus", "ngpus", "workers", "world_size", "ranks")
RATES = ("images_per_sec", "images_per_s", "img_per_sec", "samples_per_sec", "samples_per_s", "throughput")
REPEATS = ("seed", "run", "repeat")
NUM_TENSORS = 32  # that a model is taken to have, all of a size, where only its number of parameters is known
MAX_BYTES, MOST_LINES, MOST_GPUS = 1 << 20, 10_000, 4096


@dataclass(frozen=True)
class TableFacts:
    name: str  # of the model or script
    batch: int = 0  # of a GPU if `scaling` is weak, of all if strong (0: not known)
    scaling: Literal["weak", "strong"] = "weak"  # "weak" or "strong"
    num_parameters: int = 0  # of the model, for predictions (0: not known)


def read_table(path: Path) -> dict[int, list[float]]:
    """Number of GPUs -> samples a second, a value a repeat. Raises StudyError: naming the line."""
    try:
        text = read_text(path, MAX_BYTES)
    except (OSError, DocumentError) as error:
        raise StudyError(f"{path}: cannot be read: {error}") from error
    lines = [line for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#")]
    if not 2 <= len(lines) <= MOST_LINES:
        raise StudyError(f"{path}: {len(lines)} lines; give a header and 1 to {MOST_LINES} lines of values")
    delimiter = next((mark for mark in (",", "\t", ";", "|") if mark in lines[0]), " ")
    rows = list(csv.reader(lines, delimiter=delimiter, skipinitialspace=True))
    header = [name.strip().lower().replace("/", "_per_").replace(" ", "_") for name in rows[0]]
    gpus, rate = (_column(header, names, path) for names in (GPUS, RATES))
    repeat = next((header.index(name) for name in REPEATS if name in header), None)
    found: dict[int, list[float]] = defaultdict(list)
    seen: set[tuple[int, str]] = set()
    for number, row in enumerate(rows[1:], start=2):
        if len(row) != len(header):
            raise StudyError(f"{path}: line {number} has {len(row)} values, the header {len(header)}")
        size, value = _numbers(row[gpus], row[rate], f"{path}: line {number}")
        if repeat is not None and (size, row[repeat]) in seen:
            raise StudyError(
                f"{path}: line {number}: {size} GPUs with {header[repeat]} {row[repeat]} are there twice"
            )
        seen.add((size, row[repeat] if repeat is not None else str(number)))
        found[size].append(value)
    return dict(sorted(found.items()))


def _column(header: list[str], names: tuple[str, ...], path: Path) -> int:
    for name in names:
        if name in header:
            return header.index(name)
    raise StudyError(
        f"{path}: no column {names[0]} in the header {','.join(header)}; allowed: {', '.join(names)}"
    )


def _numbers(gpus: str, rate: str, where: str) -> tuple[int, float]:
    try:
        size, value = int(gpus), float(rate)
    except ValueError:
        raise StudyError(f"{where}: {gpus!r}, {rate!r}: give a whole number of GPUs and a rate") from None
    if not 1 <= size <= MOST_GPUS or not 0 < value < math.inf:
        raise StudyError(
            f"{where}: {size} GPUs, {rate} a second: allowed are 1 to {MOST_GPUS} GPUs, and rates above 0"
        )
    return size, value


def import_table(path: Path, facts: TableFacts, out: Path) -> list[str]:
    """Writes the results folder `out`, which is new or empty; returns notes. Raises StudyError."""
    table = read_table(path)
    if out.exists() and any(out.iterdir()):
        raise StudyError(f"{out} is not empty; use another --out")
    if facts.scaling == "strong" and not facts.batch:
        raise StudyError("--scaling strong needs --batch: the batch of all GPUs together")
    wrong = [size for size in table if facts.scaling == "strong" and facts.batch % size]
    if wrong:
        raise StudyError(
            f"--batch {facts.batch} does not divide by {wrong[0]} GPUs; give the batch of all GPUs"
        )
    notes = _notes(table, facts, path)
    folder = ResultsFolder(out)
    folder.write_environment({"imported": path.name})
    parts = [{"kind": ATTACHED, "command": f"imported from {path.name}"}]
    folder.write_study({"name": facts.name, "parts": parts, "notes": ["; ".join(notes)]})
    for size, rates in table.items():
        cell = _cell(size, facts)
        cell_id = digest({key: value for key, value in cell.items() if not key.endswith("_label")})
        for repeat, rate in enumerate(rates):
            record = RunRecord(cell_id, repeat, cell)
            folder.start_run(record, {"launcher": "imported", "host": "not known"})
            line = {"iteration": 0, "warmup": False, "step_s": cell["global_batch"] / rate}
            for rank in range(size):
                folder.sample_writer(cell_id, repeat, rank)([line])
            folder.finish_run(record, _summary(facts))
    return notes


def _notes(table: dict[int, list[float]], facts: TableFacts, path: Path) -> list[str]:
    single = [str(size) for size, rates in table.items() if len(rates) == 1]
    notes = [f"imported from {path.name}: nothing here was measured by this tool"]
    if single:
        notes.append(f"one value, so no interval, of {', '.join(single)} GPUs")
    if 1 not in table:
        notes.append("no line of 1 GPU: no speedups")
    if 1 in table and len(table) > 2:
        share, off = serial_share(table)
        notes.append(
            f"fit of n / (1 + s (n - 1)) to the speedups: s = {share:.2%}, at most {off:.0%} off; beyond "
            f"{max(table)} GPUs it is a guess"
        )
    if not facts.batch:
        notes.append("the batch is not known and counted as 1 a GPU: times are those of a sample (--batch)")
    if not facts.num_parameters:
        notes.append("the model's size is not known: nothing is predicted (--parameters)")
    return notes


def serial_share(table: dict[int, list[float]]) -> tuple[float, float]:
    """Amdahl's serial share by least squares of 1 / efficiency - 1; the largest relative deviation."""
    speedup = {size: median(rates) / median(table[1]) for size, rates in table.items() if size > 1}
    lost = {size: size / gain - 1 for size, gain in speedup.items()}
    share = sum((n - 1) * lost[n] for n in lost) / sum((n - 1) ** 2 for n in lost)
    return share, max(abs(n / (1 + share * (n - 1)) / speedup[n] - 1) for n in speedup)


def equal_tensors(num_parameters: int) -> str:
    """The shapes of a model of which only the size is known, so that DDP's buckets fill one after another."""
    whole, rest = divmod(num_parameters, NUM_TENSORS)
    return " ".join(str(size) for size in [whole + 1] * rest + [whole] * (NUM_TENSORS - rest) if size)


def _summary(facts: TableFacts) -> dict[str, Any]:
    known = {"num_parameters": facts.num_parameters, "tensor_shapes": equal_tensors(facts.num_parameters)}
    return {"signature": {"update": 1}, **(known if facts.num_parameters else {})}


def _cell(size: int, facts: TableFacts) -> dict[str, Any]:
    batch = facts.batch or 1
    strong = facts.scaling == "strong"
    aggregator = "none" if size == 1 else "all_reduce"  # what predictions take it for
    return {
        "kind": ATTACHED, "model": facts.name, "dataset": DATASET, "aggregator": aggregator,
        "step": "overlapped", "device": "cuda", "scaling": facts.scaling, "world_size": size,
        "local_batch": batch // size if strong else batch,
        "global_batch": batch if strong else batch * size, "threads": 1, "peer_access": None,
        "bucket_mb": None, "arm": "one_worker" if size == 1 else "baseline", "aa_replicate": 0,
        "model_label": facts.name, "dataset_label": DATASET,
        "aggregator_label": "none" if size == 1 else "as imported", "exchanges": size > 1, "lossy": False,
        "optimizer": "script",
    }  # fmt: skip

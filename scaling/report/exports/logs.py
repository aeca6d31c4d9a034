"""Lines in the format of MLPerf's logging library, one log after the other for each run.

Trainings tell their epochs and accuracies, timings their throughput. The format is MLPerf's, a submission it
is not: `time_ms` counts from the run's start (to the second) by seconds of training, in which evaluation and
checkpoints are left out, and there is no initialisation or cache clearing. Trainings whose workers shared
GPUs have no such time, and no log.

Reference: MLCommons, "MLPerf Training Logging", mllog.py, github.com/mlcommons/logging
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Iterator, Sequence
from datetime import datetime
from functools import cache
from typing import Any

from scaling.analysis.columns import shares_gpus
from scaling.analysis.learning import BITS_TARGET, index_of_target
from scaling.analysis.samples import CellResult, IterationLaunch, TrainingSamples
from scaling.store import ResultsFolder, RunRecord

START, END, POINT = "INTERVAL_START", "INTERVAL_END", "POINT_IN_TIME"


def mllog(folder: ResultsFolder, cells: Sequence[CellResult]) -> Iterator[str]:
    for cell in cells:
        runs = {record.repeat: record for record in cell.done}
        for training in () if shares_gpus(cell.cell) else cell.trainings:
            yield from _training(cell, runs[training.repeat], training)
        for launch in cell.all_launches:
            yield from _timing(cell, runs[launch.repeat], launch)


def _training(cell: CellResult, record: RunRecord, training: TrainingSamples) -> Iterator[str]:
    start_ms = 1000 * _start_s(record)
    yield from _head(cell, record, start_ms)
    yield _line(start_ms, START, "run_start", None, {})
    reached = index_of_target(training, cell.cell)
    begin_ms = start_ms
    for index, epoch in enumerate(training.epochs.tolist()):
        end_ms = start_ms + 1000 * float(training.train_s[index])
        about = {"epoch_num": int(epoch)}
        yield _line(begin_ms, START, "epoch_start", None, about)
        yield _line(end_ms, END, "epoch_stop", None, about)
        accuracy = float(training.test_accuracy[index])
        if math.isfinite(accuracy):
            yield _line(end_ms, POINT, "eval_accuracy", accuracy, about)
        begin_ms = end_ms
    aimed = any(cell.cell.get(key) is not None for key in ("target_accuracy", BITS_TARGET))
    status = "success" if reached is not None or not aimed else "aborted"
    yield _line(begin_ms, END, "run_stop", None, {"status": status})


def _timing(cell: CellResult, record: RunRecord, launch: IterationLaunch) -> Iterator[str]:
    start_ms, num_steps = 1000 * _start_s(record), len(launch.iterations)
    end_ms = start_ms + 1000 * launch.iteration_s * num_steps
    yield from _head(cell, record, start_ms)
    yield _line(start_ms, START, "run_start", None, {})
    throughput = {"throughput": cell.cell["global_batch"] / launch.iteration_s}
    yield _line(end_ms, POINT, "tracked_stats", throughput, {"step": num_steps})
    yield _line(end_ms, END, "run_stop", None, {"status": "success"})


def _head(cell: CellResult, record: RunRecord, time_ms: float) -> Iterator[str]:
    about = {"cell": cell.cell_id, "repeat": record.repeat}
    about |= {"aggregator": cell.label("aggregator"), "world_size": cell.cell["world_size"]}
    facts = {
        "submission_benchmark": f"{cell.label('model')} on {cell.label('dataset')}",
        "global_batch_size": cell.cell["global_batch"],
        "opt_name": "sgd",
        "opt_base_learning_rate": cell.cell["learning_rate"],
        "seed": cell.cell["seed"],
    }
    for key, value in facts.items():
        yield _line(time_ms, POINT, key, value, about)


def _line(time_ms: float, event_type: str, key: str, value: Any, metadata: dict[str, Any]) -> str:
    fields = {"namespace": "", "time_ms": round(time_ms), "event_type": event_type, "key": key}
    return f":::MLLOG {json.dumps({**fields, 'value': value, 'metadata': metadata})}"


def _start_s(record: RunRecord) -> float:
    started = record.launch.get("started_at")
    return datetime.fromisoformat(started).timestamp() if started else 0.0


OF_EPOCHS = ("train_loss", "test_loss", "train_accuracy", "test_accuracy", "learning_rate")
POLYNOMIAL = 0x82F63B78


def event_files(cells: Sequence[CellResult]) -> Iterator[tuple[str, bytes]]:
    for cell in cells:
        if not (cell.all_launches or cell.trainings):
            continue
        runs = {run.repeat: run for run in cell.done}
        name = f"{cell.label('aggregator')}@{cell.cell['world_size']}-{cell.cell_id}".replace("/", "_")
        for launch in cell.all_launches:
            steps = zip(launch.iterations.tolist(), launch.rank_steps_s.max(axis=0).tolist(), strict=True)
            yield _file(name, runs[launch.repeat], [("step_s", int(step), value) for step, value in steps])
        for training in cell.trainings:
            values = [
                (tag, int(epoch), float(value))
                for tag in OF_EPOCHS
                for epoch, value in zip(training.epochs, getattr(training, tag), strict=True)
                if math.isfinite(value)
            ]
            yield _file(name, runs[training.repeat], values)


def _file(name: str, run: RunRecord, values: Sequence[tuple[str, int, float]]) -> tuple[str, bytes]:
    time_s = _start_s(run)
    events = [_event(time_s, 0, _text(3, b"brain.Event:2"))]
    events += [scalar_event(time_s, *value) for value in values]
    return f"{name}/{run.repeat}/events.out.tfevents.{int(time_s)}.scaling", b"".join(map(record, events))


def scalar_event(time_s: float, tag: str, step: int, value: float) -> bytes:
    scalar = _text(1, tag.encode()) + b"\x15" + struct.pack("<f", value)
    return _event(time_s, step, _text(5, _text(1, scalar)))


def _event(time_s: float, step: int, what: bytes) -> bytes:
    return b"\x09" + struct.pack("<d", time_s) + (b"\x10" + _varint(step) if step else b"") + what


def _text(field: int, data: bytes) -> bytes:
    return bytes([field << 3 | 2]) + _varint(len(data)) + data


def _varint(number: int) -> bytes:
    low, rest = number & 0x7F, number >> 7
    return bytes([low | 0x80]) + _varint(rest) if rest else bytes([low])


def record(data: bytes) -> bytes:
    length = struct.pack("<Q", len(data))
    return length + struct.pack("<I", masked_crc(length)) + data + struct.pack("<I", masked_crc(data))


def masked_crc(data: bytes) -> int:
    """CRC-32C, rotated and shifted as in records of TensorFlow."""
    crc, table = 0xFFFFFFFF, _table()
    for byte in data:
        crc = table[(crc ^ byte) & 0xFF] ^ crc >> 8
    crc ^= 0xFFFFFFFF
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


@cache
def _table() -> list[int]:
    found = []
    for byte in range(256):
        crc = byte
        for _ in range(8):
            crc = crc >> 1 ^ (POLYNOMIAL if crc & 1 else 0)
        found.append(crc)
    return found

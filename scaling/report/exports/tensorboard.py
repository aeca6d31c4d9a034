"""Event files of TensorBoard: a run a folder, with its steps or epochs as scalars.

A file is a row of records (length, masked CRC-32C of it, data, masked CRC-32C of that), the first with the
version, all others with a value: `Event` of tensorflow/core/util/event.proto, encoded by hand.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator, Sequence
from datetime import datetime
from functools import cache

from scaling.analysis.samples import CellResult
from scaling.store import RunRecord

OF_EPOCHS = ("train_loss", "test_loss", "train_accuracy", "test_accuracy", "learning_rate")
POLYNOMIAL = 0x82F63B78


def event_files(cells: Sequence[CellResult]) -> Iterator[tuple[str, bytes]]:
    for cell in cells:
        if not (cell.all_launches or cell.trainings):
            continue
        runs = {run.repeat: run for run in cell.done}
        name = f"{cell.label('aggregator')}@{cell.cell['world_size']}-{cell.cell_id}".replace("/", "_")
        for launch in cell.all_launches:
            slowest = launch.rank_steps_s.max(axis=0).tolist()
            steps = zip(launch.iterations.tolist(), slowest, strict=True)
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
    started = run.launch.get("started_at")
    time_s = datetime.fromisoformat(started).timestamp() if started else 0.0
    events = [_event(time_s, 0, _text(3, b"brain.Event:2"))]
    events += [scalar_event(time_s, *value) for value in values]
    path = f"{name}/{run.repeat}/events.out.tfevents.{int(time_s)}.scaling"
    return path, b"".join(map(record, events))


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

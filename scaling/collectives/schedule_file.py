"""Schedules as YAML files: written for a person to read, proven whenever they are read.

    name: synthesized
    world_size: 2
    num_chunks: 2
    steps:
    - 0>1 add 1:2, 1>0 add 0:1
    - 0>1 copy 0:1, 1>0 copy 1:2

A step is one text: `source>target operation start:stop` for each transfer, ranks and chunks from 0, without
the chunk `stop`.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from scaling.collectives.schedule import Operation, Schedule, ScheduleStep, Transfer
from scaling.collectives.verify import verify
from scaling.errors import ScheduleError
from scaling.files.documents import MAX_YAML_BYTES, DocumentError, decoded, from_yaml, read_bytes

SUFFIXES = (".yaml", ".yml")
_FIELDS = ("name", "world_size", "num_chunks", "steps")
_TRANSFER = re.compile(r"(\d{1,6})>(\d{1,6}) (add|copy) (\d{1,6}):(\d{1,6})")
_FORM = "'source>target add start:stop' or with copy, as in '0>1 add 2:3, 1>2 copy 0:4'"


def is_file(name: str) -> bool:
    """Whether a collective's name is that of a file."""
    return name.endswith(SUFFIXES)


def to_yaml(schedule: Schedule, comments: Sequence[str] = ()) -> str:
    """The file of a schedule, with comments at its beginning. ScheduleError: it uses host memory, or its
    chunks are tensors of unequal size, or it is too large."""
    if schedule.num_hosts or schedule.chunk_elements is not None:
        raise ScheduleError(f"{schedule.name}: a file has equal chunks and ranks alone")
    lines = [f"# {comment}" for comment in comments]
    lines += [f"{field}: {getattr(schedule, field)}" for field in _FIELDS[:-1]]
    lines.append("steps:" if len(schedule.steps) else "steps: []")
    lines += [
        "- " + ", ".join(f"{t.source}>{t.target} {t.operation} {t.start}:{t.stop}" for t in step)
        for step in schedule.steps
    ]
    text = "\n".join(lines) + "\n"
    if len(text) > MAX_YAML_BYTES:
        raise ScheduleError(
            f"{schedule.name}: {len(text)} characters; at most {MAX_YAML_BYTES} are read again"
        )
    return text


def read_schedule(path: str | os.PathLike[str]) -> tuple[Schedule, str]:
    """The schedule of a file, and the SHA-256 of the file in hexadecimal digits. ScheduleError: the file
    cannot be read, is no schedule, or its schedule does not deliver the sum."""
    try:
        content = read_bytes(path, MAX_YAML_BYTES)
        return _proven(os.fspath(path), content), hashlib.sha256(content).hexdigest()
    except DocumentError as error:
        raise ScheduleError(f"{path}: {error}; `scaling synthesize --out FILE` writes one") from None
    except OSError as error:
        raise ScheduleError(f"{path}: cannot be read: {error.strerror}") from None


@lru_cache(maxsize=16)
def _proven(path: str, content: bytes) -> Schedule:
    schedule = _schedule(path, from_yaml(decoded(content)))
    verify(schedule)
    return schedule


def _schedule(path: str, value: Any) -> Schedule:
    if not isinstance(value, dict) or set(value) != set(_FIELDS):
        raise ScheduleError(f"{path}: is no schedule; it has the keys {', '.join(_FIELDS)}, and no others")
    if not isinstance(value["name"], str) or not isinstance(value["steps"], list):
        raise ScheduleError(f"{path}: 'name' is a text, 'steps' a list")
    steps = tuple(_step(path, number, text) for number, text in enumerate(value["steps"]))
    return Schedule(value["name"], value["world_size"], value["num_chunks"], steps)


def _step(path: str, number: int, text: object) -> ScheduleStep:
    matches = [_TRANSFER.fullmatch(part) for part in text.split(", ")] if isinstance(text, str) else [None]
    transfers = []
    for match in matches:
        if match is None:
            raise ScheduleError(f"{path}: step {number} is {text!r:.60}; allowed is {_FORM}")
        source, target, operation, start, stop = match.groups()
        kind: Operation = "add" if operation == "add" else "copy"
        transfers.append(Transfer(int(source), int(target), int(start), int(stop), kind))
    return tuple(transfers)


def for_ranks(path: str, world_size: int) -> Schedule:
    """The schedule of a file, which must be for that many ranks; of one rank alone, nothing. ScheduleError:
    as `read_schedule`, or it is for another number of ranks."""
    schedule, _ = read_schedule(path)
    if world_size == 1:
        return Schedule(schedule.name, 1, 1, ())
    if schedule.world_size != world_size:
        raise ScheduleError(
            f"{path}: made for {schedule.world_size} ranks, asked for {world_size}; `scaling synthesize "
            f"--world-size {world_size}` makes another"
        )
    return schedule

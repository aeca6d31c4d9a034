"""What a rank says of how far it is: a page of memory that the watcher of its host reads.

A step is one write, so that what is measured does not notice. The page is a file without a name (memfd):
nothing is left behind. Python's stack is written behind it on SIGUSR2 (faulthandler), also in C code.
"""

from __future__ import annotations

import faulthandler
import mmap
import os
import signal
from dataclasses import dataclass
from pathlib import Path

PAGE_BYTES = 4096
NUMBERS = 8
PHASE_AT, CELL_AT = 64, 256

SERIAL, STEPS, STEPS_BEFORE, PATIENCE, TIMEOUT_MS, LEFT = range(6)
"""Places of the numbers, as `Position` has them; `STEPS_BEFORE` are those before this phase."""

STACK_SIGNAL = signal.SIGUSR2

DEFAULT_STALL_TIMEOUT_S = 60.0  # before the study is read, and where it says nothing of it
FIRST_STEP_PATIENCE = 10  # set-up, compiling and a first step get so many times `stall_timeout`

UNLIMITED = 0


@dataclass(frozen=True)
class Position:
    """`patience`: times `stall_timeout_s` before the first step; 0, of both: any time."""

    serial: int
    steps: int
    steps_in_phase: int
    patience: int
    stall_timeout_s: float
    has_left: bool
    phase: str
    cell: str

    def describe(self) -> str:
        """`timed iterations (17 steps done) of ring on 2 workers`."""
        done = f" ({self.steps_in_phase} steps done)" if self.steps_in_phase else ""
        return f"{self.phase}{done}{f' of {self.cell}' if self.cell else ''}"


class Heartbeat:
    """Says how far a rank is. This one says it to nobody."""

    def phase(self, name: str, patience: int = FIRST_STEP_PATIENCE) -> None:
        """Outside of what is timed. `patience`: times `stall_timeout` for its first step."""

    def step(self) -> None:
        """A step is done."""

    def cell(self, description: str) -> None:
        """A cell begins; empty: none is under way."""

    def allow(self, stall_timeout_s: float) -> None:
        """How long it may stand still; 0: for any time."""

    def listen(self) -> None:
        """Takes the signal of the watcher again, whose handler somebody has replaced."""

    def leave(self) -> None:
        """This process ends in order, or has said why it does not."""


SILENT = Heartbeat()


class SharedHeartbeat(Heartbeat):
    """Says it to the watcher of this host. One a process: it takes SIGUSR2."""

    def __init__(self) -> None:
        self.descriptor = os.memfd_create("heartbeat")
        os.ftruncate(self.descriptor, PAGE_BYTES)
        os.lseek(self.descriptor, PAGE_BYTES, os.SEEK_SET)
        self._page = mmap.mmap(self.descriptor, PAGE_BYTES)
        self._numbers = memoryview(self._page)[: 8 * NUMBERS].cast("q")
        self.listen()
        self.allow(DEFAULT_STALL_TIMEOUT_S)
        self.phase("start-up", UNLIMITED)  # data sets may be fetched

    def phase(self, name: str, patience: int = FIRST_STEP_PATIENCE) -> None:
        """Its serial number tells the watcher that it is new; its steps count from here."""
        self._write(PHASE_AT, name, CELL_AT)
        self._numbers[STEPS_BEFORE] = self._numbers[STEPS]
        self._numbers[PATIENCE] = patience
        self._numbers[SERIAL] += 1

    def step(self) -> None:
        self._numbers[STEPS] += 1

    def cell(self, description: str) -> None:
        self._write(CELL_AT, description, PAGE_BYTES)

    def allow(self, stall_timeout_s: float) -> None:
        self._numbers[TIMEOUT_MS] = round(stall_timeout_s * 1e3)

    def listen(self) -> None:
        faulthandler.unregister(STACK_SIGNAL)
        faulthandler.register(STACK_SIGNAL, self.descriptor, all_threads=True, chain=False)

    def leave(self) -> None:
        self._numbers[LEFT] = 1

    def _write(self, start: int, text: str, end: int) -> None:
        content = text.encode()[: end - start - 1]
        self._page[start:end] = content.ljust(end - start, b"\0")


def stat_fields(pid: int) -> list[str]:
    """The fields of /proc/<pid>/stat from the state on; empty where the process is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []


class Reader:
    """`descriptor`: of a rank's page, opened for reading alone: it has a place of its own in the file."""

    def __init__(self, descriptor: int) -> None:
        self._file = open(descriptor, "rb", buffering=0)  # noqa: SIM115 (as long as this)
        self._page = mmap.mmap(self._file.fileno(), PAGE_BYTES, access=mmap.ACCESS_READ)
        self._numbers = memoryview(self._page)[: 8 * NUMBERS].cast("q")

    def position(self) -> Position:
        numbers = self._numbers
        return Position(
            serial=numbers[SERIAL],
            steps=numbers[STEPS],
            steps_in_phase=numbers[STEPS] - numbers[STEPS_BEFORE],
            patience=numbers[PATIENCE],
            stall_timeout_s=numbers[TIMEOUT_MS] / 1e3,
            has_left=bool(numbers[LEFT]),
            phase=self._text(PHASE_AT, CELL_AT),
            cell=self._text(CELL_AT, PAGE_BYTES),
        )

    def stack(self) -> str:
        """What the rank has written of its Python stacks, newest call first; empty if it has not."""
        self._file.seek(PAGE_BYTES)
        return self._file.read().decode(errors="replace")

    def _text(self, start: int, end: int) -> str:
        return self._page[start:end].partition(b"\0")[0].decode(errors="replace")

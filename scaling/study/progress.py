"""Tells a person how far a study is: a bar on a terminal, a line every half minute elsewhere."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TextIO

from scaling.files.redaction import redacted

LINE_EVERY_S = 30.0


class LineProgress:
    """A line every half minute."""

    def __init__(self, stream: TextIO, clock: Callable[[], float] = time.monotonic) -> None:
        self._stream = stream
        self._clock = clock
        self._started = self._last = clock()
        self._num_over_at_start: int | None = None

    def update(self, num_over: int, num_runs: int, current: str) -> None:
        now = self._clock()
        if self._num_over_at_start is None:
            self._num_over_at_start = num_over
        if now - self._last < LINE_EVERY_S:
            return
        self._last = now
        remaining = remaining_s(now - self._started, num_over - self._num_over_at_start, num_runs - num_over)
        self.say(f"{num_over}/{num_runs} runs, {current}, {_minutes(remaining)} left")

    def say(self, message: str) -> None:
        print(redacted(message), file=self._stream, flush=True)


def remaining_s(elapsed_s: float, num_done: int, num_left: int) -> float | None:
    """Seconds left if the rest takes as long per run as what is done; None before the first is done."""
    return elapsed_s / num_done * num_left if num_done > 0 else None


def _minutes(seconds: float | None) -> str:
    return "unknown time" if seconds is None else f"{int(seconds) // 60}:{int(seconds) % 60:02d}"


class _BarProgress:
    def __init__(self, stream: TextIO) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

        self._bar = Progress(
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("{task.fields[left]}"),
            TextColumn("{task.description}"),
            console=Console(file=stream),
        )
        self._task = self._bar.add_task("starting", total=None, left="")
        self._started = time.monotonic()
        self._num_over_at_start: int | None = None

    def __enter__(self) -> _BarProgress:
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def update(self, num_over: int, num_runs: int, current: str) -> None:
        if self._num_over_at_start is None:
            self._num_over_at_start = num_over
        elapsed = time.monotonic() - self._started
        remaining = remaining_s(elapsed, num_over - self._num_over_at_start, num_runs - num_over)
        self._bar.update(
            self._task,
            completed=num_over,
            total=num_runs,
            description=current,
            left=f"{_minutes(remaining)} left",
        )

    def say(self, message: str) -> None:
        # A log's "[rank0]" is no tag.
        self._bar.console.print(redacted(message), highlight=False, markup=False)


@contextmanager
def progress_for(stream: TextIO) -> Iterator[LineProgress | _BarProgress]:
    if stream.isatty():
        with _BarProgress(stream) as bar:
            yield bar
    else:
        yield LineProgress(stream)

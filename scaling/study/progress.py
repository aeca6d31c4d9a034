"""Tells a person how far a study is: a bar on a terminal, a line every half minute elsewhere."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TextIO

from scaling.files.redaction import redacted

LINE_EVERY_S = 30.0


class LineProgress:
    def __init__(self, stream: TextIO, clock: Callable[[], float] = time.monotonic) -> None:
        self._stream = stream
        self._clock, self._left = clock, _Remaining(clock)
        self._last = clock()

    def update(self, num_over: int, num_runs: int, current: str) -> None:
        left = self._left.text(num_over, num_runs)
        if (now := self._clock()) - self._last >= LINE_EVERY_S:
            self._last = now
            self.say(f"{num_over}/{num_runs} runs, {current}, {left} left")

    def say(self, message: str) -> None:
        print(redacted(message), file=self._stream, flush=True)


def remaining_s(elapsed_s: float, num_done: int, num_left: int) -> float | None:
    """Seconds left if the rest takes as long per run as what is done; None before the first is done."""
    return elapsed_s / num_done * num_left if num_done > 0 else None


class _Remaining:
    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock, self._started = clock, clock()
        self._num_over_at_start: int | None = None

    def text(self, num_over: int, num_runs: int) -> str:
        if self._num_over_at_start is None:
            self._num_over_at_start = num_over
        elapsed_s, num_done = self._clock() - self._started, num_over - self._num_over_at_start
        seconds = remaining_s(elapsed_s, num_done, num_runs - num_over)
        return "unknown time" if seconds is None else f"{int(seconds) // 60}:{int(seconds) % 60:02d}"


class _BarProgress:
    def __init__(self, stream: TextIO) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

        self.bar = Progress(
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("{task.fields[left]}"),
            TextColumn("{task.description}"),
            console=Console(file=stream),
        )
        self._task = self.bar.add_task("starting", total=None, left="")
        self._left = _Remaining()

    def update(self, num_over: int, num_runs: int, current: str) -> None:
        left = f"{self._left.text(num_over, num_runs)} left"
        self.bar.update(self._task, completed=num_over, total=num_runs, description=current, left=left)

    def say(self, message: str) -> None:
        # A log's "[rank0]" is no tag.
        self.bar.console.print(redacted(message), highlight=False, markup=False)


@contextmanager
def progress_for(stream: TextIO) -> Iterator[LineProgress | _BarProgress]:
    if stream.isatty():
        shown = _BarProgress(stream)
        with shown.bar:
            yield shown
    else:
        yield LineProgress(stream)

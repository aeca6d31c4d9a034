"""Ends a worker in order on SIGTERM or SIGUSR1, whatever it waits for at that moment.

A worker may sit in an exchange that never ends, since its peers were asked to stop too: a handler of Python's
would run only after it. A thread hears of the signal instead. Rank 0 puts the run that is cut off back to
planned, which is no death; the others leave that time to it.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from launchers.processes import say_line
from scaling.store import ResultsFolder

EXIT_STOPPED = 130
"""What an interrupted shell command gives, and `scaling run`."""

SIGNALS = (signal.SIGTERM, signal.SIGUSR1)

RECORDING = threading.Lock()
"""Held while a run's end is recorded: a run that is done is not put back."""

HEAD_START_S = 1.0
"""What rank 0 has before the others leave: their end would fail the cell there."""


def close_runs(folder: ResultsFolder, rank: int, world_size: int) -> None:
    """What is to be done before a rank leaves its launch: puts running runs of that size back to planned.
    `folder`: where the launch records; `rank`: of this process; those above 0 write nothing, and wait."""
    if rank:
        time.sleep(HEAD_START_S)
        return
    with RECORDING:
        for record in folder.runs():
            if record.state == "running" and record.cell["world_size"] == world_size:
                folder.reset_run(record)
    say_line("stopped by a signal: what is finished is kept, the rest is planned")


@contextmanager
def closing_on_signals(close: Callable[[], None]) -> Iterator[None]:
    """Within it, either signal ends this process with EXIT_STOPPED after `close`. For the main thread alone.
    `close`: called in a thread of its own, while the main thread goes on."""
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    wakeup_before = signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    handlers_before = {number: signal.signal(number, _heard_by_the_thread) for number in SIGNALS}
    thread = threading.Thread(target=_wait, args=(reader, close), daemon=True)
    thread.start()
    try:
        yield
    finally:
        for number, handler in handlers_before.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(wakeup_before)
        os.close(writer)
        thread.join()
        os.close(reader)


def _heard_by_the_thread(number: int, frame: object) -> None:
    """The interpreter has written the number to the pipe before it calls this."""


def _wait(reader: int, close: Callable[[], None]) -> None:
    while number := os.read(reader, 1):
        if number[0] in SIGNALS:
            try:
                close()
            finally:
                os._exit(EXIT_STOPPED)  # the main thread may be in a call that never returns

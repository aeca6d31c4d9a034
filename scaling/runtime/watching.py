"""This rank under the watcher of its host (`launchers.watch`), which the first rank of the host starts."""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

from launchers.watch.heartbeat import SILENT, Heartbeat, SharedHeartbeat
from launchers.watch.start import end_watcher, start_watcher
from scaling.runtime.workers import Workers


class _Place(NamedTuple):
    """A rank, as a process of its host can find it."""

    processes: str
    pid: int
    descriptor: int


@contextmanager
def watched(workers: Workers) -> Iterator[Heartbeat]:
    """This rank's heartbeat, with a watcher on every host. Collective.

    Ranks are watched on Linux alone: elsewhere the heartbeat is heard by nobody.

    Args:
        workers: all ranks.
    """
    if sys.platform != "linux":
        yield SILENT
        return
    heartbeat = SharedHeartbeat()
    # Containers of one host have process numbers of their own, and their names may be the same.
    here = f"{platform.node()} {os.readlink('/proc/self/ns/pid')}"
    places = workers.gather(_Place(here, os.getpid(), heartbeat.descriptor))
    local = {rank: one[1:] for rank, one in enumerate(places) if one.processes == here}
    watcher = start_watcher(local, len(places)) if workers.info.rank == min(local) else None
    try:
        yield heartbeat
    finally:
        if workers.closed:
            heartbeat.leave()
            if watcher is not None:
                end_watcher(watcher)

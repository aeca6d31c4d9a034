"""This rank under the watcher of its host (`launchers.watch`), which the first rank of the host starts."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Sequence

from launchers.base import MEETING_TOKEN_VARIABLE
from launchers.rank_info import RankInfo
from launchers.watch.heartbeat import SILENT, Heartbeat, SharedHeartbeat
from launchers.watch.peers import Meeting, open_meeting
from launchers.watch.start import end_watcher, start_watcher
from scaling.runtime.address import reachable_address
from scaling.runtime.meeting import RankPlace, here


class Watched:
    """This rank's heartbeat, and the watcher that it starts where it is its host's first rank. Ranks are
    watched on Linux alone: elsewhere the heartbeat is heard by nobody. `heartbeat`: one a process."""

    def __init__(self) -> None:
        self.heartbeat: Heartbeat = SharedHeartbeat() if sys.platform == "linux" else SILENT
        self._listener: socket.socket | None = None
        self._watcher: subprocess.Popen[bytes] | None = None

    def place(self, info: RankInfo) -> RankPlace:
        """What the others are told of this rank; rank 0 says where the watchers of several hosts meet."""
        page = self.heartbeat.descriptor if isinstance(self.heartbeat, SharedHeartbeat) else -1
        meeting = None
        if info.rank == 0 and info.world_size > info.local_world_size and page >= 0:
            self._listener, offered = open_meeting(reachable_address(os.environ))
            meeting = (offered.host, offered.port, "" if _token() else offered.token)
        return RankPlace(here(), os.getpid(), page, meeting)

    def begin(self, places: Sequence[RankPlace], rank: int) -> None:
        """Starts the watcher, if that is this rank's part. `places`: of all ranks, in rank order."""
        local = {n: (place.pid, place.page) for n, place in enumerate(places) if place.processes == here()}
        if rank == min(local) and self.heartbeat is not SILENT:
            offered = places[0].meeting
            has_others = offered is not None and len(local) < len(places)
            meeting = Meeting(*offered[:2], _token() or offered[2]) if offered and has_others else None
            self._watcher = start_watcher(local, len(places), meeting, self._listener if meeting else None)
        if self._listener is not None:
            self._listener.close()

    def close(self) -> None:
        """This rank ends in order; the watcher that it has started is gone."""
        self.heartbeat.leave()
        if self._watcher is not None:
            end_watcher(self._watcher)


def _token() -> str:
    """That of the launch, which is never said where others could read it; "" where the launcher set none."""
    return os.environ.get(MEETING_TOKEN_VARIABLE, "")

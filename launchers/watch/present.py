"""Which ranks of this host are there, before they have met: as far as a rank that waits for them can see."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path

from launchers.rank_info import RankError, RankInfo

GRACE_S = 5.0
"""A launcher starts the ranks of a host one after another; one that nobody has seen may still come."""

LAUNCHED_AT_ONCE = {
    "torchrun": "TORCHELASTIC_RUN_ID",
    "openmpi": "OMPI_COMM_WORLD_RANK",
    "mpich": "PMI_RANK",
    "srun": "SLURM_STEP_ID",
}
"""Table of `rank_info` -> a variable of the launcher itself, which starts all ranks of a host as its
children; without it somebody may start them by hand, one by one."""


@dataclass
class Present:
    info: RankInfo
    began_s: float
    pids: dict[int, int] = field(default_factory=dict)
    _stopped_s: dict[int, float] = field(default_factory=dict)

    @property
    def local(self) -> range:
        first = self.info.rank - self.info.local_rank
        return range(first, first + self.info.local_world_size)

    def look(self) -> None:
        """Sees what the launcher of this rank has started besides it."""
        if not self._is_at_once():
            return
        parent = os.getppid()
        for path in Path("/proc").glob("[0-9]*"):
            pid = int(path.name)
            if _state(pid)[1:2] == [str(parent)] and (rank := self._rank_of(pid)) is not None:
                self.pids[rank] = pid

    def trouble(self, now_s: float, stall_timeout_s: float) -> tuple[int, str] | None:
        """A rank of this host for which the others wait in vain, and how it is; it is ended.

        Args:
            now_s: of the clock of `began_s`.
            stall_timeout_s: for so long one may be stopped.
        """
        for rank, pid in self.pids.items():
            state = _state(pid)[:1]
            if state in ([], ["Z"], ["X"]):
                return rank, "left first"
            if state != ["T"]:
                self._stopped_s.pop(rank, None)
            elif now_s - self._stopped_s.setdefault(rank, now_s) >= stall_timeout_s:
                return rank, "stopped"
        is_late = self._is_at_once() and now_s - self.began_s > GRACE_S
        if is_late and self.info.rank in self.pids and len(self.pids) < len(self.local):
            return next(rank for rank in self.local if rank not in self.pids), "left first"
        return None

    def _is_at_once(self) -> bool:
        """Whether a launcher starts all ranks of this host as its children: not by hand, where they come
        within SCALING_JOIN_TIMEOUT_S, and with no program between it and each rank.
        """
        has_launcher = LAUNCHED_AT_ONCE.get(self.info.table, "") in os.environ
        return has_launcher and self._rank_of(os.getppid()) is None

    def _rank_of(self, pid: int) -> int | None:
        """The rank of this host that a process was started as by the same launcher; None: none."""
        try:
            content = Path(f"/proc/{pid}/environ").read_bytes().decode(errors="replace")
            variables = dict(text.split("=", 1) for text in content.split("\0") if "=" in text)
            place = RankInfo.from_env(variables)
        except (OSError, RankError):
            return None
        return place.rank if place.table == self.info.table and place.rank in self.local else None


def _state(pid: int) -> list[str]:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []

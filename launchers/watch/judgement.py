"""Who stands still, and who is behind: of what a watcher has seen."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from launchers.watch.heartbeat import Position

SLACK = 10.0  # a step that took so many times as long as the longest before it still counts as one of them

FRAMES_SHOWN = 8

PREFIX = "watcher: "  # what a watcher's lines begin with, after what a launcher may put before them

UNKNOWN_CODE = "with an unknown exit code"

WAITING_IN = (
    *("/torch/distributed/", "/scaling/process_group/", "/horovod/", "/mpi4py/"),
    *("/measure/clock.py", "/torch/cuda/streams.py", "/torch/cuda/__init__.py"),
)
"""Files of which a function on the stack says that a rank waits for others, or for a device that does."""


class Pace:
    def __init__(self, position: Position, now_s: float) -> None:
        self._last, self._moved_s = position, now_s
        self._first_s: float | None = None
        self._longest_s: float | None = None

    def look(self, position: Position, now_s: float) -> float:
        """Takes where the rank is now; returns for how long it has not moved, in seconds."""
        before = self._last
        if position.serial != before.serial:
            if position.patience != 1:
                self._first_s = self._longest_s = None
            self._moved_s = now_s
        elif position.steps != before.steps:
            gap_s = now_s - self._moved_s
            if self._first_s is None:
                self._first_s = gap_s
            else:
                self._longest_s = max(self._longest_s or 0.0, gap_s)
            self._moved_s = now_s
        self._last = position
        return now_s - self._moved_s

    def excuse(self, now_s: float) -> None:
        """The watcher itself could not look for a while: that time is nobody's."""
        self._moved_s = now_s

    def limit_s(self, *, stopped: bool) -> float:
        """`stopped`: the rank is, by a signal: no phase takes time then."""
        timeout_s = self._last.stall_timeout_s
        if timeout_s == 0:
            return float("inf")
        if stopped:
            return timeout_s
        known_s = self._first_s if self._longest_s is None else self._longest_s
        if known_s is not None:
            return max(timeout_s, SLACK * known_s)
        return timeout_s * self._last.patience if self._last.patience else float("inf")


@dataclass(frozen=True)
class Seen:
    """`frames`: the main thread's, newest call first, as faulthandler writes them."""

    position: Position
    stopped: bool
    frames: Sequence[str]
    host: str = ""

    @property
    def waits(self) -> bool:
        return not self.stopped and any(part in frame for frame in self.frames for part in WAITING_IN)


def main_thread(stacks: str) -> list[str]:
    """The frames of the main thread, which faulthandler writes last: it was there first."""
    frames: list[str] = []
    for line in stacks.splitlines():
        if re.match(r"(Current thread|Thread) 0x", line):
            frames = []
        elif line.startswith("  "):
            frames.append(line.strip())
    return frames


def behind(seen: Mapping[int, Seen]) -> list[int]:
    """Stopped ranks; those that wait for nobody while others do; those with the fewest steps, or None."""
    stopped = [rank for rank, state in seen.items() if state.stopped]
    if stopped or len(seen) == 1:
        return stopped or list(seen)
    busy = [rank for rank, state in seen.items() if not state.waits]
    reached = {rank: (state.position.serial, state.position.steps) for rank, state in seen.items()}
    lowest = min(reached.values())
    slowest = [rank for rank, at in reached.items() if at == lowest]
    return next((group for group in (busy, slowest) if 0 < len(group) < len(seen)), [])


def stall_report(seen: Mapping[int, Seen], still_s: float, num_ranks: int) -> list[str]:
    """What watchers say of a launch that stands still: a line on who is behind, and stacks."""
    late = behind(seen)
    elsewhere = len(seen) < num_ranks
    if elsewhere and all(state.waits for state in seen.values()):
        ranks = ", ".join(map(str, seen))
        hosts = ", ".join(dict.fromkeys(state.host for state in seen.values()))
        first = f"no progress for {still_s:.0f} s: ranks {ranks} on {hosts} wait for ranks of other hosts"
    elif late:
        names = f"rank {late[0]} is" if len(late) == 1 else f"ranks {', '.join(map(str, late))} are"
        hosts = ", ".join(dict.fromkeys(seen[rank].host for rank in late))
        state = seen[late[0]]
        how = ", stopped by a signal," if state.stopped else ""
        first = (
            f"{names} behind on {hosts}{how} in {state.position.describe()}: no progress for "
            f"{still_s:.0f} s, longer than stall_timeout ({state.position.stall_timeout_s:g} s) allows here"
        )
    else:
        state = next(iter(seen.values()))
        first = (
            f"no progress for {still_s:.0f} s in {state.position.describe()}: no rank is behind, all wait "
            "for each other, as where their exchanges do not match"
        )
    lines = [first]
    for rank, state in seen.items():
        if not late or rank in late or elsewhere:
            lines += [
                f"  rank {rank}, newest call first:" if state.frames else f"  rank {rank} wrote no stack",
                *(f"    {f}" for f in state.frames[:FRAMES_SHOWN]),
            ]
    return lines


def gone_report(host: str, ranks: Sequence[int]) -> str:
    names = f"ranks {', '.join(map(str, ranks))}" if len(ranks) > 1 else f"rank {ranks[0]}"
    return f"{names} left first on {host}, with the watcher there: the host or its part of the job has ended"


def left_report(rank: int, status: int | None, position: Position, host: str) -> str:
    """`status`: as waitpid gives it (None: it is not known)."""
    return f"rank {rank} left first on {host}, {_ending(status)}, in {position.describe()}"


def _ending(status: int | None) -> str:
    if status is None:
        return UNKNOWN_CODE
    code = os.waitstatus_to_exitcode(status)
    if code >= 0:
        return f"with exit code {code}, without a word"
    try:
        return f"killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"killed by signal {-code}"


def verdict(log: str, codes: Mapping[int, int] | None = None) -> list[str]:
    """The most telling line first. `codes`: rank -> exit code where known; negative: the signal."""
    lines = re.findall(rf"{PREFIX}(.*)$", log, re.MULTILINE)
    heads = [at for at, line in enumerate(lines) if not line.startswith(" ")]
    if not heads:
        return []
    start = next((at for at in heads if " behind " in lines[at] or " left first " in lines[at]), heads[0])
    end = next((at for at in heads if at > start), len(lines))
    leaver = re.match(r"rank (\d+) left first ", lines[start])
    if leaver and (code := (codes or {}).get(int(leaver[1]))) is not None:
        lines[start] = lines[start].replace(UNKNOWN_CODE, _ending(code << 8 if code >= 0 else -code))
    return lines[start:end]

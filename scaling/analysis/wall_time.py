"""How a study's wall time divides: which share of it was measuring."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from scaling.analysis.findings import Finding


@dataclass(frozen=True)
class WallTime:
    """The wall time of a study's launches, in seconds.

    Attributes:
        num_launches: that wrote theirs down.
        total_s: of the commands that recorded theirs, and of launches from their start to the end of the last
            cell.
        start_up_s: until the first cell: processes, imports, connections.
        setup_s: of cells: data, replicas, captures.
        warmup_s: iterations that are discarded.
        measuring_s: unprofiled and profiled iterations.
    """

    num_launches: int
    total_s: float
    start_up_s: float
    setup_s: float
    warmup_s: float
    measuring_s: float
    outside_s: Mapping[str, float] = field(default_factory=dict)

    @property
    def other_s(self) -> float:
        """The remaining time: writing, agreeing, failed cells."""
        known_s = self.start_up_s + self.setup_s + self.warmup_s + self.measuring_s
        known_s += sum(self.outside_s.values())
        return max(0.0, self.total_s - known_s)

    def parts_s(self) -> dict[str, float]:
        """Part -> seconds, by readable names; they sum to `total_s`."""
        return {
            "start-up": self.start_up_s,
            "set-up": self.setup_s,
            "warm-up": self.warmup_s,
            "measuring": self.measuring_s,
            **self.outside_s,
            "other": self.other_s,
        }

    @property
    def finding(self) -> Finding:
        """The wall time as a finding."""
        values = {"total_s": self.total_s, "num_launches": self.num_launches, "parts_s": self.parts_s()}
        return Finding("wall_time", (), values)

    def as_dict(self) -> dict[str, Any]:
        """The wall time for JSON."""
        return {
            "num_launches": self.num_launches,
            "total_s": self.total_s,
            "start_up_s": self.start_up_s,
            "setup_s": self.setup_s,
            "warmup_s": self.warmup_s,
            "measuring_s": self.measuring_s,
            **{f"{name.replace(' ', '_')}_s": seconds for name, seconds in self.outside_s.items()},
            "other_s": self.other_s,
        }


OUTSIDE = {
    "command": "command_s",
    "predictions": "predictions_s",
    "between launches": "gaps_s",
    "report": "report_s",
}
"""What a command does outside of launches, as people read it -> as it is recorded: its own start, with the
study's reading; predictions before launches; the time between launches; the report."""


def wall_time(
    launches: Sequence[Mapping[str, Any]], commands: Sequence[Mapping[str, Any]] = ()
) -> WallTime | None:
    """The sum over launches, and over the commands' time outside of them.

    Args:
        launches: what `ResultsFolder.launch_times` gave.
        commands: the same of commands.

    Returns:
        None where no launch wrote down its time, as in old folders.
    """
    cells = [cell for launch in launches for cell in launch.get("cells") or []]
    total_s = _sum(launches, "total_s")
    if total_s <= 0:
        return None
    outside_s = {name: _sum(commands, key) for name, key in OUTSIDE.items()} if commands else {}
    return WallTime(
        num_launches=len(launches),
        total_s=total_s + sum(outside_s.values()),
        start_up_s=_sum(launches, "start_up_s"),
        setup_s=_sum(cells, "setup_s"),
        warmup_s=_sum(cells, "warmup_s"),
        measuring_s=_sum(cells, "unprofiled_s") + _sum(cells, "profiled_s") + _sum(cells, "training_s"),
        outside_s=outside_s,
    )


def _sum(mappings: Iterable[Mapping[str, Any]], key: str) -> float:
    return sum(float(mapping.get(key) or 0.0) for mapping in mappings)

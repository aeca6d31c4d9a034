"""A rule's view of a cell: its row, its samples, and the cells that differ in one choice."""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from operator import itemgetter
from typing import Any

import numpy as np

from scaling.analysis import rank_times
from scaling.analysis.columns import Row, by_key, is_aa_replicate, is_control_arm
from scaling.analysis.decisions import TIE_RATIO
from scaling.analysis.findings import Finding
from scaling.analysis.noise import aa_pairs, scatter_of
from scaling.analysis.samples import CellResult
from scaling.analysis.seed_noise import lossy_ids
from scaling.analysis.study_scatter import StudyScatter
from scaling.axes import DEFAULTS, Role, columns_without

ADVISED = (
    "step", "bucket_mb", "compile", "precision", "peer_access", "input_placement", "augmentation",
    "aggregator", "local_batch", "global_batch", "world_size", "loader_workers",
)  # fmt: skip
"""Settings of which a value may be advised."""

_BATCH = ("local_batch", "global_batch", "scaling")
_WITH = {
    **{"local_batch": _BATCH, "global_batch": _BATCH, "world_size": (*_BATCH, "num_nodes")},
    "input_placement": ("loader_workers",),
}
"""What differs where such a setting does, besides the size of buckets."""

Values = dict[str, Any]  # of a rule's finding, with the part of the step that it is about as `share`, 0 to 1


Key = Callable[[Row], Hashable]


def _value(row: Row, name: str) -> Any:
    return DEFAULTS[name] if row[name] is None else row[name]


@dataclass(frozen=True)
class Known:
    rows: Sequence[Row]  # of its summary
    cells: Mapping[str, CellResult]  # the samples, by cell id
    num_cores: int | None  # CPU cores of a node; None where they are unknown
    lossy: Collection[str]  # ids of the cells whose exchange changes the gradient
    scatter: StudyScatter  # of the cells over launches
    replicates: Mapping[str, CellResult]  # cell id -> its A/A replicate
    # of the cells that were explained so far, by cell id
    findings: dict[str, list[Finding]] = field(default_factory=dict)
    _alike: dict[frozenset[str], tuple[Key, Mapping[Hashable, list[Row]]]] = field(default_factory=dict)
    _values: dict[tuple[str, int], frozenset[Any]] = field(default_factory=dict)

    @classmethod
    def of(cls, rows: Sequence[Row], cells: Sequence[CellResult], num_cores: int | None = None) -> Known:
        replicates = {first.cell_id: second for first, second in aa_pairs(cells)}
        by_id = {cell.cell_id: cell for cell in cells}
        return cls(rows, by_id, num_cores, lossy_ids(cells), scatter_of(cells), replicates)

    def like(self, row: Row, free: Collection[str]) -> Sequence[Row]:
        """Measured cells that agree with one in all variables but these, fastest first; no A/A replicates."""
        if (free := frozenset(free)) not in self._alike:
            names = [name for name in columns_without(Role.RECORDED) if name not in free]
            timed = (one for one in self.rows if one["iteration_s"] is not None and not is_aa_replicate(one))
            by_time = sorted(timed, key=lambda one: float(one["iteration_s"]))
            of: Key = itemgetter(*names)
            self._alike[free] = (of, by_key(by_time, of))
        key, groups = self._alike[free]
        return groups.get(key(row), ())

    def values_like(self, row: Row, name: str) -> frozenset[Any]:
        """What those cells have of a setting which may differ, and with it the size of buckets."""
        alike = self.like(row, (name, "bucket_mb", *_WITH.get(name, ())))
        if (name, id(alike)) not in self._values:
            self._values[name, id(alike)] = frozenset(_value(one, name) for one in alike)
        return self._values[name, id(alike)]


@dataclass(frozen=True)
class View:
    row: Row  # its row of the summary
    study: Known  # what is known of all cells
    # rules that found something in this cell before, with the values
    fired: dict[str, Values] = field(default_factory=dict)

    @property
    def cell(self) -> CellResult | None:
        return self.study.cells.get(self.row["cell_id"])

    @property
    def step_s(self) -> float | None:
        """The length of the profiled iteration, which is the sum of the budget."""
        return self.row["profiled_iteration_s"] or None

    def seconds(self, *columns: str) -> float:
        """The sum of columns; a column that the cell lacks counts as 0."""
        return sum(self.row[name] or 0.0 for name in columns)

    def share(self, *columns: str) -> float:
        """That sum as a part of the profiled iteration; 0 without a budget."""
        return self.seconds(*columns) / self.step_s if self.step_s else 0.0

    @property
    def exchanges(self) -> bool:
        return self.row["world_size"] > 1 and not is_control_arm(self.row)

    @property
    def largest_avoidable(self) -> float:
        """The largest part of the step that a finding so far calls avoidable; 0 without one."""
        return max((values["share"] for values in self.fired.values()), default=0.0)

    @cached_property
    def slow_rank(self) -> rank_times.SlowRankTimes | None:
        """The rank that the others wait for in every launch, in the A/A replicate's too, if any."""
        if self.cell is None or not self.exchanges:
            return None
        replicate = self.study.replicates.get(self.cell.cell_id)
        again = replicate.launches if replicate is not None else []
        slow = rank_times.slow_rank(self.cell.launches, rank_times.own_phases(self.row["step"]), again)
        return slow if slow and slow.lost_s > (self.row["profiling_overhead_s"] or 0.0) else None

    def of_rank(self, key: str, rank: int) -> Iterator[Mapping[str, Any]]:
        """What the runs recorded about that rank under `key`, a list with one mapping per rank."""
        for record in self.cell.done if self.cell else ():
            recorded = record.summary.get(key) or []
            if rank < len(recorded) and recorded[rank]:
                yield recorded[rank]

    @cached_property
    def queued_ratios(self) -> list[float] | None:
        """The part of the window in which each rank waited for a core: the repeats' median, if of all."""
        ratios = [
            [
                sample["queued_s"] / sample["window_s"]
                for sample in self.of_rank("host", rank)
                if sample.get("queued_s") is not None and sample.get("window_s")
            ]
            for rank in range(self.row["world_size"])
        ]
        return [float(np.median(of_rank)) for of_rank in ratios] if all(ratios) else None

    @property
    def compute_s(self) -> float | None:
        if self.row["forward_s"] is None or self.row["backward_s"] is None:
            return None
        return float(self.row["forward_s"] + self.row["backward_s"])

    def others(self, free: Collection[str]) -> list[Row]:
        """Other measured cells that agree in all variables except these; no A/A replicates."""
        return [row for row in self.study.like(self.row, free) if row["cell_id"] != self.row["cell_id"]]

    @cached_property
    def measured(self) -> dict[str, list[Any]]:
        """What this cell has of each setting that may be advised, first, and what else was measured."""
        found = {}
        for name in ADVISED:
            own = _value(self.row, name)
            found[name] = [own, *sorted(self.study.values_like(self.row, name) - {own}, key=str)]
        return found

    def fastest_with(self, free: Collection[str], **wanted: object) -> Row | None:
        """The fastest of `others` with the wanted values, no control arm, with no codec but this cell's."""
        own = self.row["aggregator"]
        fitting = (
            row
            for row in self.study.like({**self.row, **wanted}, {*free} - wanted.keys())
            if row["cell_id"] != self.row["cell_id"]
            and (row["aggregator"] == own or (row["encode_s"] is None and not is_control_arm(row)))
        )
        return next(fitting, None)

    def faster_with(self, free: Collection[str], **wanted: object) -> Values:
        """The time of that cell as `better_iteration_s`, with its aggregator and bucket size, and whether its
        launches show that it is faster (`is_shown`). Empty where nothing, or nothing sure, is gained."""
        other = self.fastest_with(free, **wanted)
        if other is None or other["iteration_s"] * (1 + TIE_RATIO) >= self.row["iteration_s"]:
            return {}
        ids = (other["cell_id"], self.row["cell_id"])
        if not all(map(self.study.scatter.num_launches, ids)):
            return {}
        difference = self.study.scatter.difference(*ids)
        is_shown = difference.error is not None
        if is_shown and not difference.is_larger:
            return {}
        values = {"better_aggregator": other["aggregator"], "better_iteration_s": other["iteration_s"]}
        changed = {f"better_{name}": other[name] for name in ("bucket_mb", "input_placement")}
        return {**values, **changed, "is_shown": is_shown}

    def times_of(self, other: Row) -> tuple[float, tuple[float, float] | None]:
        ids = self.row["cell_id"], other["cell_id"]
        known = all(map(self.study.scatter.num_launches, ids))
        interval = self.study.scatter.difference(*ids).interval if known else None
        return float(other["iteration_s"] / self.row["iteration_s"]), interval

    @property
    def bytes_per_s(self) -> float | None:
        """A rank's bytes over the time of its exchange; None where copies to host memory have own phases."""
        sent, seconds = self.row["wire_bytes_per_rank"], self.seconds("exposed_comm_s", "hidden_comm_s")
        if self.row["d2h_s"] is not None or self.row["h2d_result_s"] is not None:
            return None
        return sent / seconds if sent and seconds > 0 else None

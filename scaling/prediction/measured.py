"""Measurements that predictions are made from: cells of studies, and transfers of a probe."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

LEAST_RELATIVE_SD = 0.005  # medians of one launch repeat in another to half of a percent at best

EXCHANGE_PHASES = ("exposed_comm_s", "wait_s", "encode_s", "decode_s", "d2h_s", "reduce_s", "h2d_result_s")
"""Parts of a step's budget that the exchange adds."""

COMPUTE_PHASES = ("input_s", "h2d_s", "forward_s", "backward_s", "clip_s", "update_s")


@dataclass(frozen=True)
class MeasuredCell:
    cell: Mapping[str, Any]  # its independent variables, as in run.json
    iteration_s: float  # wall clock over steps
    relative_sd: float  # of that
    # parts of the budget in seconds, where they were measured
    phases: Mapping[str, float] = field(default_factory=dict)
    source: str = ""  # the results folder
    # of the model, as its runs recorded them (`scaling.bucket`); "" where they were measured before runs did
    tensor_shapes: str = ""
    # relative, of one rank's steps within a launch, by their quartiles; None: not known
    step_sd: float | None = None

    @property
    def world_size(self) -> int:
        return int(self.cell["world_size"])

    @property
    def exchange_s(self) -> float | None:
        """What the exchange added by its spans; None where no phase was measured."""
        known = [self.phases[name] for name in EXCHANGE_PHASES if name in self.phases]
        return sum(known) if known else None

    @property
    def exchanges_nothing(self) -> bool:
        """Whether the step is that of a rank alone: a control arm, or one rank that had nothing to do."""
        if not self.cell.get("exchanges", True):
            return True
        alone = self.world_size == 1
        return alone and (self.exchange_s or 0.0) < 0.01 * self.iteration_s


@dataclass(frozen=True)
class MeasuredTransfer:
    operation: str  # "send", "swap", "shift", "all_reduce" or "mpi_all_reduce"
    num_ranks: int  # that took part
    num_bytes: int  # of a message, or of the buffer that is reduced
    host_only: bool  # without access between GPUs
    seconds: float  # the median
    relative_sd: float  # of that


def measured_cells(
    rows: Iterable[tuple[Mapping[str, Any], str, Mapping[str, Any]]], source: str
) -> list[MeasuredCell]:
    """Those that were timed. A row: its variables, its `tensor_shapes` and its row of summary.csv."""
    cells = []
    for cell, tensor_shapes, row in rows:
        seconds = _number(row.get("iteration_s"))
        if row.get("state") == "failed" or seconds is None or cell.get("kind") != "iteration":
            continue
        if cell.get("outer_update") is not None:
            continue  # an H-th of an exchange tells less of it than the exchanges of other cells
        names = (*EXCHANGE_PHASES, *COMPUTE_PHASES)
        phases = {name: value for name in names if (value := _number(row.get(name))) is not None}
        low, high = _number(row.get("iteration_s_low")), _number(row.get("iteration_s_high"))
        of_interval = (high - low) / (2 * 1.96) / seconds if low is not None and high is not None else 0.0
        of_floor = (_number(row.get("noise_floor")) or 0.0) / math.sqrt(2)
        relative_sd = max(LEAST_RELATIVE_SD, of_interval, of_floor)
        known = cell, seconds, relative_sd, phases, source, tensor_shapes
        cells.append(MeasuredCell(*known, _number(row.get("step_sd"))))
    return cells


def _number(value: Any) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if math.isfinite(value) else None

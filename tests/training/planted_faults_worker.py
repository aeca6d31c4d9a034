"""One rank of test_planted_faults.py: measures cells with planted faults, writes their samples as JSON."""

from contextlib import nullcontext
from dataclasses import asdict, replace
from statistics import median
from typing import Any

import torch
from slow_parts import Planted, hooks_that_block, planted

from scaling.registry import trust
from scaling.runtime.workers import Workers
from scaling.study.cell import Cell
from scaling.study.rank.launch import CellRunner
from tests.made import cell_of
from tests.ranks import as_rank

CPU = torch.device("cpu")
LATE = cell_of(
    aggregator="slow_parts:LateOnRank1",
    local_batch=8,
    global_batch=16,
    learning_rate=0.01,
    warmup=1,
    iterations=3,
    max_seconds=600.0,
    profiled_iterations=6,
    model_parameters={"hidden": [8]},
)
SLOW = replace(
    LATE,
    model="slow_parts:slow_network",
    model_parameters={},
    aggregator="slow_parts:SlowExchange",
    step="overlapped",
    bucket_mb=0.001,
)
CELLS = {
    "late": LATE,
    "late, overlapped": replace(LATE, step="overlapped", bucket_mb=25.0),
    "slow": SLOW,
    "slow, blocking": SLOW,
}


# On an idle machine; all grow alike where a step without them takes longer than this.
PLANTED = Planted(late_s=0.2, exchange_s=0.15, backward_s=0.45)
HEALTHY_STEP_S = 0.02


def seen_by(workers: Workers) -> dict[str, Any]:
    runner, group = CellRunner(CPU), workers.group(CPU)
    trust(name for cell in CELLS.values() for name in (cell.model, cell.aggregator))

    def rows_of(cell: Cell) -> list[dict[str, Any]]:
        rows: list[Any] = []
        runner.run(cell, group, rows.extend)
        return rows

    healthy = [row["step_s"] for cell in (LATE, SLOW) for row in rows_of(cell) if not row["warmup"]]
    usual_s = torch.tensor(group.world_size * [0.0])
    usual_s[group.rank] = median(healthy)
    group.all_reduce(usual_s)
    busy = max(1.0, float(usual_s.max()) / HEALTHY_STEP_S)
    vars(planted).update({name: busy * planned for name, planned in asdict(PLANTED).items()})
    seen = {}
    for name, cell in CELLS.items():
        with hooks_that_block() if "blocking" in name else nullcontext():
            seen[name] = rows_of(cell)
    return {**asdict(planted), "rows": seen}


if __name__ == "__main__":
    as_rank(seen_by)

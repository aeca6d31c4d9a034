"""One rank of test_planted_faults.py: measures cells with planted faults, writes their samples as JSON."""

from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import torch
from slow_parts import EXCHANGE_S, LATE_S, hooks_that_block

from scaling.registry import trust
from scaling.runtime.workers import Workers
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
    max_seconds=15.0,
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


def seen_by(workers: Workers) -> dict[str, Any]:
    runner = CellRunner(CPU)
    trust(name for cell in CELLS.values() for name in (cell.model, cell.aggregator))
    seen: dict[str, list[Any]] = {}
    for name, cell in CELLS.items():
        seen[name] = []
        with hooks_that_block() if "blocking" in name else nullcontext():
            runner.run(cell, workers.group(CPU), seen[name].extend)
    return {"late_s": LATE_S, "exchange_s": EXCHANGE_S, "rows": seen}


if __name__ == "__main__":
    as_rank(seen_by)

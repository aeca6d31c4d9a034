"""What run.json says of the plan of a cell's exchange, for links and bytes in reports."""

from __future__ import annotations

from typing import Any

from scaling.collectives.plan import exchanges_of
from scaling.collectives.plan_record import plan_of
from scaling.errors import ScalingError
from scaling.study.cell import Cell
from scaling.study.predicting import own_errors, strategy_of
from topologies.errors import TopologyError


def plan_record(cell: Cell, tensor_shapes: str) -> dict[str, Any]:
    """`plan`, as the aggregator's own stages have it, or `plan_unknown` with the reason; of a run's summary.

    Args:
        cell: that was run.
        tensor_shapes: of its model, as the run records them.
    """
    try:
        with own_errors(f"the plan of aggregator {cell.aggregator!r}"):
            stages = [
                stage for bucket in strategy_of(cell.to_dict(), tensor_shapes).buckets for stage in bucket
            ]
            exchanges = exchanges_of(stages, with_gpus=cell.device == "cuda")
            return {"plan": plan_of(exchanges, cell.world_size).to_record()}
    except (ScalingError, TopologyError) as error:
        return {"plan_unknown": str(error)}

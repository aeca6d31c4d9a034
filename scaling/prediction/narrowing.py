"""Which one measurement would narrow the intervals of predictions most.

Two kinds of measurement are weighed for each predicted cell:

- its step without exchange on one worker, at the worker's batch: what is uncertain of the computation goes;
- its aggregator on half of the workers (on both of two): what is uncertain of the exchange goes, but for
  `AFTER_SD` for each doubling from there.

One measurement serves all cells that ask for it; the one that takes most off their intervals together wins.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from scaling.prediction.estimate import NORMAL_95, PredictedValue
from scaling.prediction.predict import Prediction

AFTER_SD = 0.10
"""Of an exchange that was measured on half of the workers. An assumption, from folds of committed results:
benchmarks/prediction_quality.py."""

OF_COMPUTE = ("compute of ", "how much of the update")
OF_EVERY_STEP = "launches and machines"


@dataclass(frozen=True)
class NextMeasurement:
    cell: Mapping[str, Any]  # the predicted cell that gains most
    changes: Mapping[str, Any]  # of its variables, which give what to measure
    before: float  # before, after: half of its 95% interval, as a ratio of the step
    after: float
    num_cells: int = 1  # whose intervals it narrows

    @property
    def text(self) -> str:
        """`measure all_reduce on 4 workers without peer access: interval from 60% to 12%`."""
        cell = {**self.cell, **self.changes}
        num_ranks = int(cell["world_size"])
        access = " without peer access" if num_ranks > 1 and cell.get("peer_access") is False else ""
        workers = f"{num_ranks} worker{'s' * (num_ranks > 1)}{access}"
        also = f", and of {self.num_cells - 1} more" if self.num_cells > 1 else ""
        return (
            f"measure {cell['aggregator_label']} of {cell['model_label']} ({cell['step']}, batch "
            f"{cell['local_batch']} a worker) on {workers}: interval of {self.cell['aggregator_label']} on "
            f"{self.cell['world_size']} from {self.before:.0%} to {self.after:.0%}{also}"
        )


def next_measurement(predictions: Iterable[Prediction]) -> NextMeasurement | None:
    """The measurement that narrows most; None where no interval would be narrower."""
    by_measurement: dict[tuple[Any, ...], list[NextMeasurement]] = defaultdict(list)
    for prediction in predictions:
        if prediction.iteration is None or not prediction.iteration.value:
            continue
        for candidate in (_of_compute(prediction), _of_exchange(prediction)):
            if candidate is not None and candidate.after < candidate.before:
                by_measurement[_identity({**candidate.cell, **candidate.changes})].append(candidate)
    if not by_measurement:
        return None
    most = max(by_measurement.values(), key=lambda same: sum(each.before - each.after for each in same))
    widest = max(most, key=lambda each: each.before - each.after)
    return NextMeasurement(widest.cell, widest.changes, widest.before, widest.after, len(most))


def half_width(iteration: PredictedValue, changes: Mapping[str, float]) -> float:
    """How far the upper end of a 95% interval is above the value, as a ratio of it."""
    relative_sd = math.hypot(*changes.values()) / iteration.value
    return math.expm1(NORMAL_95 * math.sqrt(math.log1p(relative_sd**2)))


def _of_compute(prediction: Prediction) -> NextMeasurement:
    iteration, cell = prediction.iteration, prediction.cell
    assert iteration is not None
    without_compute = {name: sd for name, sd in iteration.changes.items() if not name.startswith(OF_COMPUTE)}
    alone = {
        **dict.fromkeys(("aggregator", "aggregator_label"), "none"),
        **{"aggregator_parameters": {}, "exchanges": False, "world_size": 1, "scaling": "weak", "wire": None},
        "global_batch": cell["local_batch"],
        "peer_access": True if cell.get("device") == "cuda" else cell.get("peer_access"),
    }
    return NextMeasurement(
        cell, alone, half_width(iteration, iteration.changes), half_width(iteration, without_compute)
    )


def _of_exchange(prediction: Prediction) -> NextMeasurement | None:
    iteration, cell = prediction.iteration, prediction.cell
    assert iteration is not None
    world_size = int(cell["world_size"])
    if world_size < 2 or not prediction.exchange.value:
        return None
    fewer = max(2, world_size // 2)
    unchanged = {
        name: sd
        for name, sd in iteration.changes.items()
        if name.startswith(OF_COMPUTE) or name == OF_EVERY_STEP
    }
    further_sd = AFTER_SD * math.log2(world_size / fewer) * prediction.exposed_exchange.value
    after = half_width(iteration, {**unchanged, "exchange": further_sd})
    changes = {"world_size": fewer, "scaling": "weak", "global_batch": int(cell["local_batch"]) * fewer}
    return NextMeasurement(cell, changes, half_width(iteration, iteration.changes), after)


def _identity(cell: Mapping[str, Any]) -> tuple[Any, ...]:
    return tuple(sorted((name, str(value)) for name, value in cell.items() if name != "loader_workers"))

"""The computation of steps that were measured with their exchange alone, as in tables that begin with 8 GPUs.

It is what the measured step leaves where the exchange, as it is priced and hidden under that computation, is
taken away. What of the exchange is not known to be is uncertain in the computation too.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import replace

from scaling.axes import Shared, key_of, with_columns
from scaling.errors import PredictionError, ScheduleError
from scaling.prediction.calibration import Calibration
from scaling.prediction.compute import ComputeModel
from scaling.prediction.estimate import sd_that_reaches
from scaling.prediction.measured import COMPUTE_PHASES, MeasuredCell
from scaling.prediction.predict import Predictor
from scaling.prediction.strategy import Machinery, Strategy
from topologies.errors import TopologyError

ROUNDS = 40
"""Each is at most two thirds as far off as the one before: the backward pass hides no more."""

SETTLED = 1e-3
"""Of the measured step: what the last round may change."""

LEAST_SHARE = 0.1
"""Of a step, its computation: where the exchange as it is priced leaves less, this, with all of it inside the
interval, and a line says so."""


def computed_without_exchange(
    known: Iterable[tuple[MeasuredCell, Strategy]],
    compute: ComputeModel,
    there: Machinery,
    say: Callable[[str], None],
) -> list[MeasuredCell]:
    """Cells without exchange, in place of those that were not measured; of each batch from the fewest ranks.

    Args:
        known: measured cells, and what their exchange consists of.
        compute: of the cells without exchange.
        there: the machine they were measured on.
        say: called with what is not found, or found only between bounds.
    """
    found: dict[tuple[object, ...], MeasuredCell] = {}
    for cell, strategy in sorted(known, key=lambda pair: pair[0].world_size):
        key = (*key_of(with_columns(Shared.CURVE), cell.cell), cell.cell["step"], cell.cell["local_batch"])
        if cell.exchanges_nothing or key in found or _is_known(cell, compute):
            continue
        if (alone := _alone(cell, strategy, there, say)) is not None:
            found[key] = alone
    return list(found.values())


def _is_known(cell: MeasuredCell, compute: ComputeModel) -> bool:
    try:
        compute.step(cell.cell, int(cell.cell["local_batch"]))
    except PredictionError:
        return False
    return True


def _alone(
    cell: MeasuredCell, strategy: Strategy, there: Machinery, say: Callable[[str], None]
) -> MeasuredCell | None:
    values = {**cell.cell, "aggregator": "none", "aggregator_label": "none", "exchanges": False}
    phases = {name: cell.phases[name] for name in COMPUTE_PHASES if name in cell.phases}
    alone, exchanged_sd = replace(cell, cell=values, phases=phases), 0.0
    for _ in range(ROUNDS):
        try:
            predicted = Predictor(there, ComputeModel([alone]), Calibration()).predict(strategy)
        except (ScheduleError, TopologyError):
            return None  # more ranks than the machine file has
        if predicted.iteration is None:
            return None
        further_s = cell.iteration_s - predicted.iteration.value
        exchanged_sd = predicted.exposed_exchange.sd
        seconds, least_s = alone.iteration_s + further_s, LEAST_SHARE * cell.iteration_s
        alone = replace(alone, iteration_s=max(seconds, least_s))
        if abs(further_s) <= SETTLED * cell.iteration_s or seconds <= least_s:
            break
    else:
        say(f"{_name(cell)}: no computation leaves the measured step with its exchange; it is not used")
        return None
    if seconds <= least_s:
        say(
            f"{_name(cell)}: the exchange as it is priced leaves less than {LEAST_SHARE:.0%} of the measured "
            f"step, {cell.iteration_s * 1e3:.4g} ms, to the computation: that is taken, and all of the step "
            "is in the interval; measure `none` too, or check the machine file's links"
        )
        return replace(alone, relative_sd=sd_that_reaches(1 / LEAST_SHARE))
    return replace(alone, relative_sd=math.hypot(cell.relative_sd, exchanged_sd / alone.iteration_s))


def _name(cell: MeasuredCell) -> str:
    return f"{cell.source}: {cell.cell['aggregator_label']} on {cell.world_size} ranks".removeprefix(": ")

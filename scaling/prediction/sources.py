"""Everything that was measured and that a prediction is made from, brought together.

The computation of steps that were measured with their exchange alone, as in tables that begin with 8 GPUs.

It is what the measured step leaves where the exchange, as it is priced and hidden under that computation, is
taken away. What of the exchange is not known to be is uncertain in the computation too.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from scaling.axes import Shared, key_of, with_columns
from scaling.collectives.plan import HOST_KINDS
from scaling.errors import PredictionError, ScalingError, ScheduleError
from scaling.prediction.calibration import Calibration
from scaling.prediction.compute import ComputeModel
from scaling.prediction.estimate import sd_that_reaches
from scaling.prediction.fitting import fitted, machinery_for
from scaling.prediction.measured import COMPUTE_PHASES, MeasuredCell, MeasuredTransfer
from scaling.prediction.predict import Predictor
from scaling.prediction.strategy import Machinery, Strategy
from scaling.prediction.unseen import Unseen, links_of
from topologies.errors import TopologyError
from topologies.machine import Device
from topologies.model import Topology

ROUNDS = 40  # each is at most two thirds as far off as the one before: the backward pass hides no more
SETTLED = 1e-3  # of the measured step: what the last round may change

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
    `there`: the machine they were measured on; `say` is called with what is not found."""
    found: dict[tuple[object, ...], MeasuredCell] = {}
    for cell, strategy in sorted(known, key=lambda pair: pair[0].world_size):
        key = (*key_of(with_columns(Shared.CURVE), cell.cell), cell.cell["step"], cell.cell["local_batch"])
        if cell.exchanges_nothing or key in found:
            continue
        try:
            compute.step(cell.cell, int(cell.cell["local_batch"]))
        except PredictionError:
            if (alone := _alone(cell, strategy, there, say)) is not None:
                found[key] = alone
    return list(found.values())


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


OTHER_GPU_SD = 0.10  # of computation that was measured on another GPU, at least. An assumption
UNKNOWN_RATIO = 2.0  # of two GPUs' memory rates, where a machine file lacks one. An assumption


@dataclass(frozen=True)
class Sources:
    cells: Sequence[MeasuredCell]  # of studies
    transfers: Sequence[MeasuredTransfer]  # of probes
    machine: Topology  # the file of the machine that they were measured on
    # "mpi" and "horovod" -> name and version, where the launches recorded them
    libraries: Mapping[str, str] = field(default_factory=dict)
    # the machines of the cells as their folders recorded them; `machine` if empty
    measured_on: Sequence[Topology] = ()

    def predictor(
        self,
        topology: Topology,
        strategy_of: Callable[[Mapping[str, Any], str], Strategy],
        say: Callable[[str], None] = lambda _: None,
    ) -> tuple[Predictor, ComputeModel]:
        """Predictions on a machine, calibrated by all of this; and what is known of the computation.
        `strategy_of`: by a cell's variables and its `tensor_shapes`; `say` is called with which cells
        calibrate nothing, and why."""
        compute = ComputeModel(self.cells)
        known = []
        left_out: Counter[tuple[str, str]] = Counter()
        for cell in self.cells:
            try:
                known.append((cell, strategy_of(cell.cell, cell.tensor_shapes)))
            except (ScalingError, TopologyError) as error:
                left_out[cell.source, str(error)] += 1
        for (source, reason), count in left_out.items():
            say(f"{source}: the exchange of {count} measured cell{'s' * (count > 1)} is not used: {reason}")
        there = machinery_for(self.machine, self.transfers, self.machine, self.libraries)
        alone = computed_without_exchange(known, compute, there, say)
        cells = [*self.cells, *alone]
        if alone:
            compute = ComputeModel(cells)
            ranks = ", ".join(sorted({str(cell.world_size) for cell in alone}))
            say(f"no step without exchange: the computation is what {ranks} ranks took, less their exchange")
        calibration = fitted(there, known, self.transfers, compute)
        machinery = machinery_for(topology, self.transfers, self.machine, self.libraries)
        overlap = Predictor(there, compute, calibration).fitted_overlap(known)
        if other_gpu_sd := _other_gpu_sd(self.machine, topology):
            compute = ComputeModel(cells, other_gpu_sd)
        return Predictor(machinery, compute, calibration, overlap, self._unseen(topology)), compute

    def _unseen(self, topology: Topology) -> Unseen:
        seen = self.measured_on or [self.machine]
        kinds = {_kind_of(machine) for machine in seen}
        other_host = _host_of(topology) not in [_host_of(machine) for machine in seen]
        exchanging = [cell for cell in self.cells if cell.cell.get("exchanges", True)]
        # Ranks that exchange nothing do not wait for each other.
        largest = max((cell.world_size for cell in exchanging or self.cells), default=None)
        other = _kind_of(topology) not in kinds and not _other_gpu_sd(self.machine, topology)
        exchanges = {(cell.world_size, cell.cell.get("peer_access") is False) for cell in exchanging}
        exchanges |= {(transfer.num_ranks, transfer.host_only) for transfer in self.transfers}
        links = [links_of(self.machine, size, host_only=host_only) for size, host_only in exchanges]
        return Unseen(other, largest, frozenset().union(*links), other_host)


def gpu_names(topology: Topology) -> set[str]:
    """The products of its GPUs, for telling whether computation measured elsewhere holds here."""
    return {gpu.name.lower() for gpu in topology.machine.of_kind("gpu")}


def _kind_of(topology: Topology) -> tuple[Any, ...]:
    """What makes it another machine: GPUs, as many a node, and nodes or one alone."""
    num_gpus = len(topology.machine.of_kind("gpu"))
    return tuple(sorted(gpu_names(topology))), num_gpus, topology.num_nodes > 1


def _host_of(topology: Topology) -> list[Device]:
    """Its processors and host memory, as its file has them."""
    return [device for kind in HOST_KINDS for device in topology.machine.of_kind(kind)]


def _other_gpu_sd(measured_on: Topology, topology: Topology) -> float:
    """Of computation on another GPU: the interval reaches to the ratio of memory rates."""
    if gpu_names(measured_on) == gpu_names(topology) or not gpu_names(measured_on) or not gpu_names(topology):
        return 0.0
    rates = [machine.machine.of_kind("gpu")[0].bandwidth_bytes_per_s for machine in (measured_on, topology)]
    known = [rate for rate in rates if rate is not None]
    ratio = max(known) / min(known) if len(known) == len(rates) else UNKNOWN_RATIO
    return max(OTHER_GPU_SD, sd_that_reaches(ratio))

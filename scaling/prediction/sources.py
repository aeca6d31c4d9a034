"""Everything that was measured and that a prediction is made from, brought together."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from scaling.collectives.plan import HOST_KINDS
from scaling.errors import ScalingError
from scaling.prediction.compute import ComputeModel
from scaling.prediction.estimate import sd_that_reaches
from scaling.prediction.fitting import fitted, machinery_for
from scaling.prediction.measured import MeasuredCell, MeasuredTransfer
from scaling.prediction.predict import Predictor
from scaling.prediction.strategy import Strategy
from scaling.prediction.unseen import Unseen, links_of
from scaling.prediction.without_exchange import computed_without_exchange
from topologies.errors import TopologyError
from topologies.machine import Device
from topologies.model import Topology

OTHER_GPU_SD = 0.10
"""Of computation that was measured on another GPU, at least. An assumption."""

UNKNOWN_RATIO = 2.0
"""Of two GPUs' memory rates, where a machine file lacks one. An assumption."""


@dataclass(frozen=True)
class Sources:
    """Measurements of one machine.

    Attributes:
        cells: of studies.
        transfers: of probes.
        machine: the file of the machine that they were measured on.
        libraries: "mpi" and "horovod" -> name and version, where the launches recorded them.
        measured_on: the machines of the cells as their folders recorded them; `machine` if empty.
    """

    cells: Sequence[MeasuredCell]
    transfers: Sequence[MeasuredTransfer]
    machine: Topology
    libraries: Mapping[str, str] = field(default_factory=dict)
    measured_on: Sequence[Topology] = ()

    def predictor(
        self,
        topology: Topology,
        strategy_of: Callable[[Mapping[str, Any], str], Strategy],
        say: Callable[[str], None] = lambda _: None,
    ) -> tuple[Predictor, ComputeModel]:
        """Predictions on a machine, calibrated by all of this; and what is known of the computation.

        Args:
            topology: the machine.
            strategy_of: what a cell's aggregation consists of, by its variables and its `tensor_shapes`.
            say: called with which measured cells calibrate nothing, and why.
        """
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
    """What computation is uncertain by on another GPU: the interval reaches to the ratio of memory rates.

    A step bound by products follows the GPUs' multiprocessors, which machine files do not have.
    """
    if gpu_names(measured_on) == gpu_names(topology) or not gpu_names(measured_on) or not gpu_names(topology):
        return 0.0
    rates = [machine.machine.of_kind("gpu")[0].bandwidth_bytes_per_s for machine in (measured_on, topology)]
    known = [rate for rate in rates if rate is not None]
    ratio = max(known) / min(known) if len(known) == len(rates) else UNKNOWN_RATIO
    return max(OTHER_GPU_SD, sd_that_reaches(ratio))

"""Everything that was measured and that a prediction is made from, brought together."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from scaling.errors import ScalingError
from scaling.prediction.compute import ComputeModel
from scaling.prediction.fitting import fitted, machinery_for
from scaling.prediction.measured import MeasuredCell, MeasuredTransfer
from scaling.prediction.predict import Predictor
from scaling.prediction.strategy import Strategy
from topologies.errors import TopologyError
from topologies.model import Topology


@dataclass(frozen=True)
class Sources:
    """Measurements of one machine.

    Attributes:
        cells: of studies.
        transfers: of probes.
        machine: the file of the machine that they were measured on.
        libraries: "mpi" and "horovod" -> name and version, where the launches recorded them.
    """

    cells: Sequence[MeasuredCell]
    transfers: Sequence[MeasuredTransfer]
    machine: Topology
    libraries: Mapping[str, str] = field(default_factory=dict)

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
        calibration = fitted(there, known, self.transfers, compute)
        machinery = machinery_for(topology, self.transfers, self.machine, self.libraries)
        overlap = Predictor(there, compute, calibration).fitted_overlap(known)
        return Predictor(machinery, compute, calibration, overlap), compute


def gpu_names(topology: Topology) -> set[str]:
    """The products of its GPUs, for telling whether computation measured elsewhere holds here."""
    return {gpu.name.lower() for gpu in topology.machine.of_kind("gpu")}

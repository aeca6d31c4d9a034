"""What single launches and trainings gave, where a column of the summary holds their median alone."""

from __future__ import annotations

from dataclasses import dataclass

from scaling.analysis.learning import index_of_target
from scaling.analysis.samples import CellResult


@dataclass(frozen=True)
class Energy:
    """What a launch took: joules a sample over all GPUs, in a window of so many seconds."""

    joules: float
    window_s: float


def energies_per_sample(cell: CellResult) -> list[Energy]:
    """One a done repeat; none at all if one of them does not know it of every rank.

    A rank trains on its share of the samples, so that of all is the mean over the ranks.
    """
    values = []
    for record in cell.done:
        gpus = [gpu or {} for gpu in record.summary.get("gpu") or record.summary.get("power") or []]
        joules = [gpu.get("energy_per_sample_j") for gpu in gpus]
        windows = [gpu.get("window_s") for gpu in gpus]
        known = [
            (energy, window) for energy, window in zip(joules, windows, strict=True) if energy and window
        ]
        if not gpus or len(known) < len(gpus):
            return []
        mean = sum(energy for energy, _ in known) / len(known)
        values.append(Energy(mean, min(window for _, window in known)))
    return values


def seconds_to_target(cell: CellResult) -> list[float]:
    """One a training that reached its target accuracy."""
    reached = [(training, index_of_target(training, cell.cell)) for training in cell.trainings]
    return [float(training.train_s[index]) for training, index in reached if index is not None]

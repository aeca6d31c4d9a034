"""Values of single launches and trainings; a column of the summary holds only their median."""

from __future__ import annotations

from dataclasses import dataclass

from scaling.analysis.learning import index_of_target
from scaling.analysis.samples import CellResult


@dataclass(frozen=True)
class Energy:
    """The energy of a launch: joules per sample over all GPUs, and the length of the window in seconds."""

    joules: float
    window_s: float


def energies_per_sample(cell: CellResult) -> list[Energy]:
    """One value per done repeat; empty if a repeat lacks it for any rank.

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


def memory_peaks(cell: CellResult) -> list[int]:
    """The largest peak in bytes of any rank's GPU, of each done repeat that has it."""
    by_launch = [record.summary.get("memory_peak_bytes") or [] for record in cell.done]
    known = [[int(count) for count in counts if count is not None] for counts in by_launch]
    return [max(counts) for counts in known if counts]


def seconds_to_target(cell: CellResult) -> list[float]:
    """One value per training that reached its target accuracy."""
    reached = [(training, index_of_target(training, cell.cell)) for training in cell.trainings]
    return [float(training.train_s[index]) for training, index in reached if index is not None]

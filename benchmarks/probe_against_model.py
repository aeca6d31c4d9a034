"""What a probed machine file predicts, against what the same probe measured:

    python benchmarks/probe_against_model.py MACHINE.yaml SAMPLES.csv[.gz]

Two things that the file was not made of: the library's all-reduce, against a simulated ring; and every rank
sending to the next at once, against a step of such messages. From 1 MiB to 1 GiB, with access between GPUs
and without (host-only). Measured is the median of the samples, captured in a CUDA graph where there are such.
"""

from __future__ import annotations

import argparse
import gzip
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from scaling.collectives.ring import ring
from scaling.collectives.schedule import Schedule, Transfer
from scaling.collectives.simulate import simulate
from scaling.measure.probe.cases import MIB, ProbeSample, from_csv
from scaling.measure.probe.series import OneSeries, Series, size_text
from topologies.model import Topology
from topologies.schema import load

LAUNCHES = {"default": "with access between GPUs", "host_only": "without access between GPUs (host-only)"}


@dataclass(frozen=True)
class Comparison:
    """One size: seconds, the median and the quartiles of the samples, and the model's."""

    operation: str
    launch: str
    num_bytes: int
    measured_s: float
    low_s: float
    high_s: float
    predicted_s: float

    @property
    def ratio(self) -> float:
        """Predicted over measured: below 1 the model is too fast."""
        return self.predicted_s / self.measured_s


def read_samples(path: Path) -> list[ProbeSample]:
    """The probe's samples, compressed or not."""
    data = path.read_bytes()
    return from_csv((gzip.decompress(data) if path.suffix == ".gz" else data).decode())


def shift(world_size: int) -> Schedule:
    """Every rank sends its whole buffer to the next; the buffer is the size that one rank sends."""
    step = tuple(Transfer(rank, (rank + 1) % world_size, 0, 1, "copy") for rank in range(world_size))
    return Schedule("shift", world_size, 1, (step,))


SCHEDULES = {"all_reduce": ring, "shift": shift}


def compare(topology: Topology, samples: list[ProbeSample]) -> Iterator[Comparison]:
    """All sizes from 1 MiB on, operation by operation."""
    series = Series(samples)
    for launch in LAUNCHES:
        for operation, schedule in SCHEDULES.items():
            captured = _captured(series, operation, launch)
            for size in sorted(captured.seconds) if captured else []:
                assert captured is not None
                if size < MIB:
                    continue
                steps = schedule(len(captured.example.ranks))
                predicted_s = simulate(steps, topology, size, peer_access=launch == "default").seconds
                low_s, median_s, high_s = map(float, np.percentile(captured.seconds[size], [25, 50, 75]))
                yield Comparison(operation, launch, size, median_s, low_s, high_s, predicted_s)


def _captured(series: Series, operation: str, launch: str) -> OneSeries | None:
    captured = series.first(operation, launch=launch, captured=True)
    return captured or series.first(operation, launch=launch)


def table(comparisons: list[Comparison]) -> Iterator[str]:
    """The comparisons of a launch as Markdown, in milliseconds."""
    yield "| operation | size | measured, median [quartiles] | predicted | predicted / measured |"
    yield "|---|---|---|---|---|"
    for comparison in comparisons:
        low, median, high, model = (
            s * 1e3
            for s in (comparison.low_s, comparison.measured_s, comparison.high_s, comparison.predicted_s)
        )
        yield (
            f"| {comparison.operation} | {size_text(comparison.num_bytes)} "
            f"| {median:.3f} [{low:.3f}, {high:.3f}] | {model:.3f} | {comparison.ratio:.2f} |"
        )


def main() -> None:
    """Prints the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("machine")
    parser.add_argument("samples", type=Path)
    options = parser.parse_args()
    comparisons = list(compare(load(options.machine), read_samples(options.samples)))
    for launch, title in LAUNCHES.items():
        of_launch = [comparison for comparison in comparisons if comparison.launch == launch]
        if of_launch:
            print("\n".join([f"\n{title}; milliseconds\n", *table(of_launch)]))


if __name__ == "__main__":
    main()

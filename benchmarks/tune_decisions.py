"""How much of a sweep's gain `scaling tune` finds, and how often it is wrong, on steps whose truth is known.

    python benchmarks/tune_decisions.py    # writes tune-quality/decisions.csv

A world is a network, a link and how they disturb each other, drawn anew: 10 to 80 gradients, exchanges of 5%
to five times the backward pass, latencies of 50 us to 1 ms. Each world has two things that the model of tune
leaves out: a backward pass that is up to 30% slower while an exchange runs, and the host's time per bucket.

Per world and noise: a sweep over 48 pairs of sizes, three launches each, whose fastest mean wins; and tune:
its probe, model, candidates, launches and decision, by the functions behind `scaling tune`. `two-sided` is
the same with three launches of everything and a two-sided test, as tune decided before. Choices are judged by
their true times.
"""

from __future__ import annotations

import argparse
import csv
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import mean

import numpy as np
from decision_models import QUIET, TYPICAL, Noise, Template, campaign, results
from tune_quality import COUNT, FIRST_MB, OTHERS_MB

from scaling.analysis.decisions import adjusted
from scaling.analysis.noise import scatter_of
from scaling.analysis.samples import CellResult
from scaling.analysis.tuned import fastest, tuned_buckets
from scaling.bucket import DDP_BUCKETS_MB
from scaling.prediction.buckets import ExchangeCurve, Gradients, closed_by, of_default, to_measure
from scaling.study.tuning import DECIDING_LAUNCHES, SCREENING_LAUNCHES

OUT = Path(__file__).parent / "results" / "tune-quality" / "decisions.csv"
NOISES = (QUIET, TYPICAL, Noise("as cpu.csv", 0.07, 0.05, 0.08))
"""The last: launches there scatter by 7%, what the intervals of `tune_quality.py cpu` come to."""

SWEPT, PROBED = 3, 2
"""Launches of a sweep's cells; runs of the probe."""

LEVEL = 0.05
Cells = list[CellResult]


@dataclass(frozen=True)
class World:
    """What a step takes, for any buckets; seconds and bytes.

    Attributes:
        num_bytes, backward_s: of each gradient, in the order in which they become ready.
        latency_s, bytes_per_s: of an exchange.
        slowdown: of the backward pass while an exchange runs.
        host_s: of the host for each bucket.
    """

    num_bytes: tuple[int, ...]
    backward_s: tuple[float, ...]
    latency_s: float
    bytes_per_s: float
    slowdown: float
    host_s: float

    @classmethod
    def drawn(cls, generator: np.random.Generator) -> World:
        """One of those that the module's text describes."""
        num = int(generator.integers(10, 80))
        sizes = np.maximum(64, np.exp(generator.normal(12.5, 1.2, num))).astype(int)
        rate = 10 ** generator.uniform(8, 9.3)
        backward_s = sizes.sum() / rate * 10 ** generator.uniform(-0.7, 1.3)
        shares = sizes ** generator.uniform(0, 1)
        return cls(
            tuple(map(int, sizes)), tuple(backward_s * shares / shares.sum()),
            10 ** generator.uniform(-4.3, -3), rate,
            generator.uniform(0, 0.3), 10 ** generator.uniform(-5.3, -4),
        )  # fmt: skip

    def step(self, ends: Sequence[int]) -> tuple[float, list[float], list[float]]:
        """The step with these buckets: its seconds; when each bucket is ready; what its exchange takes."""
        now_s, free_s, filled = sum(self.backward_s) / 2, 0.0, 0  # the forward pass first
        ready_s, exchange_s = [], []
        for number, (size, alone_s) in enumerate(zip(self.num_bytes, self.backward_s, strict=True), start=1):
            beside_s = min(max(free_s - now_s, 0.0), alone_s * (1 + self.slowdown))
            now_s += beside_s + alone_s - beside_s / (1 + self.slowdown)
            filled += size
            if number in ends:
                now_s += self.host_s
                ready_s.append(now_s)
                exchange_s.append(self.latency_s + filled / self.bytes_per_s)
                free_s, filled = max(now_s, free_s) + exchange_s[-1], 0
        return max(now_s, free_s), ready_s, exchange_s

    @property
    def gradients(self) -> Gradients:
        """Their bytes; when they are ready is not known."""
        return Gradients((0.0,) * len(self.num_bytes), self.num_bytes)

    def probed(self, noise: Noise, generator: np.random.Generator) -> tuple[Gradients, ExchangeCurve]:
        """What the probe shows: a launch of each gradient alone, and one of DDP's default."""
        before, points, seen_ready_s = self.gradients.bytes_before, [], []
        for ends in (range(1, len(self.num_bytes) + 1), closed_by(DDP_BUCKETS_MB, self.num_bytes)):
            _, ready_s, exchange_s = self.step(tuple(ends))
            launch = math.exp(generator.normal(0, noise.launch))
            seen = np.array(exchange_s) * launch * np.exp(generator.normal(0, noise.iteration, len(ready_s)))
            points += list(zip(np.diff(before[[0, *ends]]), seen, strict=True))
            seen_ready_s.append(np.array(ready_s) * launch)
        return Gradients(tuple(map(float, seen_ready_s[0])), self.num_bytes), ExchangeCurve.of(points)


def measured(times_s: Sequence[float], noise: Noise, generator: np.random.Generator, num: int) -> Cells:
    """Cells with these true times, in the same launches; their ids are their places."""
    base = {"kind": "iteration", "device": "cpu", "world_size": 2, "aggregator": "all_reduce"}
    cells = [Template(str(number), {**base, "number": number}) for number in range(len(times_s))]
    logs = campaign(generator, noise, np.ones(len(times_s)), num)
    return results(cells, logs, np.log(times_s))


def up_to(cells: Cells, counts: Sequence[int]) -> Cells:
    """The first launches of each."""
    return [
        replace(cell, records=cell.records[:count], launches=cell.launches[:count])
        for cell, count in zip(cells, counts, strict=True)
    ]


def by_tune(cells: Cells) -> tuple[int, int]:
    """The place of its choice, and how many runs it takes; the default is first, the control arm last."""
    counts, candidates = [SCREENING_LAUNCHES] * len(cells), cells[1:-1]
    best = fastest(candidates, SCREENING_LAUNCHES)
    if best is not None:
        counts[0] = counts[int(best.cell_id)] = DECIDING_LAUNCHES
    found = tuned_buckets(up_to(cells, counts), "0", [one.cell_id for one in candidates], cells[-1].cell_id)
    return int(found.cells[0]), PROBED + sum(counts)


def two_sided(cells: Cells) -> tuple[int, int]:
    """The same with as many launches of all, and tests that would show slower ones too."""
    counts, ids = [SWEPT] * len(cells), [one.cell_id for one in cells[1:-1]]
    scatter = scatter_of(up_to(cells, counts))
    differences = [scatter.difference("0", one) for one in ids]
    p_values = adjusted([one.p_value or 0.0 for one in differences])
    faster = [
        (one.log_ratio, int(name))
        for one, name, p_value in zip(differences, ids, p_values, strict=True)
        if one.log_ratio < 0 and p_value < LEVEL
    ]
    return min(faster, default=(0.0, 0))[1], PROBED + sum(counts)


@dataclass(frozen=True)
class Trial:
    """True times over the default's, and runs."""

    least: float
    sweep: float
    tune: float
    runs: int


def trials(noise: Noise, *seed: int) -> dict[str, Trial]:
    """One world, swept and tuned, by the name of the decision."""
    generator = np.random.default_rng(seed)
    world = World.drawn(generator)
    default_s = world.step(closed_by(DDP_BUCKETS_MB, world.num_bytes))[0]
    pairs = [(first, other) for first in FIRST_MB for other in OTHERS_MB]
    swept = [world.step(closed_by(pair, world.num_bytes))[0] / default_s for pair in pairs]
    sweep = fastest(measured(swept, noise, generator, SWEPT), SWEPT)
    gradients, curve = world.probed(noise, generator)
    candidates = to_measure(gradients, curve, of_default(DDP_BUCKETS_MB, gradients, curve), COUNT)
    tuned = [1.0, *(world.step(one.ends)[0] / default_s for one in candidates)]
    control = sum(world.backward_s) * 1.5 / default_s
    cells = measured([*tuned, control], noise, generator, max(SWEPT, DECIDING_LAUNCHES))
    assert sweep is not None
    found = {}
    for name, decide in (("two-sided", two_sided), ("tune", by_tune)):
        choice, runs = decide(cells)
        found[name] = Trial(min(swept), swept[int(sweep.cell_id)], tuned[choice], runs)
    return found


def row_of(noise: Noise, decision: str, done: Sequence[Trial]) -> dict[str, object]:
    """What they come to; gains are of the mean true time."""
    gains = {name: 1 - mean(getattr(one, name) for one in done) for name in ("least", "sweep", "tune")}
    num_swept = SWEPT * (len(FIRST_MB) * len(OTHERS_MB) + 1)
    return {
        "noise": noise.name,
        "launch_scatter": noise.launch,
        "decision": decision,
        "worlds": len(done),
        "least_gain": f"{gains['least']:.4f}",
        "sweep_gain": f"{gains['sweep']:.4f}",
        "tune_gain": f"{gains['tune']:.4f}",
        "gain_share": f"{gains['tune'] / gains['sweep']:.3f}",
        "runs_ratio": f"{mean(one.runs for one in done) / num_swept:.4f}",
        "kept_default": sum(one.tune == 1.0 for one in done),
        "tune_slower": sum(bool(one.tune > 1) for one in done),
        "tune_worst": f"{max(one.tune for one in done):.4f}",
        "sweep_slower": sum(bool(one.sweep > 1) for one in done),
        "sweep_worst": f"{max(one.sweep for one in done):.4f}",
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--worlds", type=int, default=200)
    parser.add_argument("--seed", type=int, default=4101)
    parser.add_argument("--out", type=Path, default=OUT)
    options = parser.parse_args()
    rows = []
    for noise in NOISES:
        done = [trials(noise, options.seed, number) for number in range(options.worlds)]
        rows += [row_of(noise, name, [one[name] for one in done]) for name in done[0]]
    with options.out.open("w", newline="", encoding="utf-8") as file:
        table = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
        table.writeheader()
        table.writerows(rows)


if __name__ == "__main__":
    main()

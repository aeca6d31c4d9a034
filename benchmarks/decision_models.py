"""Synthetic studies of which the truth is known: cells as a study file gives them, times from a noise model.

None of these models is one on which a constant of `scaling.analysis.moderated` was chosen: there, launches
and their medians were normal, or Student's t of 3 degrees, and cells' noise lognormal. Here iterations are
skewed and depend on the one before, launches are skewed or have heavy tails, cells' noise is log-uniform or
in two classes, and a machine drifts while it works through the cells of a launch.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scaling.analysis.samples import CellResult, IterationLaunch
from scaling.store import ResultsFolder, RunRecord
from scaling.study.cell import AvailableMachine
from scaling.study.resolve import resolve
from scaling.study.schema import parse_study

Array = NDArray[np.float64]

ITERATIONS = 50
BASE_S = 0.01
"""Seconds of an iteration of the shortest cell."""

EIGHT = ("all_reduce", "ring", "tree", "host_serial", "host_parallel", "caffe", "mxnet_device", "tensorflow")
"""Exact aggregators."""


@dataclass(frozen=True)
class Noise:
    """How a machine scatters; standard deviations of logarithms, so that 0.03 is 3%.

    Attributes:
        name: for the table.
        launch: of a cell from launch to launch, by itself.
        common: of all cells of a launch together.
        iteration: of iterations in a launch.
        autocorrelation: of an iteration with the one before.
        outliers: part of the iterations that take half as long again.
        tails: degrees of freedom of Student's t, from which launches are drawn; None: a skewed lognormal.
        classes: factors of the noise, drawn for each cell; of two values log-uniformly between them.
        drift: by how much the machine slows down from the first to the last cell of a launch, in random
            order, and in the course of a cell; the slope of a launch is between none and twice that.
        offset: of a cell from campaign to campaign, however many launches: what A/A pairs show.
        serial: correlation of a launch's effects, on each cell and on all, with those of the launch before.
        slow: of one launch of each campaign, by how much on average it slows down its cells: each by 0.3 to
            1.7 times as much.
    """

    name: str
    launch: float = 0.03
    common: float = 0.03
    iteration: float = 0.04
    autocorrelation: float = 0.45
    outliers: float = 0.03
    tails: float | None = None
    classes: tuple[float, ...] = (1.0,)
    drift: float = 0.0
    offset: float = 0.0
    serial: float = 0.0
    slow: float = 0.0


UNEQUAL = (1 / 2.4, 2.4)
"""As wide as a lognormal of 0.5."""

QUIET = Noise("quiet", 0.004, 0.004, 0.005, 0.0, 0.0)
TYPICAL = Noise("typical")
UNEQUAL_TYPICAL = Noise("typical, unequal", classes=UNEQUAL)
HEAVY = Noise("heavy tails", tails=3.0)
MODELS = (
    QUIET,
    Noise("quiet, unequal", 0.004, 0.004, 0.005, 0.0, 0.0, classes=UNEQUAL),
    TYPICAL,
    UNEQUAL_TYPICAL,
    Noise("one cell in four noisy", classes=(1.0, 1.0, 1.0, 3.0)),
    HEAVY,
    Noise("heavy tails, unequal", tails=4.0, classes=UNEQUAL),
    Noise("drift", 0.01, 0.01, 0.02, drift=0.05),
    Noise("noisy, unequal", 0.08, 0.08, 0.10, classes=UNEQUAL),
    Noise("offsets, four A/A pairs", 0.01, 0.01, 0.02, offset=0.01),
)


def _skewed(draws: Array) -> Array:
    """Normal values -> a lognormal's with mean 0 and variance 1 (skewness 1.75)."""
    width = 0.5
    variance = math.expm1(width**2) * math.exp(width**2)
    values: Array = (np.exp(width * draws) - math.exp(width**2 / 2)) / math.sqrt(variance)
    return values


def _launch_effects(generator: np.random.Generator, noise: Noise, shape: tuple[int, ...]) -> Array:
    if noise.tails is None:
        return _skewed(generator.normal(size=shape))
    return generator.standard_t(noise.tails, shape) / math.sqrt(noise.tails / (noise.tails - 2))


def cell_factors(generator: np.random.Generator, noise: Noise, num_cells: int) -> Array:
    """How much more or less than the model each cell scatters, [cell]: the same in all campaigns."""
    if len(noise.classes) == 2:
        low, high = np.log(noise.classes)
        return np.exp(generator.uniform(low, high, num_cells))
    return generator.choice(np.array(noise.classes), num_cells)


def campaign(
    generator: np.random.Generator, noise: Noise, factors: Array, num_launches: int, num_pairs: int = 0
) -> Array:
    """Logarithms of the iterations of a campaign over the cells' true times, [cell, launch, iteration].

    Args:
        generator: of random numbers.
        noise: the model.
        factors: of each cell (`cell_factors`).
        num_launches: of the campaign.
        num_pairs: further cells at the end: A/A replicates of the first ones.
    """
    scale = np.concatenate([factors, factors[:num_pairs]])
    shape = (len(scale), num_launches)
    own = _launch_effects(generator, noise, shape)
    middles = scale[:, None] * noise.launch * _correlated(own, noise.serial)
    common = _launch_effects(generator, noise, (num_launches,))
    middles += noise.common * _correlated(common, noise.serial)
    middles += scale[:, None] * noise.offset * generator.normal(size=(len(scale), 1))
    slopes = noise.drift * generator.uniform(0, 2, num_launches)
    places = generator.permuted(np.tile(np.linspace(-0.5, 0.5, len(scale)), (num_launches, 1)), axis=1).T
    middles += slopes * places
    if noise.slow:
        uneven = generator.uniform(0.3, 1.7, len(scale))
        middles[:, generator.integers(num_launches)] += noise.slow * uneven
    course = np.linspace(-0.5, 0.5, ITERATIONS) / len(scale)
    steps = scale[:, None, None] * noise.iteration * _iterations(generator, noise, (*shape, ITERATIONS))
    slow = generator.random(steps.shape) < noise.outliers
    logs: Array = middles[:, :, None] + steps + slopes[None, :, None] * course + math.log(1.5) * slow
    return logs


def _iterations(generator: np.random.Generator, noise: Noise, shape: tuple[int, ...]) -> Array:
    """Skewed, each like the one before."""
    return _skewed(_correlated(generator.normal(size=shape), noise.autocorrelation))


def _correlated(values: Array, kept: float) -> Array:
    """Independent values -> each along the last axis correlated with the one before, of the same variance."""
    for index in range(1, values.shape[-1] if kept else 0):
        values[..., index] = kept * values[..., index - 1] + math.sqrt(1 - kept**2) * values[..., index]
    return values


def true_middle(noise: Noise, factor: float = 1.0) -> float:
    """What the mean of a launch's iterations is over the cell's true time, as a logarithm, on average:
    skewness and outliers move it, in all cells of that noise alike."""
    still = Noise("", 0, 0, noise.iteration, noise.autocorrelation, noise.outliers)
    logs = campaign(np.random.default_rng(0), still, np.full(1, factor), 4000)
    return float(np.log(np.exp(logs).mean(axis=2)).mean())


@dataclass(frozen=True)
class Template:
    """A cell of a study: its id, and its variables."""

    cell_id: str
    cell: dict[str, Any]


def cells_of(num_cells: int, num_launches: int, num_pairs: int = 0) -> list[Template]:
    """So many cells on two workers, as a study file gives them, then the replicates of A/A pairs."""
    sizes = {"model": "fcn-r", "dataset": "synthetic"}
    batches = [64 * 2**index for index in range(math.ceil(num_cells / len(EIGHT)))]
    common: dict[str, Any] = {
        "kind": "iteration",
        "world_sizes": [2],
        "scaling": "strong",
        "step": "eager",
        "device": "cpu",
        "repeats": num_launches,
        "iterations": ITERATIONS,
    }
    workloads = [{**sizes, "global_batch": batches}]
    part = {**common, "workloads": workloads, "aggregators": list(EIGHT)}
    study = resolve(
        parse_study({"name": "synthetic", "parts": [part]}, "synthetic"), AvailableMachine(0, 8, 1)
    )
    chosen = [cell for cell in study.trained if cell.world_size == 2][:num_cells]
    replicates = [replace(cell, aa_replicate=1) for cell in chosen[:num_pairs]]
    return [Template(cell.id, cell.to_dict()) for cell in (*chosen, *replicates)]


def results(cells: Sequence[Template], logs: Array, true_logs: Array) -> list[CellResult]:
    """Cells with these iterations, as `scaling.analysis.samples` reads them.

    Args:
        cells: of a study; A/A replicates at the end.
        logs: of `campaign`.
        true_logs: of the cells, [cell]; replicates have those of the first ones.
    """
    found = []
    true_logs = np.concatenate([true_logs, true_logs[: len(cells) - len(true_logs)]])
    for one, steps_s in zip(cells, BASE_S * np.exp(true_logs[:, None, None] + logs), strict=True):
        launches = [
            IterationLaunch(repeat, np.arange(len(own)), np.stack([own, 0.98 * own]), [])
            for repeat, own in enumerate(steps_s)
        ]
        records = [RunRecord(one.cell_id, repeat, one.cell, "done") for repeat in range(len(steps_s))]
        found.append(CellResult(one.cell_id, one.cell, records, launches, []))
    return found


def write(path: Path, cells: Sequence[CellResult]) -> ResultsFolder:
    """The results folder that a run of these cells would have left."""
    folder = ResultsFolder(path)
    folder.write_study({"name": "synthetic", "parts": [], "notes": []})
    folder.write_environment({"cpu": {"model": "synthetic", "usable_cores": 8}, "gpus": []})
    for cell in cells:
        for launch in cell.launches:
            record = RunRecord(cell.cell_id, launch.repeat, cell.cell)
            folder.start_run(record, {"launcher": "local", "host": "synthetic", "num_nodes": 1})
            for rank, steps_s in enumerate(launch.rank_steps_s):
                lines = [
                    {"iteration": number, "warmup": False, "step_s": float(step_s)}
                    for number, step_s in enumerate(steps_s)
                ]
                folder.sample_writer(cell.cell_id, launch.repeat, rank)(lines)
            folder.finish_run(record, {})
    return folder

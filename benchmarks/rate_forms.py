"""Which form of a launch's time of a step has an interval that holds the true one?

    python benchmarks/rate_forms.py --out FILE.csv

The truth is the mean step of an undisturbed machine. A study has nine cells with normal steps and nine with
those of a model; intervals are those of `scaling.analysis.study_scatter`. `time` is how often a cell's
interval holds its time, `speedup` the same of the ratio of a cell of either kind, `bias` the median error.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Hashable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from scaling.analysis.study_scatter import CellTimes, study_scatter

Array = NDArray[np.float64]
Draw = Callable[[np.random.Generator], Array]

CELLS, STEPS, BLOCK, LAUNCHES = 9, 200, 10, (3, 5)
LAUNCH = 0.02
"""Standard deviation of a launch's logarithm, of a cell alone and of all cells together."""

DISTURBED = 0.2
"""Part of the launches in which another program halves the speed of two blocks."""

LONG_RUN = 2000
"""Launches whose mean step is the truth."""


def normal(generator: np.random.Generator) -> Array:
    """Steps of one launch, [step], in any unit; so are all that follow."""
    return generator.normal(1.0, 0.03, STEPS)


def heavy_tails(generator: np.random.Generator) -> Array:
    """Longer by a Pareto variable whose third moment is not finite."""
    return 0.97 + 0.06 * generator.pareto(2.5, STEPS)


def bimodal(generator: np.random.Generator) -> Array:
    """Three in ten steps take 1.6 times as long."""
    return normal(generator) * np.where(generator.random(STEPS) < 0.3, 1.6, 1.0)


def drifting(generator: np.random.Generator) -> Array:
    """10% slower at the end, as a GPU that gets warm."""
    return normal(generator) * np.linspace(1.0, 1.1, STEPS)


def periodic(generator: np.random.Generator, period: int = 7, stall: float = 4.0) -> Array:
    """A stall in every seventh step, from any step on."""
    times = normal(generator)
    times[generator.integers(period) :: period] += stall
    return times


def rare_periodic(generator: np.random.Generator) -> Array:
    """A stall in every 40th step: in one block of four."""
    return periodic(generator, 40, 5.0)


def loader(generator: np.random.Generator, workers: int = 4) -> Array:
    """Each worker of a data loader makes every fourth batch, hardly as fast as they are used."""
    ready = generator.gamma(4.0, 1.0, workers)
    now, times = float(ready.max()), np.empty(STEPS)
    for step in range(STEPS):
        worker = step % workers
        end = max(now, ready[worker]) + 0.9
        ready[worker] = max(now, ready[worker]) + generator.gamma(4.0, 1.0)
        now, times[step] = end, end - now
    return times


MODELS: dict[str, Draw] = {
    "normal": normal,
    "heavy tails": heavy_tails,
    "bimodal": bimodal,
    "drifting": drifting,
    "periodic": periodic,
    "rare periodic": rare_periodic,
    "loader": loader,
}


def _blocks(steps: Array) -> Array:
    means: Array = steps.reshape(-1, BLOCK).mean(axis=1)
    return means


def without_outlying_blocks(steps: Array) -> float:
    """Blocks over 5 robust standard deviations, and 10%, above the median block are left out."""
    means = _blocks(steps)
    middle = np.median(means)
    above = max(5 * 1.4826 * np.median(np.abs(means - middle)), 0.1 * middle)
    return float(means[means <= middle + above].mean())


def without_extreme_blocks(steps: Array) -> float:
    """The slowest and the fastest tenth of the blocks are left out."""
    means = np.sort(_blocks(steps))
    cut = len(means) // 10
    return float(means[cut:-cut].mean())


FORMS: dict[str, Callable[[Array], float]] = {
    "wall clock over steps": lambda steps: float(steps.mean()),
    "without outlying blocks": without_outlying_blocks,
    "without the extreme tenths of blocks": without_extreme_blocks,
    "median block": lambda steps: float(np.median(_blocks(steps))),
    "median step": lambda steps: float(np.median(steps)),
}


def disturb(generator: np.random.Generator, steps: Array) -> Array:
    """Two blocks of this launch at half the speed."""
    first = BLOCK * int(generator.integers(STEPS // BLOCK - 1))
    steps[first : first + 2 * BLOCK] *= 2
    return steps


def _study(
    generator: np.random.Generator, draw: Draw, num_launches: int, disturbed: float
) -> dict[str, dict[Hashable, CellTimes]]:
    """Form -> the cells of a study, (kind of steps, number) -> what their launches take."""
    measured: dict[str, dict[Hashable, CellTimes]] = {form: {} for form in FORMS}
    for kind, draw_one in (("normal", normal), ("model", draw)):
        common = generator.normal(0, LAUNCH, num_launches)
        for cell in range(CELLS):
            factors = np.exp(common + generator.normal(0, LAUNCH, num_launches))
            launches = [factor * draw_one(generator) for factor in factors]
            if kind == "model":
                launches = [
                    disturb(generator, one) if generator.random() < disturbed else one for one in launches
                ]
            for form, value in FORMS.items():
                measured[form][kind, cell] = CellTimes(kind, dict(enumerate(map(value, launches))))
    return measured


def _holds(interval: tuple[float, float] | None, truth: float) -> bool:
    return interval is not None and interval[0] <= truth <= interval[1]


def rows(
    name: str, num_launches: int, studies: int, seed: int = 0, disturbed: float = 0.0
) -> list[dict[str, Any]]:
    """A row a form.

    Args:
        name: of a model.
        num_launches: of each cell.
        studies: to draw.
        seed: of what is drawn.
        disturbed: part of the launches of the model's cells that are.
    """
    generator = np.random.default_rng([seed, num_launches, list(MODELS).index(name)])
    true_s, single_s = (
        float(np.mean([draw(generator).mean() for _ in range(LONG_RUN)])) for draw in (MODELS[name], normal)
    )
    counted: dict[str, list[tuple[bool, bool, float]]] = {form: [] for form in FORMS}
    for _ in range(studies):
        for form, cells in _study(generator, MODELS[name], num_launches, disturbed).items():
            scatter = study_scatter(cells)
            for number in range(CELLS):
                cell, single = ("model", number), ("normal", number)
                middle_s = float(np.exp(np.mean(np.log(list(cells[cell].by_launch.values())))))
                speedup = scatter.difference(cell, single).interval
                holds = _holds(scatter.interval(cell), true_s), _holds(speedup, single_s / true_s)
                counted[form].append((*holds, middle_s / true_s - 1))
    found = []
    for form, cells_of_form in counted.items():
        times, speedups, errors = zip(*cells_of_form, strict=True)
        shares = {"time": np.mean(times), "speedup": np.mean(speedups), "bias": np.median(errors)}
        steps = f"{name}, disturbed" if disturbed else name
        found.append({"steps": steps, "launches": num_launches, "form": form, **shares})
    return found


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--studies", type=int, default=200)
    parser.add_argument("--seed", type=int, default=2046)
    given = parser.parse_args()
    table = pd.DataFrame(
        row
        for num_launches in LAUNCHES
        for name, disturbed in (*((name, 0.0) for name in MODELS), ("normal", DISTURBED))
        for row in rows(name, num_launches, given.studies, given.seed, disturbed)
    )
    table.to_csv(given.out, index=False, float_format="%.4f")
    print(table.pivot(index=["steps", "launches"], columns="form", values="time")[list(FORMS)].to_string())


if __name__ == "__main__":
    main()

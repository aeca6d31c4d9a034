"""One pair of synthetic studies, or one of eight aggregators, and what is said of it.

Everything goes through the functions behind `scaling compare` and `scaling recommend`; `same_by_command`
writes results folders, and asks the command line.
"""

from __future__ import annotations

import json
import math
import tempfile
from collections import Counter
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import numpy as np
from decision_models import (
    BASE_S,
    Array,
    Noise,
    campaign,
    cell_factors,
    cells_of,
    results,
    true_middle,
    write,
)

from scaling.analysis.columns import to_rows
from scaling.analysis.compare import FAMILY_LEVEL, Side, compare_sides
from scaling.analysis.comparison import Comparison, Gate, parse_gate
from scaling.analysis.noise import scatter_of
from scaling.analysis.recommend import recommend
from scaling.analysis.samples import CellResult, without_slow_launches
from scaling.analysis.summary import build_table

SHIFT = 0.02
"""Of all cells from one campaign to the next."""

NUM_PAIRS = 4
"""A/A pairs of a study with offsets."""

GATE = "slower > 5%"

FALSE, SHIFTED = "any false alarm", f"any false alarm, all cells {SHIFT:.0%} slower"
FAILED = f"gate `{GATE}` fails"
RATIO, CELL = "interval of a ratio holds it", "interval of a cell holds its time"
FOUND, AT_DETECTABLE = "slowdown of a cell found", "slowdown as large as `detectable` found"
WRONG, RIGHT, TIE = "best of 8: wrong", "best of 8: right", "best of 8: a tie"


class Pairs:
    """Pairs of studies of a noise model.

    Attributes:
        noise: the model.
        num_cells, num_launches: of each study.
        slowdown: that is planted: 0.1 for 10%.
    """

    def __init__(self, noise: Noise, num_cells: int, num_launches: int, num_pairs: int | None = None) -> None:
        self.noise, self.num_cells, self.num_launches = noise, num_cells, num_launches
        self.slowdown = 0.03 if noise.launch < 0.01 else 0.10
        self._num_pairs = (NUM_PAIRS if noise.offset else 0) if num_pairs is None else num_pairs
        self._study = cells_of(num_cells, num_launches, self._num_pairs)
        still = np.zeros((num_cells + self._num_pairs, num_launches, 2))
        # Names and numbers to be shown: they decide nothing.
        self._rows = to_rows(build_table("synthetic", self.cells(still)))

    def count(self, *seed: int, is_short: bool = False) -> Counter[str]:
        """Of the pair that the seed draws: what happened, and how often; RATIO and CELL count cells.

        Without SHIFTED, FAILED and AT_DETECTABLE if `is_short`.
        """
        a_logs, b_logs, factors = self.drawn(*seed)
        a, plain = self.cells(a_logs), self.compared(a_logs, b_logs)
        slower = self.compared(a_logs, b_logs, self.slower(1 + self.slowdown))
        scatter = scatter_of(a)
        found = Counter(
            {
                FALSE: is_called(plain),
                RATIO: sum(_holds(one.difference.interval, 1.0) for one in plain.cells),
                CELL: sum(
                    _holds(scatter.interval(cell.cell_id), true_time_s(self.noise, float(factor)))
                    for cell, factor in zip(a, factors, strict=False)
                ),
                FOUND: slower.cells[0].verdict == "slower",
            }
        )
        if is_short:
            return found
        shifted = self.compared(a_logs, b_logs, np.full(self.num_cells, math.log1p(SHIFT)))
        smallest = plain.detectable(plain.cells[0]) or 1.0
        just_found = self.compared(a_logs, b_logs, self.slower(smallest))
        found[SHIFTED] = is_called(shifted)
        found[FAILED] = _fails(parse_gate(GATE), plain)
        found[AT_DETECTABLE] = just_found.cells[0].verdict == "slower"
        return found

    def same_by_command(self, *seed: int) -> bool:
        """Whether `scaling compare` says the same of the pair with the slowdown, written as results folders,
        and ends as the gate has it."""
        from typer.testing import CliRunner

        from scaling.cli import app

        a_logs, b_logs, _ = self.drawn(*seed)
        true_logs = self.slower(1 + self.slowdown)
        said, b = self.compared(a_logs, b_logs, true_logs), self.cells(b_logs, true_logs)
        with tempfile.TemporaryDirectory() as place:
            sides = (("a", self.cells(a_logs)), ("b", b))
            paths = [str(write(Path(place, name), cells).path) for name, cells in sides]
            ended = CliRunner().invoke(app, ["compare", *paths, "--json", "--fail-if", GATE])
        answers = {one["cell_id_a"]: one for one in json.loads(ended.stdout)["cells"]}
        return ended.exit_code == 3 * _fails(parse_gate(GATE), said) and all(
            answer["verdict"] == one.verdict and math.isclose(answer["p_value"], one.tested.p_value or 0.0)
            for one in said.cells
            for answer in [answers[one.match.a["cell_id"]]]
        )

    def compared(self, a_logs: Array, b_logs: Array, true_logs: Array | None = None) -> Comparison:
        """What `scaling compare` says of both, the second with these true times."""
        a, b = self.cells(a_logs), self.cells(b_logs, true_logs)
        return compare_sides(Side([self._rows], [a]), Side([self._rows], [b]), FAMILY_LEVEL)

    def slower(self, ratio: float) -> Array:
        """True logarithms of the cells, of which the first in a comparison is slower."""
        ids = [one.cell_id for one in self._study[: self.num_cells]]
        first = next(row["cell_id"] for row in self._rows if row["cell_id"] in ids)
        true_logs = np.zeros(self.num_cells)
        true_logs[ids.index(first)] = math.log(ratio)
        return true_logs

    def drawn(self, *seed: int) -> tuple[Array, Array, Array]:
        """Logarithms of the iterations of both campaigns, and how much each cell scatters."""
        generator = np.random.default_rng(seed)
        factors = cell_factors(generator, self.noise, self.num_cells)
        a, b = (campaign(generator, self.noise, factors, self.num_launches, self._num_pairs) for _ in "ab")
        return a, b, factors

    def cells(self, logs: Array, true_logs: Array | None = None) -> list[CellResult]:
        true_logs = np.zeros(self.num_cells) if true_logs is None else true_logs
        return without_slow_launches(results(self._study, logs, true_logs))


def best_of_8(noise: Noise, num_launches: int, gap: float, *seed: int) -> str | None:
    """What `scaling recommend` makes of eight aggregators, of which one is faster by the gap, or none.

    Returns:
        RIGHT, WRONG or TIE; None if undecided. "Either, within 3%" names several: a tie if the best is one of
        them, else wrong. "Use this: others may be faster, but not by more than 3%" names one. Of eight equal
        ones both are a tie, and one that is called the fastest is wrong.
    """
    generator, study = np.random.default_rng(seed), _eight(num_launches)
    best, true_logs = int(generator.integers(8)), np.full(8, math.log1p(gap))
    true_logs[best] = 0.0
    logs = campaign(generator, noise, cell_factors(generator, noise, 8), num_launches)
    cells = without_slow_launches(results(study, logs, true_logs))
    (found,) = recommend(build_table("synthetic", cells), cells)
    if found.choice is None or found.state not in ("decided", "tie"):
        return None
    if not gap:
        return WRONG if found.state == "decided" else TIE
    if found.rivals and all(rival.is_same for rival in found.rivals):
        named = {found.choice.cell_id, *(one.candidate.cell_id for one in found.rivals)}
        return TIE if cells[best].cell_id in named else WRONG
    return RIGHT if found.choice.cell_id == cells[best].cell_id else WRONG


_eight = cache(lambda num_launches: cells_of(8, num_launches))


@cache
def true_time_s(noise: Noise, factor: float) -> float:
    """What the times of a cell's launches scatter about: skewness moves it in proportion to the noise."""
    if len(noise.classes) == 2:
        low, high = (true_time_s_of_class(noise, one) for one in noise.classes)
        return math.exp(np.interp(factor, noise.classes, (low, high)))
    return math.exp(true_time_s_of_class(noise, factor))


@cache
def true_time_s_of_class(noise: Noise, factor: float) -> float:
    """The same as a logarithm, by simulation."""
    return math.log(BASE_S) + true_middle(noise, factor)


def is_called(comparison: Comparison) -> bool:
    """Whether any cell is called slower or faster."""
    return any(one.verdict in ("slower", "faster") for one in comparison.cells)


def _fails(gate: Gate, comparison: Comparison) -> bool:
    return bool(gate.failing(comparison) or gate.failing_shifts(comparison))


def _holds(interval: Sequence[float] | None, value: float) -> bool:
    return interval is not None and interval[0] <= value <= interval[1]

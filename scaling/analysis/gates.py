"""Conditions on a comparison under which a build fails: `slower > 5%`."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

from scaling.analysis.comparison import CellComparison, Comparison, Shift
from scaling.analysis.findings import Finding
from scaling.errors import ScalingError

_GATE = re.compile(r"\s*(slower|faster)\s*(?:>\s*(\d+(?:\.\d+)?)\s*%)?\s*")


LEVEL_SHARE = 1 / 5
"""The part of the comparison's level at which a cell, or the shift of all, fails: a build that fails without
a reason costs more than a line that says slower. On identical folders a gate at 5% fails in less than 1%."""


@dataclass(frozen=True)
class Gate:
    """A condition that fails a build: cells with that verdict, confirmed, whose times differ by more than the
    ratio; also the shift of all cells.

    Attributes:
        verdict: slower or faster.
        more_than: 0.05 for 5%.
    """

    verdict: str
    more_than: float

    def failing(self, comparison: Comparison) -> list[CellComparison]:
        """The cells that fail; cells with one launch never do."""
        return [
            cell
            for cell in comparison.cells
            if cell.verdict == self.verdict
            and (cell.p_adjusted or 0.0) < LEVEL_SHARE * comparison.level
            and self._is_beyond(cell)
        ]

    def failing_shifts(self, comparison: Comparison) -> list[Shift]:
        """The shifts that fail; between two campaigns, the usual difference of campaigns on one machine is
        allowed for.
        """
        level = LEVEL_SHARE * comparison.level / max(1, len(comparison.shifts))
        sign = 1 if self.verdict == "slower" else -1
        return [
            shift
            for shift in comparison.shifts
            if (half := shift.difference.half_width(level)) is not None
            and sign * shift.difference.log_ratio > max(half, math.log1p(self.more_than))
        ]

    def blind(self, comparison: Comparison) -> list[CellComparison]:
        """The cells that pass although a difference of that size could not have been detected in them."""
        failing = self.failing(comparison)
        return [cell for cell in comparison.cells if cell not in failing and self._is_blind(comparison, cell)]

    def _is_beyond(self, cell: CellComparison) -> bool:
        times = cell.difference.ratio if self.verdict == "slower" else 1 / cell.difference.ratio
        return times > 1 + self.more_than

    def _is_blind(self, comparison: Comparison, cell: CellComparison) -> bool:
        half = cell.tested.half_width(LEVEL_SHARE * comparison.level_of_each)
        if half is None:
            return True
        shift = cell.log_shift if self.verdict == "slower" else -cell.log_shift
        return max(half + shift, -shift) > math.log1p(self.more_than)  # of the ratio itself: see `goes_along`


def parse_gate(text: str) -> Gate:
    """`slower > 5%` -> a gate; `different` is a difference in any direction.

    Raises:
        ScalingError: it is neither.
    """
    match = _GATE.fullmatch(text)
    if match is None:
        raise ScalingError(
            f"--fail-if is {text!r}; allowed: 'slower > P%' and 'faster > P%' with a number P, or without it"
        )
    return Gate(match[1], float(match[2] or 0) / 100)


def changed_times(shift: Shift) -> Finding:
    """The relative increase of the time that all cells of a world size share."""
    values = {"kind": shift.kind, "num_cells": shift.num_cells, "world_size": shift.world_size}
    return Finding("changed_times", (), {**values, "ratio": shift.difference.ratio})


def changed_time(cell: CellComparison) -> Finding:
    """The relative increase of a cell's time."""
    a, b = cell.match.a, cell.match.b
    values = {"kind": cell.kind, "name": cell.name, "world_size": a["world_size"], "given": cell.given}
    values |= {"ratio": cell.difference.ratio}
    return Finding("changed_time", (a["cell_id"], b["cell_id"]), values)

"""Conditions on a comparison under which a build fails: `slower > 5%`."""

from __future__ import annotations

import re
from dataclasses import dataclass

from scaling.analysis.compare import CellComparison, Comparison
from scaling.analysis.findings import Finding
from scaling.errors import ScalingError

_GATE = re.compile(r"\s*(slower|faster)\s*(?:>\s*(\d+(?:\.\d+)?)\s*%)?\s*")


@dataclass(frozen=True)
class Gate:
    """Which cells fail it: those of that verdict whose times differ by more than the ratio.

    Attributes:
        verdict: slower or faster.
        more_than: 0.05 for 5%.
    """

    verdict: str
    more_than: float

    def failing(self, comparison: Comparison) -> list[CellComparison]:
        """The cells that fail, those within one launch among them."""
        return [cell for cell in comparison.cells if cell.verdict == self.verdict and self._is_beyond(cell)]

    def blind(self, comparison: Comparison) -> list[CellComparison]:
        """The cells that pass although so small a difference could not have been found in them."""
        failing = self.failing(comparison)
        return [cell for cell in comparison.cells if cell not in failing and self._is_blind(comparison, cell)]

    def _is_beyond(self, cell: CellComparison) -> bool:
        times = cell.ratio.ratio if self.verdict == "slower" else 1 / cell.ratio.ratio
        return times > 1 + self.more_than

    def _is_blind(self, comparison: Comparison, cell: CellComparison) -> bool:
        smallest = comparison.detectable(cell)
        return cell.verdict == "undecided" or (smallest is not None and smallest > 1 + self.more_than)


def parse_gate(text: str) -> Gate:
    """`slower > 5%` -> a gate; `slower` is one for any difference.

    Raises:
        ScalingError: it is neither.
    """
    match = _GATE.fullmatch(text)
    if match is None:
        raise ScalingError(
            f"--fail-if is {text!r}; allowed: 'slower > P%' and 'faster > P%' with a number P, or without it"
        )
    return Gate(match[1], float(match[2] or 0) / 100)


def changed_time(cell: CellComparison) -> Finding:
    """How much longer a cell takes."""
    a, b = cell.match.a, cell.match.b
    values = {"kind": cell.kind, "name": cell.name, "world_size": a["world_size"], "group": cell.group}
    values |= {"ratio": cell.ratio.ratio, "within_one_launch": cell.within_one_launch}
    return Finding("changed_time", (a["cell_id"], b["cell_id"]), values)

"""The data of a comparison of two sides: cells, the shift that they share, the detectable difference."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from scaling.analysis.columns import Row
from scaling.analysis.decisions import (
    FEWEST,
    ONE_LAUNCH_SCATTER,
    TIE_RATIO,
    Difference,
    goes_along,
    launches_needed,
)
from scaling.analysis.environments import DifferingKey as EnvironmentDifference
from scaling.analysis.findings import Finding
from scaling.analysis.matching import Match

Verdict = Literal["faster", "slower", "same", "not resolved"]
"""Of b: `same` is shown to be within TIE_RATIO; `not resolved` is neither the same nor different."""

Reason = Literal["one launch", "shift of the others", "scatter"]
"""Why a pair is not resolved: one launch on a side; only what the others have in common differs from it; or
launches scatter too much."""

METHOD = "moderated t of the launches' times (logarithms), relative to all cells' shift, Holm's correction"


LARGEST_RATIO = 1000.0
"""Of two times: more tells nothing."""


@dataclass(frozen=True)
class CellComparison:
    """A cell that was measured on both sides.

    Attributes:
        given: what it has in common with others.
        name: what distinguishes it from them: aggregator and the like.
        match: both rows of the summaries.
        quantity: the column that is compared: iteration_s, or train_s of a training.
        difference: of b from a.
        tested: the same relative to what all cells of the world size have in common; `difference` itself
            where there are too few for that.
        p_adjusted: of `tested`, corrected for all pairs; None with one launch on a side.
        verdict: of b against a.
        num_launches: of a and b.
    """

    given: Mapping[str, Any]
    name: str
    match: Match
    quantity: str
    difference: Difference
    tested: Difference
    p_adjusted: float | None
    verdict: Verdict
    num_launches: tuple[int, int]

    @property
    def kind(self) -> str:
        """ "iteration" or "convergence": a table never mixes times of different kinds."""
        return str(self.match.a["kind"])

    @property
    def log_shift(self) -> float:
        """The logarithm of the change that the other cells share; 0 if the verdict is not relative to it."""
        return self.difference.log_ratio - self.tested.log_ratio

    @property
    def reason(self) -> Reason | None:
        """Why the pair is not resolved; None if it is."""
        if self.verdict != "not resolved":
            return None
        if self.within_one_launch:
            return "one launch"
        is_of_others = self.tested.is_significant and not goes_along(self.difference, self.tested)
        return "shift of the others" if is_of_others else "scatter"

    @property
    def within_one_launch(self) -> bool:
        """Whether the scatter between launches is unknown."""
        return self.tested.error is None

    def launches_needed(self, level: float) -> int | None:
        """The launches per side needed to find a difference of this size at that level; None if impractically
        many. With one launch the scatter of a typical machine is assumed.
        """
        if self.tested.error is None:
            deviation = ONE_LAUNCH_SCATTER * 2**0.5
        else:
            deviation = self.tested.error * min(self.num_launches) ** 0.5
        needed = launches_needed(self.tested.log_ratio, deviation, level)
        return None if needed is None else max(FEWEST, needed)

    def as_dict(self) -> dict[str, Any]:
        """The comparison of this cell for JSON."""
        a, b, interval = self.match.a, self.match.b, self.difference.interval
        return {
            "kind": self.kind,
            "name": self.name,
            "world_size": a["world_size"],
            "cell_id_a": a["cell_id"],
            "cell_id_b": b["cell_id"],
            "quantity": self.quantity,
            "a": a[self.quantity],
            "b": b[self.quantity],
            "ratio": self.difference.ratio,
            "ratio_low": interval and interval[0],
            "ratio_high": interval and interval[1],
            "relative_ratio": self.tested.ratio,
            "launches_a": self.num_launches[0],
            "launches_b": self.num_launches[1],
            "p_value": self.tested.p_value,
            "p_adjusted": self.p_adjusted,
            "verdict": self.verdict,
            "reason": self.reason,
            "within_one_launch": self.within_one_launch,
            "final_test_accuracy_a": a["final_test_accuracy"],
            "final_test_accuracy_b": b["final_test_accuracy"],
            "differing": {name: list(values) for name, values in self.match.differing.items()},
        }


@dataclass(frozen=True)
class Shift:
    """The change that all cells of a world size share.

    Attributes:
        kind, world_size: of the cells.
        num_cells: how many they are.
        difference: of b from a.
        is_relative: whether cells are called relative to it.
        is_measured: whether it is known how far two measurements of the same differ in it: launches took
            turns, or there are several campaigns a side. Else CAMPAIGN_RATIO stands for that.
    """

    kind: str
    world_size: int
    num_cells: int
    difference: Difference
    is_relative: bool
    is_measured: bool = False

    def as_dict(self) -> dict[str, Any]:
        """The shift for JSON."""
        low, high = self.difference.interval or (None, None)
        return {
            "kind": self.kind,
            "world_size": self.world_size,
            "num_cells": self.num_cells,
            "ratio": self.difference.ratio,
            "ratio_low": low,
            "ratio_high": high,
            "is_significant": self.difference.is_significant,
            "cells_are_relative_to_it": self.is_relative,
            "campaigns_are_measured": self.is_measured,
        }


@dataclass(frozen=True)
class Comparison:
    """A comparison of two sides, each with one or several folders.

    Attributes:
        environment: fields that differ.
        cells: the pairs, in the first folder's order.
        shifts: of all cells, one a kind and world size.
        only_in_a, only_in_b: rows without a partner, or whose partner has no samples.
        level: the family-wise one.
        num_left_out: cells of kinds that are not compared, and trainings whose workers shared GPUs, in both.
        is_paired: whether launches of both sides took turns in one campaign.
        offset_ratio: what stays of a cell's ratio however many launches there are, by the A/A pairs: one
            standard deviation; 0 where that is not known.
        warnings: A/A pairs that differ more than their launches scatter.
    """

    environment: list[EnvironmentDifference]
    cells: list[CellComparison]
    shifts: list[Shift]
    only_in_a: list[Row]
    only_in_b: list[Row]
    level: float
    num_left_out: int
    is_paired: bool = False
    offset_ratio: float = 0.0
    warnings: list[Finding] = field(default_factory=list)

    @property
    def num_tests(self) -> int:
        """The number of pairs that were tested together."""
        return sum(not cell.within_one_launch for cell in self.cells)

    @property
    def level_of_each(self) -> float:
        """The level at which a pair is called different, independent of the other pairs."""
        return self.level / max(1, self.num_tests)

    def detectable(self, cell: CellComparison) -> float | None:
        """The smallest ratio, relative to the shared shift, that would have been called different in this
        pair; None with one launch, and where launches scatter so much that it is beyond LARGEST_RATIO.
        """
        half = cell.tested.half_width(self.level_of_each)
        smallest = None if half is None else max(half, 2 * abs(cell.log_shift))
        return None if smallest is None or smallest > math.log(LARGEST_RATIO) else math.exp(smallest)

    def as_dict(self) -> dict[str, Any]:
        """The whole comparison for JSON."""
        shown = ("kind", "model", "aggregator", "step", "world_size", "state", "reason", "cell_id")
        return {
            "method": METHOD,
            "family_wise_level": self.level,
            "tie_ratio": TIE_RATIO,
            "num_tests": self.num_tests,
            "environment": [difference.as_dict() for difference in self.environment],
            "shifts": [shift.as_dict() for shift in self.shifts],
            "cells": [
                {
                    **cell.as_dict(),
                    "detectable_ratio": self.detectable(cell),
                    "launches_needed": cell.launches_needed(self.level_of_each),
                }
                for cell in self.cells
            ],
            "only_in_a": [{name: row[name] for name in shown} for row in self.only_in_a],
            "only_in_b": [{name: row[name] for name in shown} for row in self.only_in_b],
            "num_left_out": self.num_left_out,
            "launches_took_turns": self.is_paired,
            "offset_ratio": self.offset_ratio,
        }

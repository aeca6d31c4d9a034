"""The objectives of `recommend`, as a user writes them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from scaling.analysis.candidates import ACCURACY, EFFICIENCY, ENERGY, HOURS, MEMORY, TIME, Candidate
from scaling.analysis.decisions import TIE_RATIO
from scaling.analysis.fronts import AGAINST_TIME, seconds_a_sample
from scaling.errors import ScalingError

OBJECTIVES = (TIME, ACCURACY, f"{EFFICIENCY} >= 0.8", HOURS, ENERGY, MEMORY)
"""One of each, as an example."""

_EFFICIENCY = re.compile(rf"\s*{EFFICIENCY}\s*(?:>=|>|≥)\s*(\d+(?:\.\d+)?)\s*(%?)\s*")


@dataclass(frozen=True)
class Objective:
    """What is minimized, and under which condition.

    Attributes:
        name: TIME, ACCURACY, EFFICIENCY, HOURS, ENERGY or MEMORY.
        text: as it was asked for.
        smallest_efficiency: a candidate's parallel efficiency is at least this; None: any.
    """

    name: str
    text: str
    smallest_efficiency: float | None = None

    def with_ties_by_time(self, candidates: Sequence[Candidate], are_ties: Sequence[bool]) -> list[Candidate]:
        """The candidates; unless time is wanted, of those that tie with the first the fastest is in front.

        Args:
            candidates: the smallest value first.
            are_ties: whether each is shown to be as small as the first.
        """
        if self.name not in AGAINST_TIME:
            return list(candidates)
        tied = [candidates[0], *(one for one, is_tie in zip(candidates, are_ties, strict=True) if is_tie)]
        seconds = [seconds_a_sample(one) for one in tied]
        are_fast = [one_s <= (1 + TIE_RATIO) * min(seconds) for one_s in seconds]
        choice = tied[are_fast.index(True)]
        return [choice, *(one for one in candidates if one is not choice)]


def parse_objective(text: str) -> Objective:
    """Reads an objective.

    Raises:
        ScalingError: there is no such one.
    """
    if text in (TIME, ACCURACY, HOURS, ENERGY, MEMORY):
        return Objective(text, text)
    if match := _EFFICIENCY.fullmatch(text):
        bound = float(match[1]) / (100 if match[2] else 1)
        if not 0 < bound <= 2:
            raise ScalingError(f"the efficiency is {bound:g}; it is a ratio such as 0.8")
        return Objective(EFFICIENCY, text, bound)
    allowed = ", ".join(f"'{objective}'" for objective in OBJECTIVES)
    raise ScalingError(f"no objective {text!r}; allowed: {allowed}")

"""The objectives of `recommend`, as a user writes them."""

from __future__ import annotations

import re
from dataclasses import dataclass

from scaling.analysis.candidates import ACCURACY, EFFICIENCY, ENERGY, HOURS, MEMORY, TIME
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

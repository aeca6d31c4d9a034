"""Numbers with their uncertainty, by the delta method.

An estimate is a value and, for each independent input by name, how much the value changes if that input is
one standard deviation more. Sums add these changes input by input, so that an input which two summands share
counts as one; the standard deviation is the root of the sum of their squares. Linear: good while deviations
are a fraction of the value.

Intervals are of a log-normal distribution with that relative deviation: never below zero.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

NORMAL_95 = 1.959964  # standard deviations on either side that hold 95% of a normal distribution


def sd_that_reaches(ratio: float) -> float:
    """The relative deviation of a 95% interval that ends at that ratio of the value."""
    return math.sqrt(math.expm1((math.log(ratio) / NORMAL_95) ** 2))


def beyond(sd: float, known_sd: float) -> float:
    """What a deviation has beyond one that is counted already."""
    return math.sqrt(max(0.0, sd**2 - known_sd**2))


@dataclass(frozen=True)
class PredictedValue:
    """A value of at least 0, in any unit."""

    value: float  # the best guess
    # input -> what one standard deviation of it adds to the value; signed, in the same unit
    changes: Mapping[str, float] = field(default_factory=dict)

    @classmethod
    def of(cls, value: float, source: str, relative_sd: float) -> PredictedValue:
        return cls(value, {source: value * relative_sd})

    @property
    def sd(self) -> float:
        return math.hypot(*self.changes.values())

    @property
    def relative_sd(self) -> float:
        """That over the value; 0 where the value is."""
        return self.sd / self.value if self.value > 0 else 0.0

    @property
    def interval(self) -> tuple[float, float]:
        """95%: low and high."""
        spread = math.exp(NORMAL_95 * math.sqrt(math.log1p(self.relative_sd**2)))
        return self.value / spread, self.value * spread

    def times(self, factor: float) -> PredictedValue:
        return PredictedValue(self.value * factor, {name: by * factor for name, by in self.changes.items()})

    def also(self, source: str, relative_sd: float) -> PredictedValue:
        """With one more source of uncertainty, relative to the value."""
        change = math.hypot(self.changes.get(source, 0.0), self.value * relative_sd)
        return PredictedValue(self.value, {**self.changes, source: change})

    def __add__(self, other: PredictedValue) -> PredictedValue:
        names = self.changes.keys() | other.changes.keys()
        changes = {name: self.changes.get(name, 0.0) + other.changes.get(name, 0.0) for name in sorted(names)}
        return PredictedValue(self.value + other.value, changes)

    def over(self, other: PredictedValue) -> PredictedValue:
        """The ratio; an input that both share counts by what it changes of that."""
        ratio = self.value / other.value
        names = self.changes.keys() | other.changes.keys()
        changes = {
            name: ratio
            * (self.changes.get(name, 0.0) / self.value - other.changes.get(name, 0.0) / other.value)
            for name in sorted(names)
        }
        return PredictedValue(ratio, changes)


NOTHING = PredictedValue(0.0)


def total(parts: Iterable[PredictedValue]) -> PredictedValue:
    return sum(parts, NOTHING)

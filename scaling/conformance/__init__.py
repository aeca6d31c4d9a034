"""What every aggregator must keep, checked in-process: for tests and for authors of aggregators.

Ranks are threads. What does not hold is an AssertionError, or for a schedule a ScheduleError, that says which
law is broken, and where.

- `check_drawn`: the whole contract on cases that are drawn: steps, tensors, types and values;
- `check`: the same on one case;
- `check_schedule`: the schedule of a `Scheduled` delivers the sum, and leaves it where the step is taken.
"""

from scaling.aggregators.base import DTYPES
from scaling.conformance.cases import WORLD_SIZES, Case, fixed_cases, layout_of
from scaling.conformance.contract import check, check_schedule
from scaling.conformance.drawn import (
    NUM_EXAMPLES,
    NUM_EXAMPLES_OF_COMMANDS,
    DrawnCases,
    check_drawn,
    failure_text,
)

__all__ = [
    "DTYPES",
    "NUM_EXAMPLES",
    "NUM_EXAMPLES_OF_COMMANDS",
    "WORLD_SIZES",
    "Case",
    "DrawnCases",
    "check",
    "check_drawn",
    "check_schedule",
    "failure_text",
    "fixed_cases",
    "layout_of",
]

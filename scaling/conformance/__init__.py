"""What every aggregator must keep, checked in-process: for tests and for authors of aggregators.

Ranks are threads. What does not hold is an AssertionError, or for a schedule a ScheduleError, that says which
law is broken, and where.

- `check`: what `aggregate` and `distribute` leave on each rank, once for a world size, bucket size and type;
- `check_state`: a saved and loaded state continues bit for bit;
- `check_residuals`: error feedback loses nothing;
- `check_schedule`: the schedule of a `Scheduled` delivers the sum, and leaves it where the step is taken.
"""

from scaling.conformance.contract import ULPS, check
from scaling.conformance.inputs import DTYPES, SIZES, WORLD_SIZES, gradients_of, layout_of
from scaling.conformance.laws import check_residuals, check_schedule, check_state

__all__ = [
    "DTYPES",
    "SIZES",
    "ULPS",
    "WORLD_SIZES",
    "check",
    "check_residuals",
    "check_schedule",
    "check_state",
    "gradients_of",
    "layout_of",
]

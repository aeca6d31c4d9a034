"""What every aggregator must keep, checked in-process: for tests and for authors of aggregators.

Ranks are threads. What does not hold is an AssertionError, or for a schedule a ScheduleError, that says which
law is broken, and where.

- `check_drawn`: the whole contract on cases that are drawn: steps, tensors, types and values;
- `check`: the same on one case;
- `check_schedule`: the schedule of a `Scheduled` delivers the sum, and leaves it where the step is taken.
"""

from scaling.aggregators.base import DTYPES as DTYPES
from scaling.conformance.cases import WORLD_SIZES as WORLD_SIZES
from scaling.conformance.cases import Case as Case
from scaling.conformance.cases import fixed_cases as fixed_cases
from scaling.conformance.cases import layout_of as layout_of
from scaling.conformance.contract import check as check
from scaling.conformance.contract import check_schedule as check_schedule
from scaling.conformance.drawn import NUM_EXAMPLES as NUM_EXAMPLES
from scaling.conformance.drawn import NUM_EXAMPLES_OF_COMMANDS as NUM_EXAMPLES_OF_COMMANDS
from scaling.conformance.drawn import check_drawn as check_drawn
from scaling.conformance.drawn import failure_text as failure_text

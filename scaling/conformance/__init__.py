"""What every aggregator must keep, checked in-process, ranks being threads: for tests and for authors of
aggregators.

`check_drawn` checks the contract on drawn cases, `check` on one, `check_schedule` that a schedule delivers
the sum where the step is taken. An AssertionError or a ScheduleError says which law is broken, and where."""

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

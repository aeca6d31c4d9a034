"""Which cores a rank may run on, and how many threads it has cores for."""

import os
from collections.abc import Sequence
from fractions import Fraction
from typing import Any


def place() -> dict[str, Any]:
    if hasattr(os, "sched_getaffinity"):
        cores = sorted(os.sched_getaffinity(0))
    else:
        cores = list(range(os.cpu_count() or 1))
    return {"host": os.uname().nodename, "affinity": cores}


def threads_that_fit(own: dict[str, Any], places: Sequence[dict[str, Any]]) -> int:
    """So many threads that each has a core, and the ranks that share cores have equal parts of them."""
    here = [set(other["affinity"]) for other in places if other["host"] == own["host"]]
    share = sum(Fraction(1, max(1, sum(core in other for other in here))) for core in own["affinity"])
    return max(1, int(share))

"""What a step waits for the slowest of its ranks, from the spread of one: order statistics."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import NormalDist

HOST_STEP_SD = 0.12
"""Between the steps of one launch of one rank, of steps bound by the processor: 11 to 15% of ResNet-56 on one
H200, eager, at local batches of 16 to 64 (compute-curves-h200). Of several ranks a step takes the slowest."""

MACHINE_SD = 0.01
"""Between launches and machines, of other steps: FCN-R 0.3%, GPT-2 small 0.8% between two machines."""

WAIT_SD = 0.5
"""Of such a wait, relative: tails are longer than a normal one's, or ranks slow down together. Assumed."""


def largest_of(number: int) -> float:
    """The mean of the largest of so many normal values, in deviations (Blom 1958)."""
    return NormalDist().inv_cdf((number - 0.375) / (number + 0.25))


def slowest_of(num_ranks: int, steps: int = 1) -> float:
    """What a step bound by the processor takes on the slowest of so many ranks, over one rank's median.

    Ranks that meet after so many `steps` wait for the slowest sum of these, which scatters less.
    """
    return 1 + HOST_STEP_SD * largest_of(num_ranks) / math.sqrt(steps)


def waiting_ratio(
    step_sd: float | None, now: Sequence[int], measured: Sequence[int], steps: int = 1
) -> float:
    """Of a step, what it waits for the slowest rank and node, beyond what was measured with fewer.

    Args:
        step_sd: relative, of one rank's steps; None: not known.
        now, measured: ranks of each node, and where the step was measured.
        steps: after which the ranks meet; their scatter evens out, what nodes differ by stays.
    """
    of_steps = (step_sd or 0.0) / math.sqrt(steps) * (largest_of(sum(now)) - largest_of(sum(measured)))
    of_nodes = MACHINE_SD * (largest_of(len(now)) - largest_of(len(measured)))
    return math.hypot(max(0.0, of_steps), max(0.0, of_nodes))

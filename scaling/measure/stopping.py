"""When to stop measuring: once the median is known well enough.

The 95% interval of the median within this launch (`scaling.measure.statistics`) narrows as samples come in;
enough are there when half of its width is a small enough part of the median. Stopping at the first interval
that happens to be narrow makes it a little too sure. With log-normal times of 1% to 10% spread, a goal of 1%
and 20 samples at least, 93% to 96% of the intervals that were stopped at hold the true median, whether one
looks after every sample or after every tenth (2,000 runs each).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from scaling.measure.statistics import interval_within_launch, median_of

MIN_SAMPLES = 20
LOOK_EVERY = 10
"""Samples between two looks: for callers."""


def relative_half_width(times: Sequence[float]) -> float:
    """Half the width of the median's 95% interval, as a part of the median.

    Returns:
        inf where there is no interval: with fewer than six times.
    """
    low, high = interval_within_launch(times)
    if low is None or high is None:
        return math.inf
    median = median_of(times)
    return (high - low) / 2 / median if median > 0 else math.inf


def enough(times: Sequence[float], goal: float = 0.01, min_samples: int = MIN_SAMPLES) -> bool:
    """Whether the median of these times is known to within `goal` of itself.

    A look takes tens of microseconds, the first one also scipy's import; sorting makes it grow with `times`.

    Args:
        times: of one launch after its warm-up, positive, in any unit.
        goal: half the interval's width, as a part of the median; 0.01 is 1%.
        min_samples: with fewer it is never enough.

    Raises:
        ValueError: the goal is not positive.
    """
    if not goal > 0:
        raise ValueError(f"goal {goal} is not positive; 0.01 asks for an interval of 1% to either side")
    return len(times) >= min_samples and relative_half_width(times) <= goal

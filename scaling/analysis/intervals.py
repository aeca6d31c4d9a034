"""Whether two values differ, by their 95% intervals and by the noise floor of A/A pairs."""

from __future__ import annotations

End = float | None
"""Of an interval; None where it does not exist."""


def overlap(low_a: End, high_a: End, low_b: End, high_b: End) -> bool | None:
    """Whether two intervals share a point; None where one of them does not exist."""
    if low_a is None or high_a is None or low_b is None or high_b is None:
        return None
    return low_a <= high_b and low_b <= high_a


def within_noise(first: float, second: float, *floors: float | None) -> bool:
    """Whether two medians differ by no more than two measurements of the very same do.

    Args:
        first, second: the medians.
        floors: noise floors of both, as ratios; None where none was measured.
    """
    known = [floor for floor in floors if floor is not None]
    return bool(known) and abs(first - second) <= max(known) * (first + second) / 2

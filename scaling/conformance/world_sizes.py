"""World sizes as a command line gives them, and as a line shows them."""

from __future__ import annotations

import re
from collections.abc import Sequence

from scaling.errors import StudyError

MAX_WORLD_SIZE = 1024  # at this size a ring is checked in a second; transfers grow with the square of it


def parse_world_sizes(text: str) -> list[int]:
    """Numbers and ranges, `1-8,16`, as an ascending list.

    Raises:
        StudyError: it is something else, or has a number below 1.
    """
    sizes: set[int] = set()
    for part in text.split(","):
        match = re.fullmatch(r"\s*(\d{1,9})\s*(?:-\s*(\d{1,9})\s*)?", part)
        first, last = (int(match[1]), int(match[2] or match[1])) if match else (0, 0)
        if not 1 <= first <= last <= MAX_WORLD_SIZE:
            raise StudyError(
                f"--world-sizes {text!r:.60}: allowed are numbers from 1 to {MAX_WORLD_SIZE} and ranges, as "
                "in 1-8,16"
            )
        sizes.update(range(first, last + 1))
    return sorted(sizes)


def spelled(sizes: Sequence[int]) -> str:
    """`1-8, 16 ranks`."""
    runs: list[list[int]] = []
    for size in sizes:
        if runs and runs[-1][-1] == size - 1:
            runs[-1].append(size)
        else:
            runs.append([size])
    texts = [", ".join(map(str, run)) if len(run) < 3 else f"{run[0]}-{run[-1]}" for run in runs]
    return f"{', '.join(texts)} rank{'s' if list(sizes) != [1] else ''}"

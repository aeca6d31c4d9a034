"""The arms: what each run of the script is, in which order, and the command of one worker."""

from __future__ import annotations

import random
import re
from collections.abc import Sequence

REPEATED = ("baseline", "aa", "no_exchange", "hook_control", "cached_input")
"""Run in every launch, interleaved: what the answers compare."""

ONCE = ("marked", "one_worker")
"""Run once: shown as seen once, without a verdict."""

_WORKERS = re.compile(r"--nproc[-_]per[-_]node")


def order(launches: int, seed: int, arms: Sequence[str] = (*REPEATED, *ONCE)) -> list[tuple[int, str]]:
    """(launch, arm) as they run: each launch has its arms in an order of its own, the others come last."""
    draw = random.Random(seed)
    runs: list[tuple[int, str]] = []
    for launch in range(launches):
        repeated = [arm for arm in REPEATED if arm in arms]
        draw.shuffle(repeated)
        runs += [(launch, arm) for arm in repeated]
    return runs + [(0, arm) for arm in ONCE if arm in arms]


def one_worker(command: Sequence[str]) -> list[str] | None:
    """The command with one worker; None where it does not say how many there are.

    Only the launcher's own options count: those after the script belong to the script.
    """
    changed = list(command)
    for index, word in enumerate(command):
        name, is_joined, _ = word.partition("=")
        if word.endswith(".py"):
            return None
        if _WORKERS.fullmatch(name):
            if is_joined:
                changed[index] = f"{name}=1"
                return changed
            if index + 1 < len(command):
                changed[index + 1] = "1"
                return changed
    return None

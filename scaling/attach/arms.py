"""The arms: what each run of the script is, in which order, and the command of one worker."""

from __future__ import annotations

import random
import re
from collections.abc import Sequence

REPEATED = ("baseline", "aa", "no_exchange", "hook_control", "cached_input")
"""Run in every launch, interleaved: what the answers compare."""

BUCKETS = ("buckets_2", "buckets_25", "buckets_200")
"""With DDP's `bucket_cap_mb` replaced."""

ONCE = ("clock", "marked", "threads", "no_debugging", *BUCKETS, "one_worker", "trace")
"""Run once: without a verdict."""

FIRST = ("baseline", "no_exchange")
"""In the first launch: they say which other arms can tell anything."""

_WORKERS = {
    "torchrun": (r"--nproc[-_]per[-_]node", r"--nnodes"),
    "torch.distributed.run": (r"--nproc[-_]per[-_]node", r"--nnodes"),
    "torch.distributed.launch": (r"--nproc[-_]per[-_]node", r"--nnodes"),
    "accelerate": (r"--num[-_]processes", r"--num[-_]machines"),
    "accelerate.commands.launch": (r"--num[-_]processes", r"--num[-_]machines"),
    "srun": (r"-n", r"--ntasks", r"-N", r"--nodes", r"--ntasks-per-node"),
    "mpirun": (r"-np?", r"--np"),
    "mpiexec": (r"-np?", r"--np"),
}
"""Launcher -> its options that say how many workers there are."""

_OF_SEVERAL = ("--multi_gpu", "--multi-gpu")
"""Of accelerate, which refuses it with one worker."""

_OF_NODE = r"--node[-_]rank|--machine[-_]rank"


def order(
    launches: int, seed: int, arms: Sequence[str] = (*REPEATED, *ONCE), often: Sequence[str] = ()
) -> list[tuple[int, str]]:
    """(launch, arm) as they run: each launch has its arms in an order of its own, the others come last.

    Args:
        often: arms that run in every launch though they are not of `REPEATED`.
    """
    draw = random.Random(seed)
    runs: list[tuple[int, str]] = []
    for launch in range(launches):
        repeated = [arm for arm in arms if arm in REPEATED or arm in often]
        draw.shuffle(repeated)
        if not launch:
            repeated.sort(key=lambda arm: FIRST.index(arm) if arm in FIRST else len(FIRST))
        runs += [(launch, arm) for arm in repeated]
    return runs + [(0, arm) for arm in ONCE if arm in arms and arm not in often]


def confirming(launches: int, found: Sequence[str]) -> list[tuple[int, str]]:
    """Two more launches, of arms that ran once and were faster, next to runs in which nothing is changed."""
    first, second = ["baseline", *found, "aa"], [*reversed(found), "baseline", "aa"]
    return [(launches + at, arm) for at, arms in enumerate((first, second)) for arm in arms if found]


def bucket_mb(arm: str) -> float | None:
    """The `bucket_cap_mb` of an arm; None where the script's own stays."""
    return float(arm.partition("_")[2]) if arm in BUCKETS else None


def one_worker(command: Sequence[str]) -> list[str] | None:
    """The command with one worker; None where it does not say how many there are.

    Only the launcher's own options count: those after the script belong to the script.
    """
    changed, options, says_how_many = list(command), "", False
    last, left_out = "", set[int]()
    for index, word in enumerate(command):
        name, is_joined, _ = word.partition("=")
        launcher = next(
            (
                launcher_name
                for launcher_name in _WORKERS
                if word == launcher_name or word.endswith(f"/{launcher_name}")
            ),
            None,
        )
        if launcher is not None and not options:
            options = "|".join(_WORKERS[launcher])
        elif word.endswith(".py") or (options and last in ("-m", "--module")):
            break
        elif options and word in _OF_SEVERAL:
            left_out.add(index)
        elif options and re.fullmatch(f"{options}|{_OF_NODE}", name):
            new = "0" if re.fullmatch(_OF_NODE, name) else "1"
            says_how_many = says_how_many or new == "1"
            if is_joined:
                changed[index] = f"{name}={new}"
            elif index + 1 < len(command):
                changed[index + 1] = new
        elif launcher is None and options and (short := re.fullmatch(r"(-[nN])\d+", word)):
            changed[index] = f"{short[1]}1"
            says_how_many = True
        last = word
    return [word for at, word in enumerate(changed) if at not in left_out] if says_how_many else None

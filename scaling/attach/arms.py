"""Which arms run in which order, and the command of one worker."""

from __future__ import annotations

import random
import re
from collections.abc import Sequence

from scaling.attach.inside.arms import ALL, ARMS

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


def switchable(arms: Sequence[str]) -> list[str]:
    """Those that can be switched within one process: none that is excluded by one before it."""
    chosen: list[str] = []
    for arm in arms:
        excluded_by = ARMS[arm].excluded_by
        if excluded_by != ALL and not set(excluded_by) & set(chosen):
            chosen.append(arm)
    return chosen


def apart(arms: Sequence[str], launch: int, seed: int) -> list[str]:
    """The same, each as a process of its own, in the order of a launch."""
    drawn = switchable(arms)
    random.Random(f"{seed}-{launch}").shuffle(drawn)
    if not launch:
        drawn.sort(key=lambda arm: (arm != "baseline", arm != "no_exchange"))
    return drawn


def one_worker(command: Sequence[str]) -> list[str] | None:
    """The command with one worker; None where it does not say how many there are.

    Only the launcher's own options count: those after the script belong to the script.
    """
    changed, options, says_how_many = list(command), "", False
    last, left_out = "", set[int]()
    for index, word in enumerate(command):
        name, is_joined, _ = word.partition("=")
        launcher = next((known for known in _WORKERS if f"/{word}".endswith(f"/{known}")), None)
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

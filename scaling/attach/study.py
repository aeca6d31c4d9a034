"""Runs all arms of a script in turn and writes what they gave."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from scaling.attach.answer import Measured, answer
from scaling.attach.arms import ONCE, REPEATED, order
from scaling.attach.launch import run_arm
from scaling.attach.records import AttachedFolder
from scaling.errors import AttachError

MOST_FILES = 20_000
"""Files of the working folder that are compared before and after; more are not searched."""


@dataclass(frozen=True)
class Plan:
    """What is run.

    Attributes:
        command: of the user.
        arms: which of `scaling.attach.arms`.
        warmup, steps: of each run; the warm-up is left out.
        launches: of each repeated arm.
        deadline_s: of each run.
        seed: of the order.
    """

    command: Sequence[str]
    arms: Sequence[str]
    warmup: int
    steps: int
    launches: int
    deadline_s: float
    seed: int = 0


def arms_of(names: str | None) -> list[str]:
    """The arms of `a,b`; all without a name. The baseline is always one.

    Raises:
        AttachError: a name is no arm's.
    """
    known = (*REPEATED, *ONCE)
    asked = known if names is None else [name.strip() for name in names.split(",") if name.strip()]
    wrong = [name for name in asked if name not in known]
    if wrong:
        raise AttachError(f"--arms: {wrong[0]!r} is none; allowed are {', '.join(known)}")
    return [name for name in known if name in asked or name == "baseline"]


def attach(plan: Plan, out: Path, say: Callable[[str], None]) -> list[str]:
    """Runs the plan, writes the results folder `out`, and returns the answer's lines.

    Args:
        plan: what is run.
        out: of the results.
        say: takes a line a run.

    Raises:
        AttachError: the folder is not empty, or the first baseline cannot be measured.
    """
    settings = {"arms": list(plan.arms), "warmup": plan.warmup, "steps": plan.steps}
    folder = AttachedFolder(out, plan.command, {**settings, "launches": plan.launches})
    measured, cwd = Measured(), Path.cwd()
    before = _files(cwd, out)
    runs = order(plan.launches, plan.seed, plan.arms)
    runs.remove((0, "baseline"))
    runs.insert(0, (0, "baseline"))  # whether it can be attached to is known before anything else is run
    for position, (launch, arm) in enumerate(runs):
        say(f"{position + 1}/{len(runs)} {arm}, launch {launch + 1}")
        log = out / "launches" / f"{position:03d}-{arm}"
        run = run_arm(
            plan.command, arm, log, warmup=plan.warmup, steps=plan.steps, deadline_s=plan.deadline_s, cwd=cwd
        )
        folder.add(launch, position, run)
        measured.add(launch, run)
        if run.reason is not None:
            say(f"  not measured, because {run.reason}")
            if position == 0:
                raise AttachError(f"the script cannot be measured: {run.reason}; its output is in {log}")
    lines = answer(measured)
    appeared = sorted(_files(cwd, out) - before)
    if appeared:
        say(f"the script made {len(appeared)} files: {', '.join(appeared[:5])}")
    folder.folder.write_text("answer.txt", "\n".join(lines) + "\n")
    return lines


def _files(root: Path, out: Path) -> set[str]:
    """Files below a folder, without those of the results."""
    found: set[str] = set()
    for place, folders, files in os.walk(root):
        folders[:] = [
            name for name in folders if name != "__pycache__" and Path(place, name).resolve() != out.resolve()
        ]
        found.update(os.path.relpath(Path(place, name), root) for name in files)
        if len(found) > MOST_FILES:
            break
    return found

"""One run of the script: the command with the agent in it, ended at its deadline."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from scaling.attach.arms import one_worker

INJECT = Path(__file__).parent / "inject"
END_S = 5.0
"""How long a run's processes have to end when asked."""

TAIL_BYTES = 2000


@dataclass(frozen=True)
class Run:
    """What one run gave.

    Attributes:
        ranks: each rank's record, in their order; empty where it was not measured.
        reason: why it was not measured.
    """

    arm: str
    ranks: list[dict[str, Any]] = field(default_factory=list)
    reason: str | None = None


def run_arm(
    command: Sequence[str], arm: str, out: Path, *, warmup: int, steps: int, deadline_s: float, cwd: Path
) -> Run:
    """Runs the command as this arm in the folder `cwd`; its records and its output go to `out`."""
    words = one_worker(command) if arm == "one_worker" else list(command)
    if words is None:
        return Run(arm, reason="the command has no --nproc-per-node to replace")
    out.mkdir(parents=True)
    path = os.pathsep.join(filter(None, (str(INJECT), os.environ.get("PYTHONPATH"))))
    wanted = json.dumps({"out": str(out.resolve()), "arm": arm, "warmup": warmup, "steps": steps})
    environment = {**os.environ, "PYTHONPATH": path, "WANDB_MODE": "disabled", "SCALING_ATTACH": wanted}
    with (out / "output.log").open("wb") as log:
        try:
            process = subprocess.Popen(
                words, cwd=cwd, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                start_new_session=True,
            )  # fmt: skip
        except OSError as error:
            return Run(arm, reason=f"{words[0]} does not start: {error.strerror}")
        try:
            code = process.wait(deadline_s)
        except subprocess.TimeoutExpired:
            return Run(arm, reason=f"it did not make {warmup + steps} steps in {deadline_s:g} s")
        finally:
            _end(process)
    return _read(arm, out, code)


def _end(process: subprocess.Popen[bytes]) -> None:
    """Ends what is left of the run's session."""
    for kind in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(process.pid, kind)
        except ProcessLookupError:
            return
        try:
            process.wait(END_S)
        except subprocess.TimeoutExpired:
            continue


def _read(arm: str, out: Path, code: int) -> Run:
    ranks = [json.loads(path.read_text()) for path in out.glob("rank*.json")]
    ranks.sort(key=lambda record: int(record["rank"]))
    refused = next((str(rank["refused"]) for rank in ranks if "refused" in rank), None)
    if refused is not None:
        return Run(arm, reason=refused)
    if not ranks:
        return Run(arm, reason=f"it ended with code {code} before its steps were done: {_last_line(out)}")
    if len(ranks) != ranks[0]["world_size"]:
        return Run(arm, reason=f"{len(ranks)} of {ranks[0]['world_size']} ranks made their steps")
    if arm == "cached_input" and not any(rank.get("has_cached_input") for rank in ranks):
        return Run(arm, reason="the script draws its batches from no torch DataLoader")
    return Run(arm, ranks)


def _last_line(out: Path) -> str:
    lines = (out / "output.log").read_bytes()[-TAIL_BYTES:].decode(errors="replace").split("\n")
    return next((line.strip() for line in reversed(lines) if line.strip()), "it wrote nothing")

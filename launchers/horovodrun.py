"""Starts workers on this host with horovodrun, over Gloo."""

from __future__ import annotations

import sys

from launchers.local import LaunchSpec, before_start, why_not_started
from launchers.rank_info import LAUNCHER_VARIABLE

__all__ = ["before_start", "command", "environment", "why_not_started"]


def command(spec: LaunchSpec, python: str = sys.executable) -> list[str]:
    """The command line that starts the workers: what the command `horovodrun` runs."""
    options = ["-np", str(spec.world_size), "--gloo"]
    return [python, "-m", "horovod.runner.launch", *options, python, "-m", spec.module, *spec.arguments]


def environment(spec: LaunchSpec) -> dict[str, str]:
    """The variables that the launch adds to the environment, which horovodrun passes through."""
    return {
        LAUNCHER_VARIABLE: "horovodrun",
        "OMP_NUM_THREADS": str(spec.threads),
        **({"GLOO_SOCKET_IFNAME": "lo"} if sys.platform == "linux" else {}),
    }

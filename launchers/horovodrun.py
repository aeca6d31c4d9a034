"""Starts workers on this host with horovodrun, over Gloo."""

from __future__ import annotations

import sys
from dataclasses import dataclass

from launchers.base import Launcher, LaunchSpec


@dataclass(frozen=True)
class HorovodrunLauncher(Launcher):
    name = "horovodrun"

    def command(self, spec: LaunchSpec, python: str = sys.executable) -> list[str]:
        options = ["-np", str(spec.world_size), "--gloo"]
        return [python, "-m", "horovod.runner.launch", *options, python, "-m", spec.module, *spec.arguments]

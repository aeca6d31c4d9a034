"""Launchers by name: the built-in ones, those of other packages, and a user's own as `module:Class`.

A name comes from a command line, which is a person's own word, and never from a results folder.
"""

from __future__ import annotations

import importlib
import inspect
from importlib.metadata import entry_points

from launchers.base import Launcher

GROUP = "scaling.launchers"  # the entry points by which other packages offer launchers

BUILT_IN = {
    "local": "launchers.local:LocalLauncher",
    "torchrun": "launchers.local:TorchrunLauncher",
    "mpirun": "launchers.local:MpirunLauncher",
    "horovodrun": "launchers.local:HorovodrunLauncher",
    "slurm-torchrun": "launchers.slurm_steps:SlurmTorchrun",
    "slurm-srun": "launchers.slurm_steps:SlurmSrun",
}


def targets() -> dict[str, str]:
    others = {entry.name: entry.value for entry in entry_points(group=GROUP)}
    return {**BUILT_IN, **{name: target for name, target in others.items() if name not in BUILT_IN}}


def launcher_class(name: str) -> type[Launcher]:
    """Of that name, or `module:Class`. ValueError: there is none; lists those that there are."""
    known = targets()
    target = known.get(name, name)
    module, colon, attribute = target.partition(":")
    if not colon:
        raise ValueError(f"no launcher {name!r}; allowed: {', '.join(known)}, or module:Class of your own")
    try:
        launcher = getattr(importlib.import_module(module), attribute)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # the module is the user's, and may raise anything; SystemExit too
        raise ValueError(f"launcher {name!r}: cannot load {target}: {error}") from error
    if not (isinstance(launcher, type) and issubclass(launcher, Launcher)) or inspect.isabstract(launcher):
        raise ValueError(
            f"launcher {name!r} is {launcher!r}; it must be a launchers.base.Launcher with a command()"
        )
    return launcher

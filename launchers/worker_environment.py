"""In what workers start: an interpreter, a folder, variables. Usually the command's own."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True)
class WorkerEnvironment:
    """What workers of this host are started with.

    Attributes:
        folder: in which they start, and from which Python imports first; None: the command's.
        variables: set in addition to the command's; None: removed from them.
    """

    python: str = sys.executable
    folder: Path | None = None
    variables: Mapping[str, str | None] = field(default_factory=dict)

    def variables_from(self, environ: Mapping[str, str]) -> dict[str, str]:
        merged = {**environ, **self.variables}
        return {name: value for name, value in merged.items() if value is not None}

    def shown(self, command: Sequence[str]) -> str:
        """The command as it is typed in a shell, with what is particular to this environment."""
        folder = [f"cd {shlex.quote(str(self.folder))} &&"] if self.folder else []
        removed = [word for name, value in self.variables.items() if value is None for word in ("-u", name)]
        changed = [f"{name}={value}" for name, value in self.variables.items() if value is not None]
        words = ["env", *removed, *changed] if self.variables else []
        return " ".join([*folder, shlex.join([*words, *command])])


THIS_ENVIRONMENT = WorkerEnvironment()

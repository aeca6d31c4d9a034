"""A results folder for many readers at once: each record and the environment are read from the disk once."""

from __future__ import annotations

from functools import cached_property
from typing import Any

from scaling.store.folder import ResultsFolder
from scaling.store.records import RunRecord


class Snapshot(ResultsFolder):
    """Shows the runs as they were when they were first asked for; nobody may change what it gives."""

    @classmethod
    def of(cls, folder: ResultsFolder) -> Snapshot:
        """Of a folder; itself where it is one."""
        return folder if isinstance(folder, cls) else cls(folder.path)

    @cached_property
    def _runs(self) -> list[RunRecord]:
        return super().runs()

    @cached_property
    def _environment(self) -> dict[str, Any]:
        return super().environment()

    def runs(self) -> list[RunRecord]:
        return list(self._runs)

    def environment(self) -> dict[str, Any]:
        return self._environment

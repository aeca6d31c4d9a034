"""Runs that were killed: their records say "running", but no process is left."""

from __future__ import annotations

import platform

from scaling.store import ResultsFolder, RunRecord

KILLED = "killed"
"""What such a run is called; its record stays `running`, and the next launch plans it anew."""


def is_killed(record: RunRecord, folder: ResultsFolder) -> bool:
    """Whether that run was killed on this host; runs of other hosts cannot be checked."""
    if record.state != "running" or record.launch.get("host") != platform.node():
        return False
    if folder.is_locked() or folder.is_locked(f".{record.cell['world_size']}"):
        return False
    # Between the two looks, at the record and at the lock, it may have ended.
    return folder.run(record.cell_id, record.repeat).state == "running"


def seen_state(record: RunRecord, folder: ResultsFolder) -> str:
    """The record's state, or KILLED."""
    return KILLED if is_killed(record, folder) else record.state

"""What the store says when a disk, a quota or a limit of the size of files is used up."""

from __future__ import annotations

import errno
import os
from pathlib import Path

from scaling.errors import DiskFullError

REASONS = {
    errno.ENOSPC: "the disk is full",
    errno.EDQUOT: "the quota of disk space is used up",
    errno.EFBIG: "the limit of the size of a file is reached (ulimit -f)",
}

MARK = "cannot be written: "


def disk_full(path: Path, error: OSError, num_bytes: int | None = None) -> DiskFullError | None:
    """What is wrong and what to do, where a full disk kept `num_bytes` from being written; else None."""
    reason = REASONS.get(error.errno or 0)
    if reason is None:
        return None
    return DiskFullError(
        f"{path}: {MARK}{reason}{_room(path, num_bytes)}; free some space there (launches/*.log and "
        "runs/*/*/attempt-* of a results folder are not needed), and the same command goes on; or use "
        "another folder. What was measured before is complete and can be read"
    )


def _room(path: Path, num_bytes: int | None) -> str:
    """What is needed and what is free, in brackets; empty where neither is known."""
    there = next((parent for parent in (path, *path.absolute().parents) if parent.exists()), None)
    needed = "" if num_bytes is None else f"{_size(num_bytes)} needed"
    try:
        status = os.statvfs(there) if there else None
    except OSError:
        status = None
    free = ""
    if status is not None:
        no_files = status.f_files and not status.f_favail
        free = (
            "no further files are possible"
            if no_files
            else f"{_size(status.f_bavail * status.f_frsize)} free"
        )
    figures = ", ".join(filter(None, [needed, free]))
    return f" ({figures})" if figures else ""


def _size(num_bytes: int) -> str:
    return f"{num_bytes / 1e6:.1f} MB" if num_bytes >= 1e6 else f"{num_bytes / 1e3:.1f} kB"

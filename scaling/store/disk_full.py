"""What the store says when a disk, a quota or a limit of the size of files is used up."""

from __future__ import annotations

import errno
import shutil
from pathlib import Path

from scaling.errors import DiskFullError

REASONS = {
    errno.ENOSPC: "the disk is full",
    errno.EDQUOT: "the quota of disk space is used up",
    errno.EFBIG: "the limit of the size of a file is reached (ulimit -f)",
}

MARK = "cannot be written: "


def disk_full(path: Path, error: OSError) -> DiskFullError | None:
    """What is wrong and what to do, where that is the reason why a path cannot be written; else None."""
    reason = REASONS.get(error.errno or 0)
    if reason is None:
        return None
    return DiskFullError(
        f"{path}: {MARK}{reason}{_free(path)}; free some space there (launches/*.log and runs/*/*/attempt-* "
        "of --out are not needed), and the same command goes on; or choose another --out. What was measured "
        "before is complete and can be read"
    )


def _free(path: Path) -> str:
    there = next((one for one in (path, *path.absolute().parents) if one.exists()), None)
    try:
        return f" ({shutil.disk_usage(there).free / 1e6:.1f} MB are free)" if there else ""
    except OSError:
        return ""

"""Data sets, and folders that studies write to."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path

from scaling.doctor.line import CheckResult
from scaling.errors import ScalingError
from scaling.workloads.registry import DATASETS, create_dataset

MIN_FREE_BYTES = 1 << 30


def data_sets() -> CheckResult:
    """Which data sets can be loaded without a download."""
    there: list[str] = []
    missing: list[str] = []
    try:
        for name in DATASETS.targets():
            (there if create_dataset(name).available() else missing).append(name)
    except ScalingError as error:
        return CheckResult("data sets", "error", str(error), "correct SCALING_DATA_DIR, or unset it")
    text = ", ".join(there) + (f"; not here: {', '.join(missing)}" if missing else "")
    if missing:
        fix = "set SCALING_DATA_DIR to a folder that holds them; else a study's first run downloads them"
        return CheckResult("data sets", "warning", text, fix)
    return CheckResult("data sets", "ok", text)


def write_access(environ: Mapping[str, str], here: Path) -> CheckResult:
    """Whether results, and downloads, can be written.

    Args:
        environ: for the place of the user's cache.
        here: the current folder, in which results/ is.
    """
    cache = Path(environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "scaling-study"
    for what, folder in (("results", here / "results"), ("the cache", cache)):
        nearest = _nearest(folder)
        if not _can_write(nearest):
            fix = "use --out elsewhere" if what == "results" else "set XDG_CACHE_HOME to a writable folder"
            return CheckResult("write access", "error", f"{nearest} cannot be written, for {what}", fix)
    free = shutil.disk_usage(_nearest(here / "results")).free
    text = f"results in {here / 'results'}, {free / 1e9:.1f} GB free; cache in {cache}"
    if free < MIN_FREE_BYTES:
        return CheckResult("write access", "warning", text, "make room, or use --out elsewhere")
    return CheckResult("write access", "ok", text)


def _nearest(path: Path) -> Path:
    """The nearest of its folders that exists."""
    while not path.exists() and path != path.parent:
        path = path.parent
    return path


def _can_write(folder: Path) -> bool:
    """By trying: rights alone do not tell of read-only mounts, nor of what root may."""
    if not os.path.isdir(folder):
        return False
    try:
        with tempfile.TemporaryFile(dir=folder):
            return True
    except OSError:
        return False

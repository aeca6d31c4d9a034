"""Ports, shared memory, limits, NUMA, the clock, data sets, and folders that studies write to."""

from __future__ import annotations

import os
import platform
import resource
import shutil
import socket
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import closing
from pathlib import Path

from launchers.base import require_loopback
from scaling.doctor.line import CheckResult, failure, ok, warning
from scaling.errors import ScalingError
from scaling.workloads.registry import DATASETS, create_dataset
from topologies.detect_host import SYS, cpu_governors, node_cpus

MIN_OPEN_FILES = 1024
MIN_LOCKED_BYTES = 1 << 30
MIN_SHARED_BYTES = 1 << 30
MIN_FREE_BYTES = 1 << 30
UNLIMITED = resource.RLIM_INFINITY


def ports(environ: Mapping[str, str], resolve: Callable[[str], object] = socket.gethostbyname) -> CheckResult:
    try:
        require_loopback()
    except ValueError as error:
        problem, _, mend = str(error).partition("; ")
        return failure("ports", problem, mend)
    if taken := _taken_port(environ):
        return failure("ports", f"MASTER_PORT {taken} is taken", "set another, or unset MASTER_PORT")
    name = platform.node()
    try:
        resolve(name)
    except OSError:
        fix = f"add {name} to /etc/hosts, or set GLOO_SOCKET_IFNAME (lo on one host)"
        return warning("ports", f"loopback works, but this host's name, {name}, has no address", fix)
    return ok("ports", f"loopback works, {name} has an address")


def _taken_port(environ: Mapping[str, str]) -> str | None:
    """MASTER_PORT, if it is set for workers yet to be started and something listens there."""
    port = environ.get("MASTER_PORT", "")
    if not port.isdigit() or "RANK" in environ:
        return None
    with closing(socket.socket()) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("", int(port)))
        except (OSError, OverflowError):
            return port
    return None


def shared_memory(folder: Path = Path("/dev/shm")) -> CheckResult:  # noqa: S108 (it is looked at)
    if not folder.is_dir():
        return warning("shared memory", f"no {folder}: temporary files are used, which may be slow")
    try:
        status = os.statvfs(folder)
    except OSError as error:
        return failure("shared memory", f"{folder}: {error}", "mount a tmpfs there")
    if not os.access(folder, os.W_OK):
        return failure("shared memory", f"{folder} cannot be written", f"make {folder} writable")
    size, free = status.f_blocks * status.f_frsize, status.f_bavail * status.f_frsize
    text = f"{free / 1e9:.1f} of {size / 1e9:.1f} GB free in {folder}"
    if free < MIN_SHARED_BYTES:
        return warning("shared memory", text, "enlarge it (docker: --shm-size=8g) for host aggregators")
    return ok("shared memory", text)


def limits(has_gpus: bool, limit: Callable[[int], tuple[int, int]] = resource.getrlimit) -> CheckResult:
    files, locked = limit(resource.RLIMIT_NOFILE)[0], limit(resource.RLIMIT_MEMLOCK)[0]
    shown = "unlimited" if locked == UNLIMITED else f"{locked / 1e6:.0f} MB"
    text = f"{'unlimited' if files == UNLIMITED else files} open files, {shown} of locked memory"
    if files != UNLIMITED and files < MIN_OPEN_FILES:
        return warning("limits", text, f"ulimit -n {MIN_OPEN_FILES}")
    if has_gpus and locked != UNLIMITED and locked < MIN_LOCKED_BYTES:
        return warning("limits", f"{text}: pinning host memory may fail", "ulimit -l unlimited")
    return ok("limits", text)


def numa(num_usable: int, num_present: int | None = None, sys: Path = SYS) -> CheckResult:
    nodes = max(1, len(node_cpus(sys)))
    present = num_present or os.cpu_count() or num_usable
    text = f"{nodes} node{'s' if nodes > 1 else ''}, {num_usable} of {present} cores may be used"
    if num_usable < present:
        return warning("NUMA", text, "only if that is not meant: see taskset, cgroups, the job's request")
    return ok("NUMA", text)


def load(disturbed_by: str | None) -> CheckResult:
    """What other programs take; "" where it is little, None among ranks, which load the cores themselves."""
    if disturbed_by is None:
        return ok("load", "not looked at beside other ranks")
    if disturbed_by:
        fix = "end them, or measure when the machine is idle"
        return warning("load", f"{disturbed_by}: times will be too long and scatter", fix)
    return ok("load", "the cores are idle, or nearly")


def clock(
    read: Callable[[], float] = time.perf_counter,
    source: Path = SYS / "devices/system/clocksource/clocksource0/current_clocksource",
    sys: Path = SYS,
) -> CheckResult:
    step_s = min(filter(None, (abs(read() - read()) for _ in range(1000))), default=0.0)
    name = source.read_text(encoding="utf-8").strip() if source.exists() else platform.system()
    text = f"{name}, steps of {step_s * 1e9:.0f} ns"
    if step_s > 1e-6 or name in ("acpi_pm", "hpet", "jiffies"):
        return warning("clock", f"{text}: short phases are not timed well", "boot with clocksource=tsc")
    governors = cpu_governors(sys)
    if governors and set(governors) & {"powersave", "conservative", "ondemand"}:
        fix = "cpupower frequency-set -g performance"
        return warning("clock", f"{text}; cores change their speed ({', '.join(governors)})", fix)
    return ok("clock", text)


def data_sets() -> CheckResult:
    there, missing = list[str](), list[str]()
    try:
        for name in DATASETS.targets():
            (there if create_dataset(name).available() else missing).append(name)
    except ScalingError as error:
        return failure("data sets", str(error), "correct SCALING_DATA_DIR, or unset it")
    text = ", ".join(there) + (f"; not here: {', '.join(missing)}" if missing else "")
    if missing:
        fix = "set SCALING_DATA_DIR to a folder that holds them; else a study's first run downloads them"
        return warning("data sets", text, fix)
    return ok("data sets", text)


def write_access(environ: Mapping[str, str], here: Path) -> CheckResult:
    cache = Path(environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "scaling-study"
    for what, folder in (("results", here / "results"), ("the cache", cache)):
        nearest = _nearest(folder)
        if not _can_write(nearest):
            fix = "use --out elsewhere" if what == "results" else "set XDG_CACHE_HOME to a writable folder"
            return failure("write access", f"{nearest} cannot be written, for {what}", fix)
    free = shutil.disk_usage(_nearest(here / "results")).free
    text = f"results in {here / 'results'}, {free / 1e9:.1f} GB free; cache in {cache}"
    if free < MIN_FREE_BYTES:
        return warning("write access", text, "make room, or use --out elsewhere")
    return ok("write access", text)


def _nearest(path: Path) -> Path:
    return next((folder for folder in (path, *path.parents) if folder.exists()), path)


def _can_write(folder: Path) -> bool:
    """By trying: rights alone do not tell of read-only mounts, nor of what root may."""
    if not os.path.isdir(folder):
        return False
    try:
        with tempfile.TemporaryFile(dir=folder):
            return True
    except OSError:
        return False

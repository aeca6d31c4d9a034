"""Looks at this machine as a study would find it: `scaling doctor`. Each check gives a `CheckResult`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from launchers.rank_info import RankError, RankInfo
from scaling.doctor import devices, host, software
from scaling.doctor.line import CheckResult, failure, ok
from topologies.detect import load_text, num_usable_cores

__all__ = ["CheckResult", "examine", "rank"]


def rank(environ: Mapping[str, str]) -> CheckResult:
    try:
        return ok("rank", RankInfo.from_env(environ).describe())
    except RankError as error:
        if str(error).startswith("no launcher's variables are set"):
            return ok("rank", "none: no launcher has started this process")
        return failure("rank", str(error), "unset what another launch has left, or start by one launcher")


def examine(environ: Mapping[str, str], here: Path) -> list[CheckResult]:
    """All lines; under a launcher, ranks other than 0 say their rank alone."""
    rank_line = rank(environ)
    if rank_line.state == "ok" and not rank_line.text.startswith(("none", "rank 0 ")):
        return [rank_line]
    is_alone = rank_line.text.startswith("none")
    load = host.load(load_text() if is_alone else None)  # before this process takes any
    gpus, num_cores = devices.look(), num_usable_cores()
    return [
        software.versions(),
        devices.devices(gpus, num_cores),
        devices.peer_access(gpus, environ),
        devices.nccl(gpus, environ),
        software.triton(bool(gpus.usable)),
        software.launchers(),
        software.mpi(),
        software.horovod(bool(gpus.usable)),
        rank_line,
        host.ports(environ),
        host.shared_memory(),
        host.limits(bool(gpus.usable)),
        host.numa(num_cores),
        load,
        host.data_sets(),
        host.write_access(environ, here),
        host.clock(),
    ]

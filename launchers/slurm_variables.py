"""What Slurm's variables say: the hosts of a job, the tasks on each, where the workers meet."""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

FIRST_PORT = 20_000
NO_VALUE = "(null)"

NUM_PORTS = 10_000
"""The rendezvous port is FIRST_PORT + job id modulo NUM_PORTS: below the ports that systems deal out
themselves (from 32768 on Linux), and another one for each of the jobs that may share a host."""


def first_host(node_list: str) -> str:
    """`gpu-a01` of `gpu-a[01-03,7],login`, as `scontrol show hostnames`, which is not installed on every
    compute node. ValueError: it holds no name."""
    first = re.match(r"(?:[^,\[\]\s]|\[[^\[\]]+\])+", node_list)
    if first is None or node_list.strip() == NO_VALUE:
        raise ValueError(f"no host name in the node list {node_list!r}")
    return re.sub(r"\[([^,\]-]+)[^\]]*\]", r"\1", first[0])


def task_counts(text: str) -> list[int]:
    """On each node: [2, 2, 1] of Slurm's `2(x2),1`. ValueError: another form."""
    counts: list[int] = []
    for part in text.split(","):
        match = re.fullmatch(r"(\d+)(?:\(x(\d+)\))?", part.strip())
        if match is None:
            raise ValueError(f"{text!r} does not say how many tasks each node has")
        counts += [int(match[1])] * int(match[2] or 1)
    return counts


def _nodes(environ: Mapping[str, str]) -> str:
    lists = (environ.get(name, "") for name in ("SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST"))
    return next((nodes for nodes in lists if nodes not in ("", NO_VALUE)), "")


def require_rank_0_there(
    environ: Mapping[str, str], rank: int, local_rank: int, local_world_size: int
) -> None:
    """ValueError: rank 0 is not on the host where the ranks would meet. Slurm sorts its node lists; with
    SLURM_HOSTFILE (`--distribution=arbitrary`) ranks go by its order."""
    meeting = first_host(_nodes(environ))
    set_host, short = environ.get("MASTER_ADDR") or meeting, meeting.partition(".")[0]
    if set_host.partition(".")[0] != short:  # an address or another network's name: only rank 0 can tell
        return
    of_rank_0 = _host_of_rank_0(environ, rank)
    if of_rank_0 is None:
        node = environ.get("SLURM_NODEID", "")
        if not node.isdecimal() or rank == int(node) * local_world_size + local_rank:
            return
        of_rank_0 = "another one"
    if of_rank_0.partition(".")[0] != short:
        raise ValueError(
            f"the ranks would meet on {meeting}, and rank 0 is on {of_rank_0} (SLURM_HOSTFILE, or "
            "--distribution): give the hosts in the order of their names, or srun --distribution=block"
        )


def _host_of_rank_0(environ: Mapping[str, str], rank: int) -> str | None:
    """Its name, by the host file, or by its own variables; None: not known here."""
    with suppress(OSError):
        lines = Path(environ.get("SLURM_HOSTFILE") or "/dev/null").read_text(encoding="utf-8").split()
        if lines:
            return lines[0]
    if ordered := environ.get("SLURM_ARBITRARY_NODELIST", "").replace(NO_VALUE, ""):
        return first_host(ordered)
    return (environ.get("SLURMD_NODENAME") or None) if rank == 0 else None


def rendezvous(environ: Mapping[str, str]) -> tuple[str, int]:
    """MASTER_ADDR and MASTER_PORT where they are set, else derived. ValueError: names a wrong variable."""
    host = environ.get("MASTER_ADDR") or first_host(_nodes(environ))
    port, job_id = environ.get("MASTER_PORT", ""), environ.get("SLURM_JOB_ID", "")
    if port and not (port.isdecimal() and 0 < int(port) < 65_536):
        raise ValueError(f"MASTER_PORT is {port!r}; it must be a number from 1 to 65535")
    if not port and not job_id.isdecimal():
        raise ValueError("neither MASTER_PORT nor SLURM_JOB_ID is set to a number")
    return host, int(port) if port else FIRST_PORT + int(job_id) % NUM_PORTS

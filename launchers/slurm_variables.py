"""What Slurm's variables say: the hosts of a job, the tasks on each, where the workers meet."""

from __future__ import annotations

import re
from collections.abc import Mapping

FIRST_PORT = 20_000
NUM_PORTS = 10_000
"""The rendezvous port is FIRST_PORT + job id modulo NUM_PORTS: below the ports that systems deal out
themselves (from 32768 on Linux), and another one for each of the jobs that may share a host."""


def first_host(node_list: str) -> str:
    """The first name of a list in Slurm's syntax: `gpu-a01` of `gpu-a[01-03,7],login`.

    The same as `scontrol show hostnames LIST | head -n 1`, which is not installed on every compute node.

    Raises:
        ValueError: it holds no name.
    """
    first = re.match(r"(?:[^,\[\]\s]|\[[^\[\]]+\])+", node_list)
    if first is None:
        raise ValueError(f"no host name in the node list {node_list!r}")
    return re.sub(r"\[([^,\]-]+)[^\]]*\]", r"\1", first[0])


def task_counts(text: str) -> list[int]:
    """Tasks on each node, in order: [2, 2, 1] of Slurm's `2(x2),1`.

    Raises:
        ValueError: it is of another form.
    """
    counts: list[int] = []
    for part in text.split(","):
        match = re.fullmatch(r"(\d+)(?:\(x(\d+)\))?", part.strip())
        if match is None:
            raise ValueError(f"{text!r} does not say how many tasks each node has")
        counts += [int(match[1])] * int(match[2] or 1)
    return counts


def rendezvous_port(job_id: str) -> int:
    """The port at which the workers of that job meet.

    Raises:
        ValueError: the id is no number.
    """
    return FIRST_PORT + int(job_id) % NUM_PORTS


def rendezvous(environ: Mapping[str, str]) -> tuple[str, int]:
    """Host and port at which workers meet: MASTER_ADDR and MASTER_PORT where they are set, else derived.

    Raises:
        ValueError: a variable is missing or is nothing of its kind; named in the message.
    """
    nodes = environ.get("SLURM_STEP_NODELIST") or environ.get("SLURM_JOB_NODELIST", "")
    host = environ.get("MASTER_ADDR") or first_host(nodes)
    port = environ.get("MASTER_PORT", "")
    if port and not (port.isdecimal() and 0 < int(port) < 65_536):
        raise ValueError(f"MASTER_PORT is {port!r}; it must be a number from 1 to 65535")
    if not port and not environ.get("SLURM_JOB_ID", "").isdecimal():
        raise ValueError("neither MASTER_PORT nor SLURM_JOB_ID is set to a number")
    return host, int(port) if port else rendezvous_port(environ["SLURM_JOB_ID"])

"""What a launcher is: the command line and the variables by which the workers of a launch start."""

from __future__ import annotations

import errno
import shlex
import socket
import sys
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

from launchers.rank_info import FIELDS, LAUNCHER_VARIABLE, RANK_VARIABLES

JOIN_TIMEOUT_VARIABLE = "SCALING_JOIN_TIMEOUT_S"

MEETING_TOKEN_VARIABLE = "SCALING_MEETING_TOKEN"  # noqa: S105 (its name)
"""A text that only workers of the launch know: what they say at the start of it is signed by it."""

LOOPBACK = "127.0.0.1"
LOOPBACK_LIMIT_S = 5.0

JOIN_TIMEOUT_S = 300.0  # without the variable: nodes of a batch job may come minutes apart


def join_timeout_s(environ: Mapping[str, str]) -> float:
    """SCALING_JOIN_TIMEOUT_S, or the default. Raises ValueError: it is no positive number."""
    text = environ.get(JOIN_TIMEOUT_VARIABLE, "") or str(JOIN_TIMEOUT_S)
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < float("inf"):
        raise ValueError(f"{JOIN_TIMEOUT_VARIABLE} is {text!r}; it must be a number of seconds above 0")
    return value


def require_loopback() -> None:
    """Raises a ValueError where workers of this host would wait for each other in vain."""
    try:
        with closing(socket.create_server((LOOPBACK, 0))) as server:
            socket.create_connection(server.getsockname(), timeout=LOOPBACK_LIMIT_S).close()
    except OSError as error:
        mend = "bring up loopback (`ip link set lo up`), or allow connections to it"
        if error.errno in (errno.EADDRINUSE, errno.EADDRNOTAVAIL) and _has_loopback():
            mend = "no port is free: end what holds them, or widen net.ipv4.ip_local_port_range"
        raise ValueError(
            f"workers of this host meet at {LOOPBACK}, which cannot be used: "
            f"{error.strerror or error}; {mend}"
        ) from error


def _has_loopback() -> bool:
    """Whether the address is this host's: datagrams have ports of their own."""
    try:
        with socket.socket(type=socket.SOCK_DGRAM) as tried:
            tried.bind((LOOPBACK, 0))
    except OSError as error:
        return error.errno == errno.EADDRINUSE
    return True


@dataclass(frozen=True)
class WorkerEnvironment:
    """`folder`: in which workers start, and from which Python imports first (None: the command's);
    `variables`: set in addition to the command's (None: removed from them)."""

    python: str = sys.executable
    folder: Path | None = None
    variables: Mapping[str, str | None] = field(default_factory=dict)

    def variables_from(self, environ: Mapping[str, str]) -> dict[str, str]:
        merged = {**environ, **self.variables}
        return {name: value for name, value in merged.items() if value is not None}

    def shown(self, command: Sequence[str]) -> str:
        folder = [f"cd {shlex.quote(str(self.folder))} &&"] if self.folder else []
        removed = [word for name, value in self.variables.items() if value is None for word in ("-u", name)]
        changed = [f"{name}={value}" for name, value in self.variables.items() if value is not None]
        words = ["env", *removed, *changed] if self.variables else []
        return " ".join([*folder, shlex.join([*words, *command])])


THIS_ENVIRONMENT = WorkerEnvironment()


@dataclass(frozen=True)
class LaunchSpec:
    world_size: int
    threads: int
    module: str
    arguments: Sequence[str]


class Launcher(ABC):
    """Starts workers on this host, unless a subclass says otherwise. `name`: what `--launcher` and records
    call it; `is_mpi`: aggregators over MPI can run; `leaves_the_rest`: cells that its launches cannot run are
    another job's; `rank_variables`: field of `RankInfo` -> variable that says it, where none of
    `rank_info.TABLES` does; `environment` then has to add MASTER_ADDR and MASTER_PORT, at which rank 0 is
    reached."""

    name: ClassVar[str]
    is_mpi: ClassVar[bool] = False
    forks_workers: ClassVar[bool] = False
    leaves_the_rest: ClassVar[bool] = False
    rank_variables: ClassVar[Mapping[str, str]] = {}

    @classmethod
    def from_environment(cls, environ: Mapping[str, str], workers_per_node: int | None = None) -> Launcher:
        """The launcher as it is here. `workers_per_node`: at most, where there are several nodes (None: as
        many as a node has GPUs). Raises ValueError: it cannot be used here; what to do."""
        if workers_per_node is not None:
            raise ValueError(f"--workers-per-node is for the launchers of Slurm; {cls.name} has one node")
        return cls.find()

    @classmethod
    def find(cls) -> Launcher:
        """The launcher of this host. Raises ValueError: there is none."""
        return cls()

    @property
    def num_nodes(self) -> int:
        return 1

    @abstractmethod
    def command(self, spec: LaunchSpec, python: str = sys.executable) -> list[str]:
        """It ends when the workers have ended. ValueError: the nodes do not hold them."""

    def environment(self, spec: LaunchSpec) -> dict[str, str]:
        """The variables that the launch adds to the environment, which is passed through whole."""
        own = self.rank_variables
        return {
            LAUNCHER_VARIABLE: self.name,
            # torchrun would set 1, with a warning; the worker sets its thread count itself as well.
            "OMP_NUM_THREADS": str(spec.threads),
            # One host: Gloo need not resolve the host's name, which on some machines fails.
            **({"GLOO_SOCKET_IFNAME": "lo"} if sys.platform == "linux" else {}),
            **({RANK_VARIABLES: ",".join(own[name] for name in FIELDS)} if own else {}),
        }

    def before_start(self) -> None:  # noqa: B027  # most need nothing
        """To be called before each launch; most wait for nothing. ValueError: none can be started now."""

    def why_not_started(self, log: str) -> str | None:
        """Why no worker began, from what a launch printed; None: the launch is tried once more."""
        return None

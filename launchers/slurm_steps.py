"""Starts workers by srun inside a Slurm job, on one node or several: directly, or through torchrun.

A launch has all CPUs and GPUs of its nodes: cells of different sizes differ in nothing else.
"""

from __future__ import annotations

import math
import re
import socket
import sys
import time
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from launchers.base import Launcher, LaunchSpec, join_timeout_s
from launchers.rank_info import LAUNCHER_VARIABLE
from launchers.slurm_variables import rendezvous

PORT_WAIT_S = 5.0  # the launch before may take this long to give the port back


@dataclass(frozen=True)
class SlurmLauncher(Launcher):
    leaves_the_rest = True

    workers_per_node: int
    nodes: int
    host: str
    port: int
    join_timeout_s: float

    @classmethod
    def from_environment(
        cls, environ: Mapping[str, str], workers_per_node: int | None = None
    ) -> SlurmLauncher:
        """`environ`: of a process on the job's first node; `workers_per_node`: at most (None: as many as the
        job has GPUs there). ValueError: this is no Slurm job, or a variable is missing or wrong."""
        nodes, gpus = environ.get("SLURM_JOB_NUM_NODES", ""), environ.get("SLURM_GPUS_ON_NODE", "")
        if not nodes.isdecimal():
            raise ValueError(
                f"{cls.name} starts workers inside a Slurm job, and SLURM_JOB_NUM_NODES is not set; "
                "`scaling submit` makes the job"
            )
        if environ.get("SLURM_NODEID") != "0":
            raise ValueError(
                f"{cls.name} starts workers from the job's first node, as its batch script does "
                "(SLURM_NODEID is not 0): this machine may have other devices and cores"
            )
        if workers_per_node is None and not gpus.isdecimal():
            raise ValueError("the job has no GPUs (SLURM_GPUS_ON_NODE is not set); give --workers-per-node")
        host, port = rendezvous(environ)
        workers = int(gpus) if workers_per_node is None else workers_per_node
        return cls(workers, int(nodes), host, port, join_timeout_s(environ))

    @property
    def num_nodes(self) -> int:
        return self.nodes

    @abstractmethod
    def step(self, nodes: int, workers_per_node: int, python: str, worker: Sequence[str]) -> list[str]:
        """The command line of srun that starts the workers."""

    def command(self, spec: LaunchSpec, python: str = sys.executable) -> list[str]:
        """Raises ValueError: the job's nodes do not hold that many workers, or not equally many each."""
        nodes = nodes_for(spec.world_size, self.workers_per_node)
        if nodes > self.nodes:
            raise ValueError(
                f"{spec.world_size} workers need {nodes} nodes of {self.workers_per_node}; "
                f"the job has {self.nodes}"
            )
        return self.step(nodes, spec.world_size // nodes, python, ["-m", spec.module, *spec.arguments])

    def environment(self, spec: LaunchSpec) -> dict[str, str]:
        return {
            LAUNCHER_VARIABLE: self.name,
            "OMP_NUM_THREADS": str(spec.threads),
            "MASTER_ADDR": self.host,
            "MASTER_PORT": str(self.port),
        }

    def before_start(self) -> None:
        """Waits until the launch before has given the port back. ValueError: something else holds it."""
        deadline = time.monotonic() + PORT_WAIT_S
        while not port_is_free(self.port):
            if time.monotonic() > deadline:
                raise ValueError(
                    f"port {self.port} of {self.host}, at which the workers were to meet, is occupied by "
                    "another program; set MASTER_PORT to a free one in the batch script, or submit again"
                )
            time.sleep(0.1)

    def why_not_started(self, log: str) -> str:
        error = re.search(r"^error: (.+)$", log, re.MULTILINE)
        if error:
            return error[1]
        if "RendezvousTimeoutError" in log or "RendezvousConnectionError" in log:
            return (
                f"not all nodes came within {self.join_timeout_s:g} s; see what is wrong with them, or give "
                "more time with --join-timeout"
            )
        step = re.search(r"^srun: (?:error|fatal): (.+)$", log, re.MULTILINE)
        return f"srun: {step[1]}" if step else "the launch ended before a worker began"


def nodes_for(world_size: int, workers_per_node: int) -> int:
    """As few as hold the launch. ValueError: the workers cannot be spread evenly over them."""
    nodes = -(-world_size // workers_per_node)
    if world_size % nodes:
        raise ValueError(
            f"{world_size} workers do not spread evenly over {nodes} nodes of {workers_per_node}; "
            "use world sizes that do"
        )
    return nodes


def port_is_free(port: int) -> bool:
    with socket.socket() as server:
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            server.bind(("", port))
        except OSError:
            return False
    return True


def srun(nodes: int, tasks_per_node: int) -> list[str]:
    return [
        # With a number of CPUs a task, srun gives the step those of its tasks alone: fewer at smaller sizes.
        "env",
        "--unset=SRUN_CPUS_PER_TASK",
        "--unset=SLURM_CPUS_PER_TASK",
        "srun",
        f"--nodes={nodes}",
        f"--ntasks={nodes * tasks_per_node}",
        f"--ntasks-per-node={tasks_per_node}",
        "--relative=0",  # from the first node on: the workers meet there
        "--distribution=block",  # ranks of a node follow one another, whatever the cluster's default
        "--cpu-bind=none",  # workers share their node's cores as they do under torchrun
        "--kill-on-bad-exit=1",
    ]


@dataclass(frozen=True)
class SlurmSrun(SlurmLauncher):
    name = "slurm-srun"

    def step(self, nodes: int, workers_per_node: int, python: str, worker: Sequence[str]) -> list[str]:
        return [*srun(nodes, workers_per_node), python, *worker]


STORE_TIMEOUT_S = 60  # what torchrun gives a connection to the store of its rendezvous, by default


@dataclass(frozen=True)
class SlurmTorchrun(SlurmLauncher):
    name = "slurm-torchrun"

    def step(self, nodes: int, workers_per_node: int, python: str, worker: Sequence[str]) -> list[str]:
        join = math.ceil(self.join_timeout_s)
        return [
            *srun(nodes, 1),
            python,
            "-m",
            "torch.distributed.run",
            f"--nnodes={nodes}",
            f"--nproc-per-node={workers_per_node}",
            "--max-restarts=0",
            "--rdzv-backend=c10d",
            f"--rdzv-endpoint={self.host}:{self.port}",
            f"--rdzv-conf=join_timeout={join},read_timeout={min(join, STORE_TIMEOUT_S)}",
            *worker,
        ]

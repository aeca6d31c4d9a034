"""A real Slurm on this host: two emulated nodes with fake GPUs, on loopback alone, gone after the tests.

The nodes bear addresses of the loopback network as names, so that they resolve on every machine. The GPUs are
there for Slurm's accounts only: torch sees none, so that studies say `device: cpu`.
"""

import os
import shutil
import socket
import stat
import subprocess
import sys
import tempfile
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from launchers import processes
from tests.conftest import need
from tests.end_to_end.conftest import Scaling, trained
from tests.faults.conftest import found
from tests.waiting import LIMIT_S, wait_until

__all__ = ["found"]

ROOT = Path(__file__).parents[2]
DAEMONS = ("munged", "slurmctld", "slurmd")
NODES = ("127.0.0.1", "127.0.0.2")
NULL_DEVICE = os.makedev(1, 3)
FINAL = ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT")

CONFIGURATION = """\
ClusterName=test
SlurmctldHost=localhost(127.0.0.1)
SlurmctldPort={controller}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.sock,cred_expire=5
CommunicationParameters={listening}
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool.%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.%n.log
TmpFS={folder}/tmp.%n
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SlurmdParameters=config_overrides
MailProg=/bin/true
ReturnToService=2
JobRequeue=0
MinJobAge=86400
KillWait=60
SchedulerParameters=sched_interval=1,bf_interval=1,batch_sched_delay=0,sched_min_interval=0
GresTypes=gpu
PartitionName=debug Nodes={nodes} Default=YES MaxTime=INFINITE State=UP
PartitionName=gpu Nodes={nodes} MaxTime=INFINITE State=UP
"""
NODE = "NodeName={} NodeHostname=localhost NodeAddr={} Port={} CPUs=64 Gres=gpu:{}\n"
OWN_NAME = ("unshare", "--uts", "sh", "-c", 'hostname "$0" && exec "$@"')


def why_no_cluster():
    """What is missing for a cluster on this machine, or None."""
    if sys.platform != "linux":
        return "the emulated Slurm cluster runs on Linux"
    if missing := [name for name in (*DAEMONS, "sbatch") if shutil.which(name) is None]:
        packages = "slurmctld slurmd slurm-client munge"
        return f"not installed: {', '.join(missing)}; Debian: apt-get install {packages}"
    if os.geteuid():
        return "the emulated Slurm cluster is started by root alone"
    with tempfile.TemporaryDirectory() as folder:
        try:
            os.mknod(f"{folder}/gpu", 0o666 | stat.S_IFCHR, NULL_DEVICE)
        except PermissionError:
            return "no device files can be made here, which the emulated Slurm cluster has for GPUs"
    return None


def free_ports(count):
    with ExitStack() as stack:
        servers = [stack.enter_context(socket.socket()) for _ in range(count)]
        for server in servers:
            server.bind(("127.0.0.1", 0))
        return [server.getsockname()[1] for server in servers]


class Cluster:
    """The daemons of one cluster, and Slurm's commands on it.

    Args:
        folder: of its files.
        nodes: their names, loopback addresses.
        gpus: of each.
        named: programs on a node get its name when they ask for their host's.
    """

    def __init__(self, folder, nodes=NODES, gpus=4, *, named=False):
        self.folder, self.nodes, self.gpus, self.named = folder, nodes, gpus, named
        self.idle = f"{len(nodes)} idle"
        self.environment = {**os.environ, "SLURM_CONF": str(folder / "slurm.conf")}
        self.processes = []

    def start(self):
        """Starts the daemons; returns when all nodes are idle."""
        controller, *ports = free_ports(1 + len(self.nodes))
        names = ",".join(self.nodes)
        # Daemons of hosts with names of their own are asked at another address of loopback than theirs.
        listening = "NoCtldInAddrAny" if self.named else "NoCtldInAddrAny,NoInAddrAny"
        places = {"folder": self.folder, "controller": controller, "nodes": names}
        text = CONFIGURATION.format(**places, listening=listening)
        for node, port in zip(self.nodes, ports, strict=True):
            text += NODE.format(node, node if self.named else "127.0.0.1", port, self.gpus)
        (self.folder / "slurm.conf").write_text(text)
        for name in ("state", *(f"tmp.{node}" for node in self.nodes)):
            (self.folder / name).mkdir()
        for number in range(self.gpus):  # character devices: a count without files would drain the node
            os.mknod(self.folder / f"gpu{number}", 0o666 | stat.S_IFCHR, NULL_DEVICE)
        gpus = f"NodeName={names} Name=gpu File={self.folder}/gpu[0-{self.gpus - 1}]\n"
        (self.folder / "gres.conf").write_text(gpus)
        key = self.folder / "munge.key"
        key.write_bytes(os.urandom(1024))
        key.chmod(0o600)
        own = [f"--{name}-file={self.folder}/munge.{name}" for name in ("key", "pid", "seed", "log")]
        self._start("munged", "--foreground", f"--socket={self.folder}/munge.sock", *own)
        self.wait((self.folder / "munge.sock").exists, "munged")
        self._start("slurmctld", "-D", "-c")
        for node in self.nodes:
            self._start(*((*OWN_NAME, node) if self.named else ()), "slurmd", "-D", "-c", "-N", node)
        self._wait_until_idle()

    def _wait_until_idle(self):
        self.wait(lambda: self.ask("sinfo", "--noheader", "--format=%D %T") == self.idle, self.idle)

    def _start(self, *command):
        with (self.folder / f"{command[0]}.{len(self.processes)}.out").open("wb") as output:
            self.processes.append(processes.start(command, self.environment, output))

    def ask(self, *command, text=None):
        """The output of one of Slurm's commands; empty where it fails."""
        told = {"input": text, "capture_output": True, "text": True, "timeout": LIMIT_S}
        done = subprocess.run(command, env=self.environment, **told)
        return done.stdout.strip() if done.returncode == 0 else ""

    wait = staticmethod(wait_until)

    def state(self, job):
        """Slurm's word for what a job, or a task of an array, is doing."""
        shown = self.ask("scontrol", "--oneliner", "show", "job", job)
        return shown.partition("JobState=")[2].partition(" ")[0]

    def jobs(self):
        """Ids of the jobs that wait or run."""
        return self.ask("squeue", "--noheader", "--array", "--format=%i").split()

    def wait_for(self, job, *states):
        """Waits until the job is in one of those states, and has left the queue if that is a final one."""

        def reached():
            state = self.state(job)
            return state if state in states and (state not in FINAL or job not in self.jobs()) else None

        return self.wait(reached, f"job {job} to be {' or '.join(states)}")

    def cancel_all(self):
        self.ask("scancel", "--user=root")
        self.wait(lambda: not self.jobs(), "an empty queue")
        self._wait_until_idle()

    def left(self, word=b"SLURM_JOB_ID="):
        """Pids of living processes of this cluster with that in their environment: by default the jobs'."""
        found = []
        for path in Path("/proc").glob("[0-9]*/environ"):
            try:
                environment = path.read_bytes()
                state = (path.parent / "stat").read_text().rpartition(")")[2].split()[0]
            except OSError:
                continue
            if str(self.folder).encode() in environment and word in environment and state != "Z":
                found.append(int(path.parent.name))
        return found

    def stop(self):
        """Ends the daemons, by their pids."""
        for process in reversed(self.processes):
            processes.end(process)


@contextmanager
def running(**options):
    """A cluster, gone afterwards; `options` as of `Cluster`."""
    reason = why_no_cluster()
    need(reason is None, str(reason))
    folder = Path(tempfile.mkdtemp(prefix="s", dir="/tmp"))  # short: sockets have paths of 108 bytes at most
    folder.chmod(0o755)
    made = Cluster(folder, **options)
    try:
        made.start()
        yield made
        made.cancel_all()
    finally:
        made.stop()
        left = made.left(b"SLURM_CONF=")
        shutil.rmtree(folder)
    assert not left, f"processes {left} were left behind"


@pytest.fixture(scope="session")
def cluster():
    with running() as made:
        yield made


class Study(Scaling):
    """One study, submitted to the cluster from a folder of its own."""

    def __init__(self, cluster, folder):
        super().__init__(folder)
        self.cluster, self.go = cluster, folder / "go"
        self.jobs: list[str] = []
        own = {"MPLBACKEND": "Agg", "SCALING_TEST_GO": str(self.go)}
        own["PYTHONPATH"] = os.pathsep.join([str(ROOT), str(Path(__file__).parent)])
        self.environment = {**cluster.environment, **own}

    def write_small(self, aggregators=("all_reduce", "ring"), world_sizes=(2,), **keys):
        keys |= {"aggregators": list(aggregators), "world_sizes": list(world_sizes), "learning_rate": 0.05}
        super().write(trained("small", **keys))

    def scaling(self, *arguments, **environment):
        """The `scaling` command, to its end."""
        return self.ended([sys.executable, "-m", "scaling", *arguments], **environment)

    def submit(self, *options, **environment):
        """`scaling submit`; returns the job's id."""
        arguments = ["submit", self.study.name, "--out", self.out.name, "--time", "10", *options]
        done = self.scaling(*arguments, **environment)
        assert done.returncode == 0, done.stderr
        job = done.stdout.strip()
        assert job.isdecimal()
        self.jobs.append(job)
        return job

    def left(self):
        """Pids of living processes of this study's jobs."""
        return self.cluster.left(f"SCALING_TEST_GO={self.go}".encode())

    def end(self):
        """Ends its jobs, and waits until nothing of them is left."""
        for job in self.jobs:
            self.cluster.ask("scancel", job)
        self.cluster.wait(lambda: not self.left(), "the jobs' processes to end")

    def states(self):
        """(aggregator, world size) -> state."""
        cells = {(run.cell["aggregator_label"], run.cell["world_size"]): run for run in self.results().runs()}
        return {cell: run.state for cell, run in cells.items()}

    def wait_for_run(self, aggregator, state="running"):
        """Waits until a cell of that aggregator is in that state, with the others done."""

        def is_in_it():
            states = self.states().items() if self.results().exists() else ()
            return state in [other for (name, _), other in states if name == aggregator]

        return self.cluster.wait(is_in_it, f"{aggregator} to be {state}")

    def log(self, job):
        """What the job printed."""
        return (self.folder / f"slurm-{job}.out").read_text()


@pytest.fixture(scope="session")
def study_in(cluster):
    """Makes a Study in a folder."""
    return lambda folder: Study(cluster, folder)


@pytest.fixture
def study(study_in, tmp_path):
    """A Study; afterwards nothing of its jobs is left."""
    made = study_in(tmp_path)
    yield made
    made.end()

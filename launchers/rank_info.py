"""Which rank this process is, from the variables that its launcher sets. One table a launcher."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from launchers.slurm_variables import rendezvous, require_rank_0_there, task_counts

FIELDS = ("rank", "local_rank", "world_size", "local_world_size")

_OF_MPI = ("RANK", "LOCAL_RANK", "SIZE", "LOCAL_SIZE")
_VARIABLES = {
    "torchrun": ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE"),
    "horovodrun": ("HOROVOD_RANK", "HOROVOD_LOCAL_RANK", "HOROVOD_SIZE", "HOROVOD_LOCAL_SIZE"),
    "openmpi": tuple(f"OMPI_COMM_WORLD_{name}" for name in _OF_MPI),
    "mpich": ("PMI_RANK", "MPI_LOCALRANKID", "PMI_SIZE", "MPI_LOCALNRANKS"),
    "mvapich2": tuple(f"MV2_COMM_WORLD_{name}" for name in _OF_MPI),
    "pals": ("PALS_RANKID", "PALS_LOCAL_RANKID", "PMI_SIZE", "PMI_LOCAL_SIZE"),
    "flux": ("FLUX_TASK_RANK", "FLUX_TASK_LOCAL_ID", "FLUX_JOB_SIZE", "FLUX_JOB_NNODES"),
    "srun": ("SLURM_PROCID", "SLURM_LOCALID", "SLURM_NTASKS", "SLURM_STEP_TASKS_PER_NODE"),
}
TABLES: dict[str, dict[str, str]] = {
    launcher: dict(zip(FIELDS, variables, strict=True)) for launcher, variables in _VARIABLES.items()
}
"""launcher -> field -> environment variable. In this order: torchrun may run under any of the others.

Sources: Cray PALS, mpiexec(1); Flux, flux-environment(7), which has no ranks of a host, but hosts; MVAPICH2's
user guide.
"""

SIGNS = {"mpich": "MPI_LOCALRANKID", "pals": "PALS_RANKID", "srun": "SLURM_STEP_TASKS_PER_NODE"}
"""launcher -> the variable that says it was this one: Slurm's `srun --mpi=pmi2` sets some of MPICH's, and a
batch script, which is no task of srun's, has most of a task's variables."""

LAUNCHER_VARIABLE = "SCALING_LAUNCHER"
"""Set by a launcher of ours that builds on one of the tables, so that runs record its name."""


SET_NO_MEETING = ("mvapich2", "pals", "flux")
"""Launchers that do not say where the ranks meet; their MPI is not used for it."""

RANK_VARIABLES = "SCALING_RANK_VARIABLES"
"""Set by a launcher that none of the tables fits: the variables of FIELDS, in their order, with commas."""

MAX_NUMBER = 2**31 - 1  # of a rank or a number of ranks: what torch takes


class RankError(ValueError):
    """The environment does not say which rank this process is."""


@dataclass(frozen=True)
class RankInfo:
    """`job_id`: the launcher's own; `table`: which of TABLES, or the launcher's name where it says
    RANK_VARIABLES; `passed_over`: tables of which only some variables are set, in words; "" if none."""

    rank: int
    local_rank: int
    world_size: int
    local_world_size: int
    launcher: str
    job_id: str | None = None
    variables: Mapping[str, str] = field(default_factory=dict)
    table: str = ""
    passed_over: str = ""

    @classmethod
    def from_env(cls, environ: Mapping[str, str]) -> RankInfo:
        """RankError: no table has all its variables, or one is wrong. Never a world of one by default."""
        own = _table_of_launcher(environ)
        tables = own | {name: table for name, table in TABLES.items() if name not in own}
        half_set: list[str] = []
        for launcher, table in tables.items():
            present = [variable for variable in table.values() if variable in environ]
            if not present or SIGNS.get(launcher, present[0]) not in environ:
                continue
            missing = [variable for variable in table.values() if variable not in environ]
            if missing:
                half_set.append(f"{launcher} set {', '.join(present)}, but {', '.join(missing)} is missing")
                continue
            values = _values("" if launcher in own else launcher, table, environ)
            is_local = values["local_rank"] < values["local_world_size"]
            if not (is_local and values["rank"] < values["world_size"]):
                raise RankError(f"{launcher}'s variables contradict one another: {values}")
            name, job_id = environ.get(LAUNCHER_VARIABLE, launcher), environ.get("SLURM_JOB_ID") or None
            return cls(**values, launcher=name, job_id=job_id, variables=table, table=launcher,
                       passed_over="; ".join(half_set))  # fmt: skip
        if half_set:
            raise RankError(
                f"{'; '.join(half_set)}; set all of them, or name yours in {RANK_VARIABLES} "
                f"({', '.join(FIELDS)}, with commas)"
            )
        variables = "; ".join(f"{name}: {', '.join(table.values())}" for name, table in tables.items())
        raise RankError(
            f"no launcher's variables are set (looked for {variables}); start workers with "
            "`torchrun --nproc-per-node=N -m scaling.worker STUDY`, or use `scaling run STUDY`; of another "
            f"launcher name the variables in {RANK_VARIABLES} ({', '.join(FIELDS)}, with commas)"
        )

    def meeting_variables(self, environ: Mapping[str, str]) -> dict[str, str]:
        """By which torch.distributed's ranks meet, where the launcher sets none, as srun. RankError: a
        launcher's own table cannot be distinguished from Slurm's."""
        place = {"RANK": str(self.rank), "WORLD_SIZE": str(self.world_size)}
        if self.table in SET_NO_MEETING and not environ.get("MASTER_ADDR"):
            raise RankError(
                f"where do the workers meet? {self.table} does not say; set MASTER_ADDR and MASTER_PORT"
            )
        if self.table != "srun":
            return {} if self.table in TABLES and self.table not in SET_NO_MEETING else place
        try:
            require_rank_0_there(environ, self.rank, self.local_rank, self.local_world_size)
            host, port = rendezvous(environ)
        except ValueError as error:
            raise RankError(f"where do the workers meet? {error}; set MASTER_ADDR and MASTER_PORT") from None
        return {**place, "MASTER_ADDR": host, "MASTER_PORT": str(port)}

    def describe(self) -> str:
        """`rank 1 of 4 (RANK, WORLD_SIZE; local rank 1 of 4), started by torchrun`."""
        return (
            f"rank {self.rank} ({self.variables['rank']}) "
            f"of {self.world_size} ({self.variables['world_size']}), "
            f"local rank {self.local_rank} ({self.variables['local_rank']}) of {self.local_world_size}, "
            f"started by {self.launcher}{f' ({self.passed_over})' if self.passed_over else ''}"
        )


def _table_of_launcher(environ: Mapping[str, str]) -> dict[str, dict[str, str]]:
    """The table that the environment brings, under its launcher's name."""
    variables = environ.get(RANK_VARIABLES, "")
    if not variables:
        return {}
    if len(names := variables.split(",")) != len(FIELDS):
        raise RankError(
            f"{RANK_VARIABLES} is {variables!r}; it must name the variables of {', '.join(FIELDS)}"
        )
    return {environ.get(LAUNCHER_VARIABLE, RANK_VARIABLES): dict(zip(FIELDS, names, strict=True))}


def _values(launcher: str, table: Mapping[str, str], environ: Mapping[str, str]) -> dict[str, int]:
    if launcher != "srun":
        numbers = {name: _number(environ, variable) for name, variable in table.items()}
        return _per_host(numbers) if launcher == "flux" else numbers
    plain = {name: _number(environ, table[name]) for name in FIELDS if name != "local_world_size"}
    text = environ[table["local_world_size"]]
    try:
        counts = task_counts(text)
    except ValueError as error:
        raise RankError(f"{table['local_world_size']}: {error}") from None
    if len(set(counts)) != 1:
        raise RankError(
            f"srun put {text} tasks on the nodes (SLURM_STEP_TASKS_PER_NODE); every node must have as many "
            "workers: give srun --ntasks-per-node"
        )
    if plain["rank"] % counts[0] != plain["local_rank"]:
        raise RankError(
            f"task {plain['rank']} is number {plain['local_rank']} of {counts[0]} on its node: ranks of a "
            "node must follow one another; give srun --distribution=block"
        )
    of_step = environ.get("SLURM_STEP_NUM_TASKS", str(plain["world_size"]))
    for name, tasks in (("SLURM_STEP_NUM_TASKS", of_step), (table["local_world_size"], str(sum(counts)))):
        if tasks != str(plain["world_size"]):
            raise RankError(
                f"SLURM_NTASKS is {plain['world_size']}, and {name} makes {tasks} tasks: unset SLURM_NTASKS "
                "before srun, or give srun --ntasks"
            )
    return {**plain, "local_world_size": counts[0]}


def _per_host(numbers: dict[str, int]) -> dict[str, int]:
    """With the ranks of a host in place of the number of hosts, which Flux gives."""
    hosts = numbers["local_world_size"]
    if not hosts or numbers["world_size"] % hosts:
        raise RankError(
            f"FLUX_JOB_SIZE is {numbers['world_size']} on {hosts} hosts (FLUX_JOB_NNODES); every host must "
            "have as many workers: give flux run --tasks-per-node"
        )
    return {**numbers, "local_world_size": numbers["world_size"] // hosts}


def _number(environ: Mapping[str, str], variable: str) -> int:
    try:
        value = int(environ[variable])
    except ValueError:
        raise RankError(f"{variable} is {environ[variable]!r}; it must be a number") from None
    if value < 0:
        raise RankError(f"{variable} is {value}; it must not be negative")
    if value > MAX_NUMBER:
        raise RankError(f"{variable} is {value}; it must be at most {MAX_NUMBER}")
    return value

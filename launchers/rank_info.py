"""Which rank this process is, from the variables that its launcher sets. One table a launcher."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

FIELDS = ("rank", "local_rank", "world_size", "local_world_size")

TABLES: dict[str, dict[str, str]] = {
    "torchrun": {
        "rank": "RANK",
        "local_rank": "LOCAL_RANK",
        "world_size": "WORLD_SIZE",
        "local_world_size": "LOCAL_WORLD_SIZE",
    },
}
"""launcher -> field -> environment variable."""

LAUNCHER_VARIABLE = "SCALING_LAUNCHER"
"""Set by a launcher of ours that builds on one of the tables, so that runs record its name."""


class RankError(ValueError):
    """The environment does not say which rank this process is."""


@dataclass(frozen=True)
class RankInfo:
    """This process's place among the workers.

    Attributes:
        rank: 0 to world_size - 1.
        local_rank: its place on this host.
        world_size: number of workers.
        local_world_size: number of workers on this host.
        launcher: who started it, for the record.
        job_id: the launcher's own number for the job, if it has one.
        variables: field -> the variable that gave the value.
    """

    rank: int
    local_rank: int
    world_size: int
    local_world_size: int
    launcher: str
    job_id: str | None = None
    variables: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def from_env(cls, environ: Mapping[str, str]) -> RankInfo:
        """Reads the first table all of whose variables are set.

        Raises:
            RankError: there is none, or a value is no number or out of range. Never a world of one by
                default.
        """
        for launcher, table in TABLES.items():
            present = [variable for variable in table.values() if variable in environ]
            if not present:
                continue
            missing = [variable for variable in table.values() if variable not in environ]
            if missing:
                raise RankError(f"{launcher} set {', '.join(present)}, but {', '.join(missing)} is missing")
            values = {name: _number(environ, variable) for name, variable in table.items()}
            if not (
                values["rank"] < values["world_size"] and values["local_rank"] < values["local_world_size"]
            ):
                raise RankError(f"{launcher}'s variables contradict one another: {values}")
            name = environ.get(LAUNCHER_VARIABLE, launcher)
            return cls(**values, launcher=name, job_id=environ.get("SLURM_JOB_ID") or None, variables=table)
        looked_at = "; ".join(f"{name}: {', '.join(table.values())}" for name, table in TABLES.items())
        raise RankError(
            f"no launcher's variables are set (looked for {looked_at}); start workers with "
            "`torchrun --nproc-per-node=N -m scaling.worker STUDY`, or use `scaling run STUDY`"
        )

    def describe(self) -> str:
        """`rank 1 of 4 (RANK, WORLD_SIZE; local rank 1 of 4), started by torchrun`."""
        return (
            f"rank {self.rank} ({self.variables['rank']}) "
            f"of {self.world_size} ({self.variables['world_size']}), "
            f"local rank {self.local_rank} ({self.variables['local_rank']}) of {self.local_world_size}, "
            f"started by {self.launcher}"
        )


def _number(environ: Mapping[str, str], variable: str) -> int:
    try:
        value = int(environ[variable])
    except ValueError:
        raise RankError(f"{variable} is {environ[variable]!r}; it must be a number") from None
    if value < 0:
        raise RankError(f"{variable} is {value}; it must not be negative")
    return value

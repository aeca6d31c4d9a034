"""Which launches a study still needs: runs that share world size, start-up settings and repeat."""

from __future__ import annotations

import base64
import json
import pickle
import random
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache

from scaling.aggregators.registry import create as create_aggregator
from scaling.errors import LaunchError
from scaling.store import ResultsFolder
from scaling.study.cell import AnyCell, Cell, ResolvedStudy
from scaling.study.kinds import KINDS
from scaling.study.kinds.base import START_UP_S
from scaling.study.step_time import ModelSize

HANDED_OVER = "SCALING_LAUNCH"
"""Set by `scaling run`: the launch and its stall_timeout, so that workers need not resolve the study anew."""

MOST_CHARACTERS = 100_000
"""Of a variable; Linux takes 131,072. Workers of a longer one resolve the study."""


@dataclass(frozen=True)
class Settings:
    """What must be the same for all cells of a launch, since it is fixed when its processes start.
    `variables`: names and values of environment variables (`Aggregator.start_up`); `workers_per_gpu`: that
    share a GPU; None where none do."""

    world_size: int
    device: str
    threads: int
    peer_access: bool | None
    variables: tuple[tuple[str, str], ...] = ()
    workers_per_gpu: int | None = field(default=None, repr=False)  # cells' order is drawn by what is shown

    @classmethod
    def of(cls, cell: AnyCell) -> Settings:
        # Experiments vary the threads within a launch, so that they are compared under the same conditions.
        threads = int(getattr(cell, "launch_threads", cell.threads))
        workers = cell.workers_per_gpu
        return cls(cell.world_size, cell.device, threads, cell.peer_access, _variables(cell), workers)


def _variables(cell: AnyCell) -> tuple[tuple[str, str], ...]:
    """What the cell's aggregator wants set before its library starts."""
    if not isinstance(cell, Cell):
        return ()
    return _start_up(cell.aggregator, json.dumps(cell.aggregator_parameters))


@cache  # asked for every cell whenever the launches that are left are counted
def _start_up(name: str, parameters: str) -> tuple[tuple[str, str], ...]:
    return tuple(sorted(create_aggregator(name, json.loads(parameters)).start_up().items()))


@dataclass(frozen=True)
class Launch:
    """One start of worker processes, and the cells they work through, once each. `repeat`: which of the
    study's repeats its runs are."""

    settings: Settings
    repeat: int
    cells: list[AnyCell]


def remaining_launches(folder: ResultsFolder, study: ResolvedStudy) -> list[Launch]:
    """The launches that are left, first repeats first; done and failed runs are not among them. The cells of
    a launch stand in random order (the same for the same study, repeat and settings)."""
    over = {(record.cell_id, record.repeat) for record in folder.runs() if record.state in ("done", "failed")}
    grouped: dict[tuple[int, Settings], list[AnyCell]] = {}
    for repeat in range(max(study.repeats.values(), default=0)):
        for cell_id, cell in study.cells.items():
            if repeat < study.repeats[cell_id] and (cell_id, repeat) not in over:
                grouped.setdefault((repeat, Settings.of(cell)), []).append(cell)
    launches = []
    for (repeat, settings), cells in grouped.items():
        random.Random(f"{study.name} {repeat} {settings}").shuffle(cells)
        launches.append(Launch(settings, repeat, cells))
    return sorted(launches, key=lambda launch: launch.repeat)


def hand_over(launch: Launch, stall_timeout_s: float) -> dict[str, str]:
    """The variable that tells workers of the same code what to run; none where it would be too long."""
    text = base64.b64encode(zlib.compress(pickle.dumps((launch, stall_timeout_s)))).decode()
    return {HANDED_OVER: text} if len(text) < MOST_CHARACTERS else {}


def handed_over(environ: Mapping[str, str]) -> tuple[Launch, float] | None:
    """The launch and its stall_timeout, as `hand_over` wrote them; None where nothing was. Raises
    LaunchError: the variable holds something else."""
    if (text := environ.get(HANDED_OVER)) is None:
        return None
    # From the command that started this process: whoever sets its variables chooses its program too.
    try:
        launch, stall_timeout_s = pickle.loads(zlib.decompress(base64.b64decode(text)))  # noqa: S301
    except Exception as error:  # noqa: BLE001 (pickle raises what it likes)
        raise LaunchError(f"{HANDED_OVER}, which `scaling run` sets, is damaged: {error}; unset it") from None
    return launch, stall_timeout_s


def estimate_seconds(launch: Launch, sizes: Mapping[str, ModelSize], num_cores: int) -> float:
    """A rough time for a launch: its start-up, and its cells. `sizes`: cell id -> size of its model, where it
    has one; `num_cores`: cores of the machine, which the workers share."""
    device, kinds = launch.settings.device, {cell.kind for cell in launch.cells}
    start_up_s = KINDS[kinds.pop()].start_up_s(device) if len(kinds) == 1 else START_UP_S[device]
    return start_up_s + sum(
        KINDS[cell.kind].seconds(cell, num_cores, sizes.get(cell.id)) for cell in launch.cells
    )

"""Which launches a study still needs: runs that share world size, start-up settings and repeat."""

from __future__ import annotations

import random
from dataclasses import dataclass

from scaling.store import ResultsFolder
from scaling.study.cells import Cell, ResolvedStudy
from scaling.study.run_cell import TIMING_BATCHES
from scaling.workloads.registry import create_dataset

OPERATIONS_PER_S = {"cpu": 8e10, "cuda": 3e13}
"""Floating-point operations a second that the estimate assumes of a CPU core and of a GPU, in float32."""

START_UP_S = {"cpu": 8.0, "cuda": 20.0}
"""What a launch is assumed to take before its first cell."""


@dataclass(frozen=True)
class Settings:
    """What must be the same for all cells of a launch, since it is fixed when its processes start."""

    world_size: int
    device: str
    threads: int
    peer_access: bool | None

    @classmethod
    def of(cls, cell: Cell) -> Settings:
        """The settings that `cell` needs."""
        return cls(cell.world_size, cell.device, cell.threads, cell.peer_access)


@dataclass(frozen=True)
class Launch:
    """One start of worker processes, and the cells they work through, once each.

    Attributes:
        settings: of its processes.
        repeat: which of the study's repeats its runs are.
        cells: in the order in which they run.
    """

    settings: Settings
    repeat: int
    cells: list[Cell]


def remaining_launches(folder: ResultsFolder, study: ResolvedStudy) -> list[Launch]:
    """The launches that are left, first repeats first; done and failed runs are not among them.

    The cells of a launch stand in random order (the same for the same study, repeat and settings).
    """
    over = {(record.cell_id, record.repeat) for record in folder.runs() if record.state in ("done", "failed")}
    grouped: dict[tuple[int, Settings], list[Cell]] = {}
    for repeat in range(max(study.repeats.values(), default=0)):
        for cell_id, cell in study.cells.items():
            if repeat < study.repeats[cell_id] and (cell_id, repeat) not in over:
                grouped.setdefault((repeat, Settings.of(cell)), []).append(cell)
    launches = []
    for (repeat, settings), cells in grouped.items():
        random.Random(f"{study.name} {repeat} {settings}").shuffle(cells)
        launches.append(Launch(settings, repeat, cells))
    return sorted(launches, key=lambda launch: launch.repeat)


def estimate_seconds(launch: Launch, num_parameters: dict[str, int], num_cores: int) -> float:
    """A rough time for a launch: start-up, and each cell's floating-point operations at an assumed rate.

    Args:
        launch: what is to run.
        num_parameters: cell id -> trainable parameters of its model.
        num_cores: cores of the machine, which the workers share.
    """
    total = START_UP_S[launch.settings.device]
    for cell in launch.cells:
        if cell.device == "cpu":
            rate = OPERATIONS_PER_S["cpu"] * min(num_cores, cell.world_size * cell.threads)
        else:
            rate = OPERATIONS_PER_S["cuda"] * cell.world_size
        # 2 operations a parameter and sample forward, 4 backward; dense layers, which is what there is.
        step_s = 6.0 * num_parameters[cell.id] * cell.global_batch / rate + 1e-3 * cell.world_size
        if cell.kind == "iteration":
            assert cell.iterations is not None
            assert cell.warmup is not None
            seconds = (cell.iterations + cell.warmup) * step_s
            if cell.max_seconds is not None:
                seconds = min(seconds, max(cell.max_seconds, 4 * step_s))
        else:
            assert cell.epochs is not None
            seconds = cell.epochs * _steps_per_epoch(cell) * step_s
        total += seconds + 0.5
    return total


def _steps_per_epoch(cell: Cell) -> int:
    dataset = create_dataset(cell.dataset, cell.dataset_parameters)
    samples = dataset.num_train or TIMING_BATCHES * cell.global_batch
    return max(1, samples // cell.global_batch)

"""Which launches a study still needs: runs that share world size, start-up settings and repeat."""

from __future__ import annotations

import json
import random
from dataclasses import dataclass, field
from functools import cache

from scaling.aggregators.registry import create as create_aggregator
from scaling.store import ResultsFolder
from scaling.study.cells import AnyCell, Cell, ResolvedStudy
from scaling.study.device import DeviceCell
from scaling.study.device_times import cells_seconds, device_seconds
from scaling.study.run_cell import TIMING_BATCHES
from scaling.study.transfer import TransferCell
from scaling.workloads.registry import create_dataset

OPERATIONS_PER_S = {"cpu": 8e10, "cuda": 3e13}
"""Floating-point operations a second that the estimate assumes of a CPU core and of a GPU, in float32."""

THROUGH_HOST_BYTES_PER_S = 5e8
"""Of a gradient in float32 that Gloo brings together between workers that share a GPU."""

USUAL_ITERATIONS = 100
"""What reaching a precision goal is assumed to take."""

TRANSFER_SLACK_RATIO = 1.2
"""Of a transfer cell's time: what its operations set up comes on top."""

START_UP_S = {"cpu": 8.0, "cuda": 20.0}
"""What a launch is assumed to take before its first cell."""


@dataclass(frozen=True)
class Settings:
    """What must be the same for all cells of a launch, since it is fixed when its processes start.

    Attributes:
        variables: names and values of environment variables (`Aggregator.start_up`).
        workers_per_gpu: that share a GPU; None where none do.
    """

    world_size: int
    device: str
    threads: int
    peer_access: bool | None
    variables: tuple[tuple[str, str], ...] = ()
    workers_per_gpu: int | None = field(default=None, repr=False)  # cells' order is drawn by what is shown

    @classmethod
    def of(cls, cell: AnyCell) -> Settings:
        """The settings that `cell` needs."""
        # Experiments vary the threads within a launch, so that they are compared under the same conditions.
        threads = cell.launch_threads if isinstance(cell, DeviceCell) else cell.threads
        workers = cell.workers_per_gpu if isinstance(cell, Cell) else None
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
    """One start of worker processes, and the cells they work through, once each.

    Attributes:
        settings: of its processes.
        repeat: which of the study's repeats its runs are.
        cells: in the order in which they run.
    """

    settings: Settings
    repeat: int
    cells: list[AnyCell]


def remaining_launches(folder: ResultsFolder, study: ResolvedStudy) -> list[Launch]:
    """The launches that are left, first repeats first; done and failed runs are not among them.

    The cells of a launch stand in random order (the same for the same study, repeat and settings).
    """
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


def estimate_seconds(launch: Launch, num_parameters: dict[str, int], num_cores: int) -> float:
    """A rough time for a launch: start-up, and each cell's floating-point operations at an assumed rate.

    Args:
        launch: what is to run.
        num_parameters: cell id -> trainable parameters of its model, where it has one.
        num_cores: cores of the machine, which the workers share.
    """
    of_devices = [cell for cell in launch.cells if isinstance(cell, DeviceCell)]
    if len(of_devices) == len(launch.cells):
        return device_seconds(of_devices, num_cores)
    total = START_UP_S[launch.settings.device] + cells_seconds(of_devices, num_cores)
    for cell in launch.cells:
        if isinstance(cell, DeviceCell):
            continue
        if isinstance(cell, TransferCell):
            total += cell.seconds * TRANSFER_SLACK_RATIO
            continue
        if cell.device == "cpu":
            rate = OPERATIONS_PER_S["cpu"] * min(num_cores, cell.world_size * cell.threads)
        else:
            rate = OPERATIONS_PER_S["cuda"] * cell.world_size / (cell.workers_per_gpu or 1)
        # 2 operations a parameter and sample forward, 4 backward; dense layers, which is what there is.
        step_s = 6.0 * num_parameters[cell.id] * cell.global_batch / rate + 1e-3 * cell.world_size
        if cell.workers_per_gpu is not None and cell.exchanges:
            step_s += 4.0 * num_parameters[cell.id] / THROUGH_HOST_BYTES_PER_S
        if cell.kind == "iteration":
            assert cell.iterations is not None
            assert cell.warmup is not None
            seconds = (cell.iterations + cell.warmup) * step_s
            if cell.precision_goal is not None:
                seconds = min(seconds, (USUAL_ITERATIONS + cell.warmup) * step_s + (cell.min_seconds or 0.0))
            seconds += (cell.split_iterations or 0) * step_s
            if cell.max_seconds is not None:
                seconds = min(seconds, max(1.5 * cell.max_seconds, 7 * step_s))
        else:
            assert cell.epochs is not None
            seconds = cell.epochs * _steps_per_epoch(cell) * step_s
        total += seconds + 0.5
    return total


def _steps_per_epoch(cell: Cell) -> int:
    dataset = create_dataset(cell.dataset, cell.dataset_parameters)
    samples = dataset.num_train or TIMING_BATCHES * cell.global_batch
    return max(1, samples // cell.global_batch)

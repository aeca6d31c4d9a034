"""Work that sends nothing, done at the same time at several places: codecs and updates.

Each GPU has a memory of its own. CPU threads share the cores and the bandwidth of host memory max-min fair
(fair_sharing.py), one core a thread.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from scaling.collectives.fair_sharing import Activities, Uses, run
from scaling.collectives.placement import BYTES_MOVED_PER_BYTE_ADDED, Place, Resources
from scaling.errors import ScheduleError
from topologies.errors import TopologyError
from topologies.model import Topology


@dataclass(frozen=True)
class Task:
    """Bytes that are gone through at one place, by one GPU or by some cores.

    Attributes:
        place: a GPU, or a host memory.
        num_bytes: gone through.
        bytes_moved: in memory, for each of them.
        bytes_per_s: of them, by the GPU or one core; None lets the memory decide, or how fast a core adds.
        num_threads: of the CPU.
    """

    place: Place
    num_bytes: float
    bytes_moved: float
    bytes_per_s: float | None = None
    num_threads: int = 1

    def __post_init__(self) -> None:
        if self.num_bytes < 0 or self.bytes_moved <= 0 or self.num_threads < 1:
            raise ScheduleError(f"{self}: allowed are 0 and more bytes, some moved for each, and a thread")
        if self.bytes_per_s is not None and self.bytes_per_s <= 0:
            raise ScheduleError(f"{self}: a rate must be positive")


def together_s(tasks: Sequence[Task], topology: Topology) -> float:
    """All tasks at the same time, until the last ends.

    Raises:
        TopologyError: a GPU's bandwidth or a core's rate is needed and not known.
    """
    resources = Resources(topology)
    in_memory = [task for task in tasks if resources.in_memory(task.place[1])]
    on_gpus = [task for task in tasks if not resources.in_memory(task.place[1])]
    gpus_s = max((task.num_bytes / _gpu_rate(task, resources.topology) for task in on_gpus), default=0.0)
    return max(gpus_s, _in_memory_s(in_memory, resources))


def _gpu_rate(task: Task, topology: Topology) -> float:
    if task.bytes_per_s is not None:
        return task.bytes_per_s
    bandwidth = topology.machine.by_id[task.place[1]].bandwidth_bytes_per_s
    if bandwidth is None:
        raise TopologyError(
            f"{topology.name}: {task.place[1]!r} has to update parameters; give it 'bandwidth_bytes_per_s'"
        )
    return bandwidth / task.bytes_moved


def _in_memory_s(tasks: list[Task], resources: Resources) -> float:
    highest_rate = np.zeros(len(tasks))
    uses = []
    for i, task in enumerate(tasks):
        node, memory = task.place
        number, add_bytes_per_s = resources.cores(memory)
        # A core that adds moves three bytes for each byte added; other work takes as long for each one moved.
        adding = add_bytes_per_s * BYTES_MOVED_PER_BYTE_ADDED / task.bytes_moved
        rate = adding if task.bytes_per_s is None else task.bytes_per_s
        highest_rate[i] = task.num_threads * rate
        uses.append(Uses.of([i], [number + node], [add_bytes_per_s / rate]))
        bandwidth = resources.memory(memory)
        if bandwidth is not None:
            uses.append(Uses.of([i], [bandwidth + node], [task.bytes_moved]))
    nobody = (np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int64))
    num_bytes = np.array([task.num_bytes for task in tasks], dtype=np.float64)
    activities = Activities(np.zeros(len(tasks)), num_bytes, highest_rate, Uses.joined(*uses), nobody)
    return float(run(activities, resources.capacity_bytes_per_s).end_s.max(initial=0.0))

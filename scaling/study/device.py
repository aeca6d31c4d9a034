"""Cells of `kind: device`: one point of an experiment on one device, in one process."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from typing import Any, ClassVar

from scaling.errors import StudyError
from scaling.experiments.base import Experiment, Point
from scaling.experiments.registry import create, parameters_of
from scaling.study.schema import DevicePart

ALL_THREADS = "all"
NOT_VARIABLES = ("only_device", "threads")
"""Keys of a point that say where it is measured."""


@dataclass(frozen=True)
class DeviceCell:
    """One point of an experiment on one device.

    Attributes:
        experiment: its name.
        parameters: of the experiment, all of them.
        point: its independent variables, but for device and threads.
        device, threads: as in other cells.
        seconds: for measuring; warm-up comes on top.
        limit_s: a point whose fewest samples would take longer is left out.
        launch_threads: what the process is started with; no part of the identity.
    """

    kind: ClassVar[str] = "device"
    world_size: ClassVar[int] = 1
    peer_access: ClassVar[bool | None] = None
    tf32: ClassVar[bool | None] = False

    experiment: str
    parameters: dict[str, Any]
    point: Point
    device: str
    threads: int
    seconds: float
    limit_s: float
    launch_threads: int = field(compare=False)

    @property
    def id(self) -> str:
        """Twelve hexadecimal digits of the identity's SHA-256."""
        identity = {key: value for key, value in self.to_dict().items() if key != "launch_threads"}
        return hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()[:12]

    def to_dict(self) -> dict[str, Any]:
        """All fields, as JSON has them."""
        fixed = {"kind": self.kind, "world_size": self.world_size, "peer_access": self.peer_access}
        return {**fixed, **asdict(self)}

    def describe(self) -> str:
        """One line for people."""
        threads = f", {self.threads} thread{'s' * (self.threads > 1)}" if self.device == "cpu" else ""
        return f"{self.kind} {self.experiment} on {self.device}{threads}: {point_text(self.point)}"


def point_text(point: Point) -> str:
    """`width 128, batch 64`."""
    return ", ".join(f"{key} {value}" for key, value in point.items())


def device_cells(
    part: DevicePart, num_gpus: int, num_cores: int, gpu_threads: int, where: str, notes: list[str]
) -> Iterator[DeviceCell]:
    """A cell for each point and device.

    Args:
        part: of the study.
        num_gpus: that torch can use here; one is used.
        num_cores: that the process may use: what a cell on the CPU takes where its point says nothing.
        gpu_threads: CPU threads of a cell on a GPU.
        where: the part, for messages.
        notes: takes what was left out.

    Raises:
        StudyError: the experiment or a parameter is unknown, or nothing can be measured here.
    """
    experiment = create(part.experiment.name, part.experiment.parameters)
    wanted = [device for device in part.devices if _is_asked(experiment, device)]
    devices = [device for device in wanted if device != "cuda" or num_gpus]
    if not devices:
        raise StudyError(
            f"{where}experiment {part.experiment.name!r} has nothing to measure on {', '.join(part.devices)}"
            + ("" if num_gpus or "cuda" not in part.devices else ": there is no GPU that torch can use")
        )
    if devices != wanted:
        notes.append("devices: no GPU that torch can use here, so nothing is measured on cuda")
    dropped: set[int] = set()
    for point in experiment.points():
        for device in devices:
            if point.get("only_device", device) != device:
                continue
            threads = _threads(point, device, num_cores, gpu_threads)
            if device == "cpu" and threads > num_cores:
                dropped.add(threads)
                continue
            yield DeviceCell(
                experiment=part.experiment.name,
                parameters=parameters_of(experiment),
                point={key: value for key, value in point.items() if key not in NOT_VARIABLES},
                device=device,
                threads=threads,
                seconds=part.seconds,
                limit_s=part.limit_seconds,
                launch_threads=num_cores if device == "cpu" else gpu_threads,
            )
    if dropped:
        notes.append(
            f"threads: {', '.join(map(str, sorted(dropped)))} dropped: {num_cores} cores can be used here"
        )


def _is_asked(experiment: Experiment, device: str) -> bool:
    return any(point.get("only_device", device) == device for point in experiment.points())


def _threads(point: Point, device: str, num_cores: int, gpu_threads: int) -> int:
    if device != "cpu":
        return gpu_threads
    threads = point.get("threads", ALL_THREADS)
    return num_cores if threads == ALL_THREADS else int(threads)

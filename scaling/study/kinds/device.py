"""`kind: device`: an experiment, CPU against GPU in one process. A cell is a point on one device.

For `scaling plan` the time of a cell is fitted to results/reference/device-* (one H200 with 16 cores, 4 cores
without a GPU) and to the shipped studies on 2 slower cores: its `seconds`, once for each thing that it times,
with the warm-up; on top its experiment's own seconds, core-seconds that the cores share, and a share of the
limit, for slow points. A launch's first cell sets the libraries up.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import Field

from scaling.errors import StudyError
from scaling.study.cell import AvailableMachine, CellWithoutModel
from scaling.study.kinds.base import Kind, ModelSize
from scaling.study.parts import AnyPart, Axis, Component, Device, Number, NumRepeats

if TYPE_CHECKING:
    from scaling.device_studies.base import Point
    from scaling.study.rank.context import RankSummary, RunContext


ALL_THREADS = "all"
NOT_VARIABLES = ("only_device", "threads")  # keys of a point that say where it is measured


class DevicePart(AnyPart):
    """An experiment (`scaling.device_studies`): CPU against GPU, in one process."""

    kind: Literal["device"] = "device"
    experiment: Component
    """A name of `scaling list experiments` or `module:Class`, alone or with parameters."""
    devices: Annotated[list[Literal["cpu", "cuda"]], Axis] = ["cpu", "cuda"]
    """A device that the machine lacks is left out."""
    seconds: Number = Field(1.0, gt=0)
    """Time for each point."""
    limit_seconds: Number = Field(10.0, gt=0)
    """A point that would take longer is left out."""
    repeats: NumRepeats = 1
    """Number of launches; a decision needs two or more."""

    world_sizes: ClassVar[list[int]] = [1]
    missing_devices: ClassVar[Literal["drop"]] = "drop"

    @property
    def device(self) -> Device:
        """A GPU is used where there is one and the part wants it."""
        return "auto" if "cuda" in self.devices else "cpu"


@dataclass(frozen=True)
class DeviceCell(CellWithoutModel):
    kind: ClassVar[str] = "device"
    world_size: ClassVar[int] = 1
    peer_access: ClassVar[bool | None] = None
    tf32: ClassVar[bool | None] = False
    not_in_identity: ClassVar[tuple[str, ...]] = ("launch_threads",)

    experiment: str
    parameters: dict[str, Any]  # of the experiment, all of them
    point: Point  # its independent variables, but for device and threads
    device: str
    threads: int
    seconds: float  # for measuring; warm-up comes on top
    limit_s: float  # a point whose fewest samples would take longer is left out
    launch_threads: int = field(compare=False)  # what the process is started with; no part of the identity

    def to_dict(self) -> dict[str, Any]:
        return {**super().to_dict(), "world_size": self.world_size, "peer_access": self.peer_access}

    def describe(self) -> str:
        threads = f", {self.threads} thread{'s' * (self.threads > 1)}" if self.device == "cpu" else ""
        point = ", ".join(f"{key} {value}" for key, value in self.point.items())
        return f"{self.kind} {self.experiment} on {self.device}{threads}: {point}"


class DeviceKind(Kind[DevicePart, DeviceCell]):
    part, cell = DevicePart, DeviceCell
    why_other_keys_are_wrong = "kind: device runs an experiment, whose parameters stand with its name"
    estimated_from = "from such cells elsewhere"

    def cells(self, part: DevicePart, machine: AvailableMachine, notes: list[str]) -> Iterator[DeviceCell]:
        """One GPU is used; a cell on the CPU takes all cores where its point says nothing else."""
        from scaling.device_studies.base import create, parameters_of
        from scaling.study.places import default_threads

        num_cores, gpu_threads = machine.num_cores, default_threads("cuda", machine)
        experiment = create(part.experiment.name, part.experiment.parameters)
        points = list(experiment.points())
        devices = _devices(part, points, machine.num_gpus, notes)
        dropped: set[int] = set()
        for point in points:
            for device in devices:
                if point.get("only_device", device) != device:
                    continue
                threads = _threads(point, device, num_cores, gpu_threads)
                if device == "cpu" and threads > num_cores * experiment.most_threads_a_core:
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
            sizes = ", ".join(map(str, sorted(dropped)))
            times = experiment.most_threads_a_core
            twice = f", and no more than {times} threads a core" if times > 1 else ""
            notes.append(f"threads: {sizes} dropped: {num_cores} cores can be used here{twice}")

    def run(self, cell: DeviceCell, context: RunContext) -> RankSummary:
        from scaling.device_studies.base import Budget
        from scaling.study.rank.context import RankSummary
        from scaling.study.rank.device import measure_point

        budget = Budget(cell.seconds, limit_s=cell.limit_s)
        measure_point(cell.experiment, cell.parameters, cell.point, budget, context.device, context.write)
        context.seconds["unprofiled"] = context.elapsed_s()
        return RankSummary(memory_peak_bytes=context.memory_peak_bytes(), seconds=context.seconds)

    def seconds(self, cell: DeviceCell, num_cores: int, size: ModelSize | None) -> float:
        time = CELL_TIMES.get((cell.experiment, cell.device), OF_OTHERS[cell.device])
        slow_s = min(time.core_s / num_cores, cell.limit_s) + time.limit_ratio * cell.limit_s
        return time.num_timed * WARM_UP_RATIO * cell.seconds + time.own_s + slow_s

    def start_up_s(self, device: str) -> float:
        return START_UP_S + FIRST_CELL_S

    def label(self, cell: Mapping[str, Any]) -> str:
        """`device batch-sizes on cuda`."""
        return f"{cell['kind']} {cell['experiment']} on {cell['device']}"


def _devices(part: DevicePart, points: Sequence[Point], num_gpus: int, notes: list[str]) -> list[str]:
    """Those that the part wants, that the points are for and that are here; StudyError: there are none."""
    wanted = [
        device
        for device in part.devices
        if any(point.get("only_device", device) == device for point in points)
    ]
    devices = [device for device in wanted if device != "cuda" or num_gpus]
    if not devices:
        raise StudyError(
            f"experiment {part.experiment.name!r} has nothing to measure on {', '.join(part.devices)}"
            + ("" if num_gpus or "cuda" not in part.devices else ": there is no GPU that torch can use")
        )
    if devices != wanted:
        notes.append("devices: no GPU that torch can use here, so nothing is measured on cuda")
    return list(devices)


def _threads(point: Point, device: str, num_cores: int, gpu_threads: int) -> int:
    if device != "cpu":
        return gpu_threads
    threads = point.get("threads", ALL_THREADS)
    return num_cores if threads == ALL_THREADS else int(threads)


START_UP_S = 8.0  # of a launch, until its first cell begins
FIRST_CELL_S = 5.0  # what the first cell of a launch takes longer
WARM_UP_RATIO = 1.1  # of the seconds of measuring, with the warm-up


@dataclass(frozen=True)
class CellTime:
    num_timed: float = 1.0  # things that it times, each for its `seconds`
    own_s: float = 0.0  # seconds on top, whatever the study says
    core_s: float = 0.0  # seconds on top of one core, which the machine's cores share
    limit_ratio: float = 0.0  # of the study's limit, on top


OF_OTHERS = {"cuda": CellTime(own_s=1.0), "cpu": CellTime(own_s=1.0, core_s=6.0)}  # not built in

CELL_TIMES = {
    ("small-networks", "cuda"): CellTime(own_s=0.2),
    ("small-networks", "cpu"): CellTime(own_s=0.4, core_s=0.9, limit_ratio=0.04),
    ("cpu-threads", "cpu"): CellTime(own_s=1.0, core_s=12.0),
    ("batch-sizes", "cuda"): CellTime(own_s=0.6),
    ("batch-sizes", "cpu"): CellTime(own_s=0.9, core_s=6.5, limit_ratio=0.15),
    ("lstm-fused", "cuda"): CellTime(num_timed=3.0, own_s=1.2),
    ("lstm-fused", "cpu"): CellTime(num_timed=3.0, own_s=1.2, core_s=8.0),
    ("surface-regression", "cuda"): CellTime(own_s=1.2),
    ("surface-regression", "cpu"): CellTime(own_s=4.5, core_s=8.0),
    ("kernel-choices", "cuda"): CellTime(num_timed=1.7, own_s=1.9),
    ("kernel-choices", "cpu"): CellTime(own_s=0.4, core_s=1.2),
}

"""An exact exchange for each bucket by its size: the one that was fastest where the machine was measured.

1. A file has seconds by bytes for some exchanges, measured by `benchmarks/exchange_curves.py`.
2. Between two measured sizes a curve is a straight line of logarithms. An exchange that was not measured up
   to a bucket's size does not take it, as `one_shot`, which keeps its buffer in registers. Below and above
   all measured sizes the nearest one decides.
3. A bucket takes the exchange whose curve is lowest there; the first of the file if several are.

The choice depends on the file, the bucket and the number of ranks alone, so that plan and bytes are known
before anything runs. All ranks check that they choose the same.

Steps, bytes sent per rank and error: those of the chosen exchange, all of them exact.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor

from scaling.aggregators.base import Aggregator, PhaseMarker, unmarked
from scaling.aggregators.native import AllReduce
from scaling.aggregators.ring import Ring
from scaling.aggregators.schedule import AnySchedule
from scaling.aggregators.state import AggregatorState, are_same_on_ranks
from scaling.bucket import BucketLayout
from scaling.collectives.plan import Stage
from scaling.errors import StudyError
from scaling.files.documents import MAX_YAML_BYTES, DocumentError, decoded, from_yaml, read_bytes
from scaling.process_group import Group

EXCHANGES: Mapping[str, Aggregator[Any]] = {
    "all_reduce": AllReduce(),
    "ring": Ring(),
    "stripes": AnySchedule(collective="stripes"),
    "one_shot": AnySchedule(collective="recursive_doubling", transport="one_kernel"),
    "two_shot": AnySchedule(collective="stripes", transport="one_kernel"),
}
"""What a file may have, by name."""

HOW_TO_MEASURE = "measure them with benchmarks/exchange_curves.py"


@dataclass(frozen=True)
class Curves:
    """Measured seconds of exchanges: of each (bytes, seconds), ascending in bytes."""

    device: str
    world_size: int
    points: dict[str, tuple[tuple[float, float], ...]]

    def fastest(self, num_bytes: int) -> str:
        sizes = [size for curve in self.points.values() for size, _ in curve]
        size = min(max(float(num_bytes), min(sizes)), max(sizes))
        reaching = {name: one for name, one in self.points.items() if one[0][0] <= size <= one[-1][0]}
        if not reaching:  # in a gap between curves: the next measured size above
            return self.fastest(math.ceil(min(above for above in sizes if above > size)))
        return min(reaching, key=lambda name: _log_seconds(reaching[name], size))


def _log_seconds(points: tuple[tuple[float, float], ...], size: float) -> float:
    sizes, seconds = np.log(np.array(points)).T
    return float(np.interp(math.log(size), sizes, seconds))


def read_curves(path: str) -> tuple[Curves, str]:
    """The curves of a file, and its SHA-256. StudyError: there is none, or it is not of this form."""
    try:
        content = read_bytes(path, MAX_YAML_BYTES)
        return _curves(path, from_yaml(decoded(content))), hashlib.sha256(content).hexdigest()
    except DocumentError as error:
        raise StudyError(f"{path}: {error}; {HOW_TO_MEASURE}") from None
    except OSError as error:
        raise StudyError(f"{path}: cannot be read: {error.strerror}; {HOW_TO_MEASURE}") from None


def _curves(path: str, value: Any) -> Curves:
    if not isinstance(value, dict) or set(value) != {"device", "world_size", "seconds"}:
        raise StudyError(
            f"{path}: has no curves; their keys are device, world_size, seconds; {HOW_TO_MEASURE}"
        )
    device, world_size, seconds = value["device"], value["world_size"], value["seconds"]
    if device not in ("cuda", "cpu") or type(world_size) is not int or world_size < 2:
        raise StudyError(f"{path}: device is cuda or cpu, world_size a number from 2 on")
    if not isinstance(seconds, dict) or not seconds:
        raise StudyError(f"{path}: seconds has no curve; {HOW_TO_MEASURE}")
    return Curves(device, world_size, {name: _points(path, name, curve) for name, curve in seconds.items()})


def _points(path: str, name: Any, curve: Any) -> tuple[tuple[float, float], ...]:
    if name not in EXCHANGES:
        raise StudyError(f"{path}: seconds: {name!r:.40}; allowed are {', '.join(EXCHANGES)}")
    rows = curve if isinstance(curve, list) else []
    points = [tuple(row) if isinstance(row, list) else () for row in rows]
    are_numbers = all(
        len(point) == 2 and all(type(number) in (int, float) and 0 < number < math.inf for number in point)
        for point in points
    )
    if not points or not are_numbers or any(a[0] >= b[0] for a, b in pairwise(points)):
        raise StudyError(f"{path}: {name} is a list of [bytes, seconds], above 0, with ascending bytes")
    return tuple((float(size), float(time_s)) for size, time_s in points)


@dataclass
class BySizeState(AggregatorState):
    name: str
    chosen: Aggregator[Any]
    inner: AggregatorState

    @property
    def gradient_buffer(self) -> Tensor | None:
        return self.inner.gradient_buffer

    @property
    def notes(self) -> list[str]:
        return [f"exchange by size: {self.name}", *self.inner.notes]


@dataclass(frozen=True)
class BySize(Aggregator[BySizeState]):
    """The exchange that was measured to be the fastest for a bucket's size.

    `curves`: file of the measured curves. `sha256`: of the file; filled in when a study is read. A file that
    has changed since is refused."""

    name = "by_size"
    modifies_input = True
    overlaps = True
    graph_capturable = True

    curves: str = ""
    sha256: str = ""

    def __post_init__(self) -> None:
        if not self.curves:
            raise StudyError(f"{self.name} needs curves: FILE, the measured ones; {HOW_TO_MEASURE}")
        _, sha256 = read_curves(self.curves)
        if self.sha256 not in ("", sha256):
            raise StudyError(f"{self.curves}: has changed since the study was read")
        object.__setattr__(self, "sha256", sha256)

    def label(self) -> str:
        return f"{self.name}(curves={self.curves})"

    def choice(self, num_bytes: int, world_size: int) -> str:
        """The name of the exchange for a bucket of so many bytes. StudyError: the curves are of another
        number of ranks."""
        if world_size == 1:
            return "all_reduce"
        curves, _ = read_curves(self.curves)
        if curves.world_size != world_size:
            raise StudyError(
                f"{self.curves}: measured with {curves.world_size} ranks, asked for {world_size}; "
                f"{HOW_TO_MEASURE}"
            )
        return curves.fastest(num_bytes)

    def start(
        self, layout: BucketLayout, group: Group, dtype: torch.dtype, device: torch.device
    ) -> BySizeState:
        name = self.choice(layout.num_elements * dtype.itemsize, group.world_size)
        curves, _ = read_curves(self.curves)
        if group.world_size > 1 and curves.device != device.type:
            raise StudyError(
                f"{self.curves}: measured on {curves.device}, the ranks compute on {device.type}"
            )
        if not are_same_on_ranks([[*EXCHANGES].index(name)], group):
            raise StudyError(f"{self.curves}: is not the same on all ranks")
        chosen = EXCHANGES[name]
        return BySizeState(group, layout, name, chosen, chosen.start(layout, group, dtype, device))

    def aggregate(self, state: BySizeState, gradient: Tensor, phase: PhaseMarker = unmarked) -> Tensor | None:
        return state.chosen.aggregate(state.inner, gradient, phase)

    def wire_bytes(self, layout: BucketLayout, world_size: int, rank: int, itemsize: int) -> int | None:
        name = self.choice(layout.num_elements * itemsize, world_size)
        return EXCHANGES[name].wire_bytes(layout, world_size, rank, itemsize)

    def stages(self, layout: BucketLayout, world_size: int) -> list[Stage]:
        return EXCHANGES[self.choice(layout.num_elements * 4, world_size)].stages(layout, world_size)

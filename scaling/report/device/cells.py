"""The samples of a device cell: estimates and facts of one point of an experiment on one device."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain
from statistics import geometric_mean
from typing import Any

import numpy as np

from scaling.analysis.decisions import Difference
from scaling.analysis.study_scatter import StudyScatter, estimate_within
from scaling.measure.statistics import Estimate, interval_of_launches, interval_of_mean
from scaling.store import RunRecord

LEFT_OUT = "left_out"
SAMPLES = "samples"
STEP = "step"


@dataclass(frozen=True)
class DeviceResult:
    cell_id: str
    cell: Mapping[str, Any]
    records: list[RunRecord]
    launches: Mapping[int, list[dict[str, Any]]]
    scatters: dict[str, StudyScatter] = field(default_factory=dict, repr=False)

    @property
    def point(self) -> dict[str, Any]:
        return dict(self.cell["point"])

    @property
    def device(self) -> str:
        return str(self.cell["device"])

    @property
    def threads(self) -> int:
        return int(self.cell["threads"])

    def value(self, name: str) -> Any:
        known = {"step": "eager", **self.point, "device": self.device, "threads": self.threads}
        return known[name] if name in known else self.fact(name)

    @property
    def reason(self) -> str | None:
        """Why it has no numbers: it was left out, or has failed; None where it has, or is not done."""
        left_out = self.fact(LEFT_OUT)
        if left_out is not None:
            return str(left_out)
        return next((record.reason for record in self.records if record.state == "failed"), None)

    @cached_property
    def phases(self) -> list[str]:
        return list(dict.fromkeys(row["phase"] for row in self._rows if "phase" in row))

    @property
    def _rows(self) -> Iterator[dict[str, Any]]:
        return chain.from_iterable(self.launches.values())

    def seconds(self, phase: str = STEP) -> dict[int, list[float]]:
        launches = {
            repeat: [row["seconds"] for row in rows if row.get("phase") == phase]
            for repeat, rows in self.launches.items()
        }
        return {repeat: samples for repeat, samples in launches.items() if samples}

    def estimate(self, phase: str = STEP) -> Estimate | None:
        launches = [*self.seconds(phase).values()]
        return estimate_within(launches, self.scatters.get(phase), self.cell_id) if launches else None

    def median(self, phase: str = STEP) -> float:
        estimate = self.estimate(phase)
        return estimate.median if estimate else math.inf

    def mean(self, phase: str = STEP) -> tuple[float, float | None, float | None] | None:
        """Of a phase's seconds the launches' means, combined on the log scale, and its 95% interval: what a
        rate is of, since a median has no long steps in it. None where there is no sample.
        """
        launches = [np.array(samples) for samples in self.seconds(phase).values()]
        if not launches or min(one.mean() for one in launches) <= 0:
            return None
        means = [float(one.mean()) for one in launches]
        ends = interval_of_launches(means) if len(means) > 1 else interval_of_mean(launches[0])
        return geometric_mean(means) if len(means) > 1 else means[0], *ends

    def difference(
        self, other: DeviceResult, phase: str = STEP, log_factor: float = 0.0
    ) -> Difference | None:
        """The other's time over this one's, times e to the power log_factor; None where one has none."""
        scatter = self.scatters.get(phase)
        if scatter is None or not (
            scatter.num_launches(self.cell_id) and scatter.num_launches(other.cell_id)
        ):
            return None
        return scatter.difference(self.cell_id, other.cell_id, log_factor)

    def facts(self, name: str) -> list[dict[str, Any]]:
        return [row for row in self._rows if row.get("fact") == name]

    def fact(self, name: str) -> Any:
        return next((row["value"] for row in self.facts(name) if "value" in row), None)

    @cached_property
    def scalars(self) -> dict[str, Any]:
        facts: dict[str, Any] = {}
        for row in self._rows:
            if "fact" in row and isinstance(row.get("value"), (int, float, str)):
                facts.setdefault(row["fact"], row["value"])
        return facts

    @property
    def num_samples(self) -> int:
        return int(self.fact(SAMPLES) or 1)

    @property
    def has_failed(self) -> bool:
        return any(record.state == "failed" for record in self.records)

    @property
    def is_over(self) -> bool:
        return all(record.state in ("done", "failed") for record in self.records)

    @property
    def samples_per_s(self) -> float | None:
        mean, samples = self.mean(), self.fact(SAMPLES)
        return samples / mean[0] if mean and samples else None


def fastest(cells: Iterable[DeviceResult], phase: str = STEP) -> DeviceResult | None:
    """The cell with the least median time; None where none has one, or one of several is not measured yet."""
    every = [*cells]
    timed = [cell for cell in every if cell.estimate(phase)]
    if len(every) > 1 and not all(cell.is_over for cell in every):
        return None
    return min(timed, key=lambda cell: cell.median(phase), default=None)


def size_of(value: Any) -> tuple[int, float, str]:
    return (0, float(value), "") if isinstance(value, (int, float)) else (1, 0.0, str(value))


def place(cell: DeviceResult) -> tuple[Any, ...]:
    """By the point's values, then device and threads: the order of columns in the summary."""
    return ([size_of(value) for value in cell.point.values()], cell.device, cell.threads, cell.cell_id)

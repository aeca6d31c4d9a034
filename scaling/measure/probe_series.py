"""The probe's samples by what was measured: fits, rates, and a table for people."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from scaling.measure.link_fit import LinkFit, fit_link
from scaling.measure.probe import Sample, bus_factor
from topologies.texts import gigabytes_per_s, microseconds


@dataclass(frozen=True)
class Observed:
    """A figure with its spread, in its own unit.

    Attributes:
        value: of the medians.
        low, high: of a 95% interval, or of the quartiles where there is one size.
        num_samples: of the size that has fewest.
        what: was done, for people.
    """

    value: float
    low: float
    high: float
    num_samples: int
    what: str = ""

    def times(self, factor: float) -> Observed:
        """The same in another unit, or of several alike together."""
        return replace(self, value=self.value * factor, low=self.low * factor, high=self.high * factor)

    def called(self, what: str) -> Observed:
        """The same with those words."""
        return replace(self, what=what)

    @classmethod
    def middle(cls, several: Sequence[Observed]) -> Observed:
        """The median of several, with the spread of all."""
        return cls(
            value=float(np.median([one.value for one in several])),
            low=min(one.low for one in several),
            high=max(one.high for one in several),
            num_samples=min(one.num_samples for one in several),
            what=several[0].what,
        )


@dataclass(frozen=True)
class OneSeries:
    """The samples of an operation in all its sizes.

    Attributes:
        example: one of the samples.
        seconds: size in bytes -> times.
    """

    example: Sample
    seconds: dict[int, list[float]]

    @cached_property
    def fit(self) -> LinkFit | None:
        """None where there is one size."""
        return fit_link(self.seconds) if len(self.seconds) > 1 else None

    @cached_property
    def rate(self) -> Observed:
        """Bytes a second of the largest size."""
        size = max(self.seconds)
        rates = size / np.array(self.seconds[size])
        low, middle, high = (float(value) for value in np.percentile(rates, [25, 50, 75]))
        return Observed(middle, low, high, len(rates))

    @property
    def bandwidth_bytes_per_s(self) -> float:
        """As fitted, or of the largest size where the time depends on nothing else."""
        if self.fit is None or math.isinf(self.fit.bandwidth_bytes_per_s):
            return self.rate.value
        return self.fit.bandwidth_bytes_per_s

    @property
    def bandwidth(self) -> Observed:
        """The same with its spread."""
        value = self.bandwidth_bytes_per_s
        if self.fit is None or value != self.fit.bandwidth_bytes_per_s:
            return self.rate
        low, high = self.fit.bandwidth_interval_bytes_per_s
        return Observed(value, low, high if math.isfinite(high) else value, self.fit.num_samples)

    @property
    def latency(self) -> Observed | None:
        """Seconds; None where there is one size."""
        if self.fit is None:
            return None
        return Observed(self.fit.latency_s, *self.fit.latency_interval_s, self.fit.num_samples)

    def median_s(self, num_bytes: int) -> float:
        """Of the times of a size."""
        return float(np.median(self.seconds[num_bytes]))


class Series:
    """All samples of the probe.

    Args:
        samples: of all launches.
    """

    def __init__(self, samples: Iterable[Sample]) -> None:
        self._found: dict[tuple[Any, ...], OneSeries] = {}
        for sample in samples:
            known = self._found.setdefault(sample.series, OneSeries(sample, {}))
            known.seconds.setdefault(sample.num_bytes, []).append(sample.seconds)

    def all(self) -> list[OneSeries]:
        """In the order in which they were measured."""
        return list(self._found.values())

    def where(self, operation: str, **wanted: Any) -> list[OneSeries]:
        """Those of an operation whose examples have these attributes: ranks, memory, launch, ..."""
        return [
            one
            for one in self._found.values()
            if one.example.operation == operation
            and all(getattr(one.example, name) == value for name, value in wanted.items())
        ]

    def first(self, operation: str, **wanted: Any) -> OneSeries | None:
        """The first of them, if there is one."""
        return next(iter(self.where(operation, **wanted)), None)

    def messages(self, launch: str) -> list[OneSeries]:
        """Single messages of a launch: captured ones where there are any."""
        return self.where("send", launch=launch, captured=True) or self.where("send", launch=launch)


def together(series: Sequence[OneSeries], of: Callable[[OneSeries], Observed | None]) -> Observed | None:
    """The median of a figure of several series; None where none has it."""
    found = [value for one in series if (value := of(one)) is not None]
    return Observed.middle(found) if found else None


def table(series: Series) -> list[str]:
    """A line for each operation: latency and bandwidth as fitted, and busbw of its largest size.

    The fit is off by so much at the size where it is worst.
    """
    head = ["", "latency", "bandwidth", "fit off by", "largest", "time", "busbw"]
    rows = [head, *(_row(one) for one in series.all())]
    widths = [max(len(row[at]) for row in rows) for at in range(len(head))]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    ]


def _row(one: OneSeries) -> list[str]:
    example, largest = one.example, max(one.seconds)
    busbw = one.rate.value * bus_factor(example.operation, len(example.ranks))
    latency, bandwidth, off = "", "", ""
    if one.fit is not None:
        latency, off = microseconds(one.fit.latency_s), f"{one.fit.worst_error_ratio:.0%}"
        bandwidth = gigabytes_per_s(one.bandwidth_bytes_per_s)
    seconds = one.median_s(largest)
    return [
        _label(example),
        latency,
        bandwidth,
        off,
        _size(largest),
        f"{seconds * 1e3:.4g} ms",
        gigabytes_per_s(busbw),
    ]


def _label(sample: Sample) -> str:
    words = [sample.operation, sample.memory, "captured" if sample.captured else ""]
    words += [f"ranks {','.join(map(str, sample.ranks))}"]
    words += [f"{sample.num_threads} thread" if sample.num_threads else ""]
    words += ["host-only" if sample.launch == "host_only" else ""]
    return " ".join(filter(None, words))


def _size(num_bytes: int) -> str:
    for unit, name in ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")):
        if num_bytes >= unit:
            return f"{num_bytes / unit:g} {name}"
    return f"{num_bytes} B"

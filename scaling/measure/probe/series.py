"""The probe's samples by what was measured: fits, rates, and a table for people."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scaling.files.texts import flops_per_s, gigabytes_per_s, microseconds
from scaling.measure.probe.cases import ProbeSample, bus_factor, product_size

FloatArray = NDArray[np.float64]

RESAMPLES = 200
CONFIDENCE = 0.95


@dataclass(frozen=True)
class LinkFit:
    """`latency_s`: 0: times are proportional to bytes; `bandwidth_bytes_per_s`: infinite where they do not
    depend on them; `worst_error_ratio`: at a size's median; `samples`: size in bytes -> times, by size."""

    latency_s: float
    bandwidth_bytes_per_s: float
    worst_error_ratio: float
    worst_error_bytes: int
    samples: Mapping[int, FloatArray] = field(repr=False)

    @property
    def num_samples(self) -> int:
        return min(len(values) for values in self.samples.values())

    def seconds(self, num_bytes: float) -> float:
        return self.latency_s + num_bytes / self.bandwidth_bytes_per_s

    @property
    def latency_interval_s(self) -> tuple[float, float]:
        return _interval(self._resampled[0])

    @property
    def bandwidth_interval_bytes_per_s(self) -> tuple[float, float]:
        fast, slow = _interval(self._resampled[1])
        return _inverse(slow), _inverse(fast)

    @cached_property
    def _resampled(self) -> tuple[FloatArray, FloatArray]:
        generator = np.random.default_rng(0)  # the same samples give the same file
        drawn = [generator.choice(values, (RESAMPLES, len(values))) for values in self.samples.values()]
        medians = np.stack([np.median(values, axis=1) for values in drawn], axis=1)
        return _line(np.array(list(self.samples), dtype=np.float64), medians)


def fit_link(seconds: Mapping[int, Sequence[float]]) -> LinkFit:
    """`seconds`: size in bytes -> times of single messages. ValueError: fewer than two sizes, a size without
    samples, or a time that is not positive."""
    if len(seconds) < 2:
        raise ValueError(f"{len(seconds)} sizes: latency and bandwidth need two at least")
    samples = {size: np.asarray(seconds[size], dtype=np.float64) for size in sorted(seconds)}
    if any(not len(values) or not (values > 0).all() for values in samples.values()):
        raise ValueError("every size needs a sample, and every time has to be positive")
    num_bytes = np.array(list(samples), dtype=np.float64)
    medians = np.array([np.median(values) for values in samples.values()])
    latency_s, s_per_byte = (float(value) for value in _line(num_bytes, medians))
    errors = np.abs((latency_s + num_bytes * s_per_byte) / medians - 1)
    worst = int(errors.argmax())
    return LinkFit(latency_s, _inverse(s_per_byte), float(errors[worst]), list(samples)[worst], samples)


def _line(num_bytes: FloatArray, seconds: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Latency, and time a byte. `seconds`: [..., sizes]; a line for each entry of the leading axes."""
    share = num_bytes / num_bytes[-1]
    longest = seconds[..., -1]
    # With t = latency (1 - share) + longest share, errors are linear in the latency, and 0 at the largest.
    weights = (1 - share) / seconds
    missing = 1 - share * longest[..., None] / seconds
    best = (weights * missing).sum(axis=-1) / (weights**2).sum(axis=-1)
    latency = np.clip(best, 0, longest)
    return latency, (longest - latency) / num_bytes[-1]


def _interval(values: FloatArray) -> tuple[float, float]:
    tail = 100 * (1 - CONFIDENCE) / 2
    low, high = np.percentile(values, [tail, 100 - tail])
    return float(low), float(high)


def _inverse(s_per_byte: float) -> float:
    return 1 / s_per_byte if s_per_byte > 0 else math.inf


MOSTLY_LATENCY_RATIO = 0.5
"""A largest size of which this part is latency tells no bandwidth beyond its own rate."""


@dataclass(frozen=True)
class Observed:
    """A figure with its spread, in its own unit. `low`, `high`: of a 95% interval, or of the quartiles where
    there is one size; `num_bytes`: the size that it holds for; None where it is of all sizes."""

    value: float
    low: float
    high: float
    num_samples: int
    what: str = ""
    num_bytes: int | None = None

    def times(self, factor: float) -> Observed:
        return replace(self, value=self.value * factor, low=self.low * factor, high=self.high * factor)

    def called(self, what: str) -> Observed:
        return replace(self, what=what)

    @classmethod
    def middle(cls, several: Sequence[Observed]) -> Observed:
        return cls(
            value=float(np.median([observed.value for observed in several])),
            low=min(observed.low for observed in several),
            high=max(observed.high for observed in several),
            num_samples=min(observed.num_samples for observed in several),
            what=several[0].what,
            num_bytes=several[0].num_bytes,
        )


@dataclass(frozen=True)
class OneSeries:
    example: ProbeSample
    seconds: dict[int, list[float]]

    @cached_property
    def fit(self) -> LinkFit | None:
        return fit_link(self.seconds) if len(self.seconds) > 1 else None

    @cached_property
    def rate(self) -> Observed:
        size = self.largest_bytes
        rates = size / np.array(self.seconds[size])
        low, middle, high = (float(value) for value in np.percentile(rates, [25, 50, 75]))
        return Observed(middle, low, high, len(rates), num_bytes=size)

    @cached_property
    def product_rate(self) -> Observed | None:
        best = None
        for num_bytes, seconds in self.seconds.items():
            size = product_size(self.example.operation, num_bytes)
            if size is None:
                return None
            quartiles = np.percentile(2 * size**3 / np.array(seconds), [25, 50, 75])
            low, middle, high = (float(value) for value in quartiles)
            if best is None or middle > best.value:
                what = f"products of {size} x {size} matrices of random numbers, the best size"
                best = Observed(middle, low, high, len(seconds), what)
        return best

    @property
    def largest_bytes(self) -> int:
        return max(self.seconds)

    @property
    def bandwidth(self) -> Observed:
        fit = self.fit
        if fit is None or fit.latency_s > MOSTLY_LATENCY_RATIO * self.median_s(self.largest_bytes):
            return self.rate
        value = fit.bandwidth_bytes_per_s
        low, high = fit.bandwidth_interval_bytes_per_s
        return Observed(
            value, low, high if math.isfinite(high) else value, fit.num_samples, num_bytes=self.largest_bytes
        )

    @property
    def latency(self) -> Observed | None:
        if self.fit is None:
            return None
        return Observed(self.fit.latency_s, *self.fit.latency_interval_s, self.fit.num_samples)

    def median_s(self, num_bytes: int) -> float:
        return float(np.median(self.seconds[num_bytes]))


class Series:
    def __init__(self, samples: Iterable[ProbeSample]) -> None:
        self._found: dict[tuple[Any, ...], OneSeries] = {}
        for sample in samples:
            known = self._found.setdefault(sample.series, OneSeries(sample, {}))
            known.seconds.setdefault(sample.num_bytes, []).append(sample.seconds)

    def all(self) -> list[OneSeries]:
        return list(self._found.values())

    def where(self, operation: str, **wanted: Any) -> list[OneSeries]:
        """Those of an operation whose examples have these attributes: ranks, memory, launch, ..."""
        return [
            single
            for single in self._found.values()
            if single.example.operation == operation
            and all(getattr(single.example, name) == value for name, value in wanted.items())
        ]

    def first(self, operation: str, **wanted: Any) -> OneSeries | None:
        return next(iter(self.where(operation, **wanted)), None)

    def messages(self, launch: str) -> list[OneSeries]:
        return self.where("send", launch=launch, captured=True) or self.where("send", launch=launch)


def together(series: Sequence[OneSeries], of: Callable[[OneSeries], Observed | None]) -> Observed | None:
    """None where none has it. A series that broke off before another's largest size does not count."""
    reached = max((single.largest_bytes for single in series), default=0)
    values = [
        value for single in series if single.largest_bytes == reached and (value := of(single)) is not None
    ]
    return Observed.middle(values) if values else None


HEADINGS = ("", "latency", "bandwidth", "line off by", "largest", "time", "algbw", "busbw")


def table(series: Series) -> list[str]:
    """A line for each operation: the fit, its worst error, and the largest size with its bandwidths."""
    rows = [HEADINGS, *(_row(single) for single in series.all())]
    widths = [max(len(row[at]) for row in rows) for at in range(len(HEADINGS))]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    ]


def _row(single: OneSeries) -> tuple[str, ...]:
    fitted = ("", "", "")
    if (product := single.product_rate) is not None:
        size = max(single.seconds, key=lambda num_bytes: num_bytes**1.5 / single.median_s(num_bytes))
        n = product_size(single.example.operation, size)
        time = f"{single.median_s(size) * 1e3:.4g} ms"
        return (label(single.example), *fitted, f"{n} x {n}", time, flops_per_s(product.value), "")
    if single.fit is not None:
        off = f"{single.fit.worst_error_ratio:.0%} at {size_text(single.fit.worst_error_bytes)}"
        fitted = (microseconds(single.fit.latency_s), gigabytes_per_s(single.bandwidth.value), off)
    factor = bus_factor(single.example.operation, len(single.example.ranks))
    return (
        label(single.example),
        *fitted,
        size_text(single.largest_bytes),
        f"{single.median_s(single.largest_bytes) * 1e3:.4g} ms",
        gigabytes_per_s(single.rate.value),
        gigabytes_per_s(single.rate.value * factor),
    )


def label(sample: ProbeSample) -> str:
    words = [sample.operation, sample.memory, "captured" if sample.captured else ""]
    words += [f"ranks {','.join(map(str, sample.ranks))}"]
    words += [f"{sample.num_threads} thread" if sample.num_threads else ""]
    words += ["host-only" if sample.launch == "host_only" else ""]
    return " ".join(filter(None, words))


def size_text(num_bytes: int) -> str:
    for unit, name in ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")):
        if num_bytes >= unit:
            return f"{num_bytes / unit:g} {name}"
    return f"{num_bytes} B"

"""Latency and bandwidth of a link from the times of messages of several sizes.

The line is t = latency + bytes / bandwidth.

1. The samples of a size count as their median.
2. The line goes through the median of the largest size: bandwidth is what large messages get.
3. The latency has the least squares of relative errors over the other sizes, so that a message of a few KiB
   counts as much as one of a hundred MiB: minimize the sum of ((latency + bytes / bandwidth) / t - 1)^2.
   It is never negative, and never longer than the largest size takes.
4. The spread comes from a bootstrap: the samples of each size are drawn anew, and fitted again.

A line free at both ends would be drawn to where the link changes its ways (protocols, caches), and would then
miss what large messages get by a third. This one misses those in the middle: `worst_error_ratio` says by how
much, and `worst_error_bytes` where.

References: R. W. Hockney, "The communication challenge for MPP: Intel Paragon and Meiko CS-2", Parallel
Computing 20 (1994), for the model; B. Efron, R. Tibshirani, "An Introduction to the Bootstrap", Chapman &
Hall (1993).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]

RESAMPLES = 200
CONFIDENCE = 0.95


@dataclass(frozen=True)
class LinkFit:
    """What was fitted.

    Attributes:
        latency_s: 0 where the times are proportional to the bytes.
        bandwidth_bytes_per_s: infinite where they do not depend on the bytes.
        worst_error_ratio: the largest relative error of the line at a size's median.
        worst_error_bytes: the size where it is.
        samples: size in bytes -> times, by size.
    """

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
    """Fits latency and bandwidth.

    Args:
        seconds: size in bytes -> times of single messages; positive, two sizes at least.

    Raises:
        ValueError: there are fewer sizes, a size without samples, or a time that is not positive.
    """
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
    """Latency, and time a byte.

    Args:
        num_bytes: the sizes, ascending: [sizes].
        seconds: [..., sizes]; a line for each entry of the leading axes.
    """
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

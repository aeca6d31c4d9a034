"""The best buckets of gradients under a model of the exchange, with a certificate.

The model, of N gradients in the order in which they become ready:

1. A bucket holds gradients that follow one another; it is ready when its last gradient is.
2. Exchanges follow one another: each starts when its bucket is ready and the one before has ended.
3. An exchange of b bytes takes T(b) seconds, by measured points with straight lines between them.

What is made small is the time at which the last exchange ends. With f(j) the earliest end of the exchanges of
the first j gradients and B(j) their bytes,

    f(j) = min over i < j of max(f(i), ready(j)) + T(B(j) - B(i)),    f(0) = 0,

since an earlier end of the first i never makes what follows end later. So f(N) is the least time of all
2**(N-1) partitions: no partition is faster under the model, which is the certificate. What the model leaves
out (exchanges that slow the backward pass down, the host's time for each bucket) is for measurements to tell.

Source: the recurrence is R. Bellman's principle of optimality, Dynamic Programming (1957); the model of
exchanges in turn is that of S. Shi, X. Chu, B. Li, "MG-WFBP: Efficient Data Communication for Distributed
Synchronous SGD Algorithms", INFOCOM 2019.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

MOST_BUCKETS = 64  # so many numbers of buckets have their best partition; the best of all any number
MOST_TRIED = 48  # sizes of the first bucket, and of the others, where DDP takes these two alone
SECOND_BEST_RATIO = 2  # of the numbers of buckets that are measured: like ones take like times
SAME_RATIO = 0.01  # of the time, by the model: the partition with fewer buckets is measured

MB = 2**20


@dataclass(frozen=True)
class ExchangeCurve:
    """Seconds of an exchange by its bytes: points that ascend in both."""

    num_bytes: tuple[float, ...]
    seconds: tuple[float, ...]

    @classmethod
    def of(cls, samples: Iterable[tuple[float, float]]) -> ExchangeCurve:
        """From (bytes, seconds): the medians of each octave of bytes; more bytes take no less."""
        octaves: dict[int, list[tuple[float, float]]] = {}
        for size, seconds in samples:
            octaves.setdefault(int(np.floor(np.log2(max(size, 1)))), []).append((size, seconds))
        points = sorted(tuple(map(median, zip(*of_octave, strict=True))) for of_octave in octaves.values())
        rising = np.maximum.accumulate([seconds for _, seconds in points])
        return cls(tuple(size for size, _ in points), tuple(map(float, rising)))

    def at(self, num_bytes: Floats) -> Floats:
        """Seconds of exchanges of so many bytes; beyond the last point at its bytes a second."""
        interpolated: Floats = np.interp(num_bytes, self.num_bytes, self.seconds)
        last = self.num_bytes[-1]
        return np.where(num_bytes > last, self.seconds[-1] * num_bytes / last, interpolated)


@dataclass(frozen=True)
class Gradients:
    """Gradients in the order in which they become ready."""

    ready_s: tuple[float, ...]  # when, from the start of the step; ascending
    num_bytes: tuple[int, ...]  # of each

    @property
    def bytes_before(self) -> Floats:
        """Bytes of the first 0, 1, ... N gradients: [N + 1]."""
        return np.concatenate([[0.0], np.cumsum(self.num_bytes, dtype=np.float64)])


@dataclass(frozen=True)
class Partition:
    ends: tuple[int, ...]  # number of gradients up to the end of each bucket; ascending, the last is N
    end_s: float  # of the last exchange, by the model
    sizes_mb: tuple[float, ...] = ()  # what DDP is given for them, in MiB, if that is not the size of each

    def sizes_for_ddp(self, gradients: Gradients) -> tuple[float, ...]:
        """The upper size of each bucket in MiB, in few digits, of which the last is repeated."""
        if self.sizes_mb:
            return self.sizes_mb
        before = gradients.bytes_before / MB
        return tuple(
            _shortest(before[end - 1] - before[begin], before[end] - before[begin])
            for begin, end in pairwise((0, *self.ends))
        )


def _shortest(above: float, up_to: float) -> float:
    """A number of few digits that is above one and not above the other."""
    rounded = (math.floor(up_to * 10.0**digits) / 10.0**digits for digits in range(8))
    return next((number for number in rounded if number > above), up_to)


def end_s(ends: Sequence[int], gradients: Gradients, curve: ExchangeCurve) -> float:
    before, end = gradients.bytes_before, 0.0
    for first, last in pairwise((0, *ends)):
        size = np.array([before[last] - before[first]])
        end = max(end, gradients.ready_s[last - 1]) + float(curve.at(size)[0])
    return end


def closed_by(sizes_mb: Sequence[float], num_bytes: Sequence[int]) -> tuple[int, ...]:
    """The ends of DDP's buckets: one is closed as soon as it holds its size; the last size is repeated."""
    ends: list[int] = []
    filled = 0.0
    for number, size in enumerate(num_bytes, start=1):
        filled += size
        if filled >= MB * sizes_mb[min(len(ends), len(sizes_mb) - 1)] or number == len(num_bytes):
            ends.append(number)
            filled = 0.0
    return tuple(ends)


def _costs(gradients: Gradients, curve: ExchangeCurve) -> Floats:
    """Seconds of the exchange of gradients i + 1 to j, [i, j]; infinite where there are none."""
    before = gradients.bytes_before
    sizes = before[None, :] - before[:, None]
    num = len(before)
    return np.where(np.arange(num)[:, None] < np.arange(num)[None, :], curve.at(np.maximum(sizes, 0)), np.inf)


def best_partition(gradients: Gradients, curve: ExchangeCurve) -> Partition:
    """The partition that ends first of all, by the model: no other one ends before it."""
    costs, num = _costs(gradients, curve), len(gradients.num_bytes)
    earliest, cut = np.zeros(num + 1), np.zeros(num + 1, dtype=np.int64)
    for j in range(1, num + 1):
        ends = np.maximum(earliest[:j], gradients.ready_s[j - 1]) + costs[:j, j]
        cut[j] = int(np.argmin(ends))
        earliest[j] = ends[cut[j]]
    return Partition(_ends(lambda j, _: int(cut[j]), num, num), float(earliest[num]))


def best_by_count(gradients: Gradients, curve: ExchangeCurve, most: int = MOST_BUCKETS) -> list[Partition]:
    """The partition that ends first of those with 1, 2, ... `most` buckets."""
    costs, num = _costs(gradients, curve), len(gradients.num_bytes)
    ready = np.concatenate([[0.0], gradients.ready_s])
    earliest, cuts, partitions = np.concatenate([[0.0], np.full(num, np.inf)]), [], []
    for count in range(1, min(most, num) + 1):
        ends = np.maximum(earliest[:, None], ready[None, :]) + costs
        cuts.append(np.argmin(ends, axis=0))
        earliest = ends.min(axis=0)
        ends_of = _ends(lambda j, k: int(cuts[k - 1][j]), num, count)
        partitions.append(Partition(ends_of, float(earliest[num])))
    return partitions


def _ends(cut, num: int, count: int) -> tuple[int, ...]:  # type: ignore[no-untyped-def]
    """The ends that lead to gradient `num`: cut(j, k) is where the last of k buckets up to j begins."""
    ends: list[int] = []
    while num > 0:
        ends[:0] = [num]
        num, count = cut(num, count), count - 1
    return tuple(ends)


def of_two_sizes(gradients: Gradients, curve: ExchangeCurve) -> list[Partition]:
    """The best of each number of buckets that a first size and one of the others give."""
    before = gradients.bytes_before[1:] / MB
    tried = before[np.unique(np.linspace(0, len(before) - 1, MOST_TRIED).astype(int))]
    others = np.geomspace(max(min(gradients.num_bytes) / MB, tried[-1] / 1e4), tried[-1], MOST_TRIED)
    best: dict[int, Partition] = {}
    for first in tried:
        for other in others:
            sizes = (float(first), float(other))
            ends = closed_by(sizes, gradients.num_bytes)
            if len(ends) in best and best[len(ends)].ends == ends:
                continue
            partition = Partition(ends, end_s(ends, gradients, curve), sizes)
            if len(ends) not in best or partition.end_s < best[len(ends)].end_s:
                best[len(ends)] = partition
    return [best[count] for count in sorted(best)]


def to_measure(
    gradients: Gradients, curve: ExchangeCurve, default: Partition, count: int, *, takes_sizes: bool = True
) -> list[Partition]:
    """The best `count` partitions at most, the best first, that are not the default, which is measured
    anyhow; `takes_sizes`: DDP takes the sizes of all buckets, else of the first and of the others."""
    by_count = [best_partition(gradients, curve), *best_by_count(gradients, curve)] if takes_sizes else []
    candidates = by_count or of_two_sizes(gradients, curve)
    least_s = min(partition.end_s for partition in candidates)

    def order(partition: Partition) -> tuple[bool, float]:
        """Those that end as early as the best, the fewest buckets first; then the others."""
        is_late = partition.end_s > (1 + SAME_RATIO) * least_s
        return is_late, partition.end_s if is_late else len(partition.ends)

    chosen: list[Partition] = []
    for partition in sorted(candidates, key=order):
        own, numbers = len(partition.ends), [len(other.ends) for other in chosen]
        near = any(max(own, other) < SECOND_BEST_RATIO * min(own, other) for other in numbers)
        if len(chosen) < count and not near and partition.ends != default.ends:
            chosen.append(partition)
    return chosen


def of_default(sizes_mb: Sequence[float], gradients: Gradients, curve: ExchangeCurve) -> Partition:
    ends = closed_by(sizes_mb, gradients.num_bytes)
    return Partition(ends, end_s(ends, gradients, curve), tuple(sizes_mb))

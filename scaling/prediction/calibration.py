"""How far each kind of work is off what the machine file says: factors, fitted to what was measured.

Every kind of term (`scaling.prediction.terms`) has two factors, of its latency and of its flow, and a trend:
what each doubling of the ranks beyond two multiplies its flow by, since they share host memory, root ports or
switches. They are the maximum a posteriori of

    log(measured) = error + log(sum over terms of latency factor x latency
                                + flow factor x trend^log2(ranks / 2) x flow),

with log-normal priors round 1 (`PRIOR_SD`), and errors of which each measurement has its own deviation, that
of the model (`MODEL_SD`), and `CLOCK_S` in seconds. The posterior is taken as normal in the logarithms
(Laplace): its covariance is the uncertainty of every prediction that uses the factors. Where nothing was
measured they are 1, and the priors say how wrong that may be.

What a strategy took beyond the fit where it was measured (`left_over`) is taken to stay with it at other
world sizes. Of a library's all-reduce the left-over depends on its size (`native_left_over`).
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scaling.prediction.estimate import PredictedValue, sd_that_reaches
from scaling.prediction.terms import Term

Floats = NDArray[np.float64]

PRIOR_SD: dict[str, tuple[float, float]] = {
    "peer_memory": (0.7, 0.25),
    "peer_memory_captured": (0.7, 0.0),
    "sends": (0.7, 0.35),
    "sends_host": (0.7, 0.35),
    "native": (0.7, 0.30),
    "native_host": (0.7, 0.35),
    "mpi": (1.0, 0.60),
    "host": (0.7, 0.50),
    "host_work": (0.7, 0.60),
    "host_threads": (0.7, 0.60),
    "horovod": (0.7, 0.0),
    "codec": (1.0, 1.0),
    "codec_kernels": (1.0, 0.5),
    "codec_kernels_captured": (1.0, 0.5),
    "gpu_work": (0.7, 0.20),
}
"""Of the logarithms of a kind's latency and flow factors: assumptions, from how far files were off."""

TREND_SD: dict[str, float] = {
    **dict.fromkeys(("peer_memory", "sends", "native"), 0.10),
    **dict.fromkeys(("sends_host", "native_host", "host", "host_work", "host_threads"), 0.15),
    "mpi": 0.20,
}
"""Of the logarithm of what each doubling of the ranks beyond two does to a kind's flow, where ranks share
host memory, root ports and switches. Assumptions: from two ranks to four the time changed by -8% (NCCL,
NVLink) to +13% (NCCL, host-only)."""

MODEL_SD = 0.08
"""Relative deviation that the model has of its own at each measurement. An assumption."""

CLOCK_S = 10e-6
"""What a measured exchange is uncertain by, whatever its length: clocks, starts of kernels."""

LARGEST_SD = 1e6
"""What was measured in no time at all says nothing."""

LEFT_OVER_SD = 0.08
"""Of a strategy's left-over for each doubling of the world size it was measured at. An assumption."""

NAMES = {
    "peer_memory": "exchanges over peer memory",
    "sends": "messages",
    "sends_host": "messages through host memory",
    "native": "NCCL's all-reduce",
    "native_host": "NCCL's all-reduce through host memory",
    "host": "copies to host memory and back",
    "host_work": "sums by stated threads in host memory",
    "host_threads": "sums by all threads in host memory",
    "mpi": "MPI",
}
"""Of kinds with a trend, for people."""

LARGE_FLOW_S = 1e-3
"""From which on an exchange tells what shared paths carry: smaller ones stay in the processor's cache."""

PARTS = ("latency", "flow", "more ranks")

SOFT_SDS = 2.0
"""Errors beyond so many deviations count less and less in the fit."""

MEDIAN_OF_CHI_SQUARE = 0.455
"""Of one degree of freedom: what the median of squared errors is if they are as large as stated."""

CURVE_SD = 0.12
"""Of a library's all-reduce by its curve over sizes on two ranks, for each doubling from there. Measured: 4
to 33% off on four H200 GPUs."""

UNMEASURED_LEFT_OVER_SD = 0.15
"""Of strategies that were measured at no world size, unless the others' left-overs spread more."""


@dataclass(frozen=True)
class Observation:
    """A measured aggregation, or transfer.

    Attributes:
        key: of the strategy, for its left-over; None for transfers.
        terms: what it consists of.
        seconds: that it took.
        relative_sd: of those.
        world_size: ranks.
    """

    key: tuple[str, ...] | None
    terms: Sequence[Term]
    seconds: float
    relative_sd: float
    world_size: int

    @property
    def sd(self) -> float:
        """Of the logarithm, with the model's and the clock's."""
        by_clock = min(CLOCK_S / self.seconds, LARGEST_SD)
        return math.hypot(min(self.relative_sd, LARGEST_SD), MODEL_SD, by_clock)


@dataclass(frozen=True)
class Calibration:
    """The factors.

    Attributes:
        names: (kind, 0 latency, 1 flow or 2 trend) of each entry.
        logs: their logarithms.
        covariance: of those.
        left_over: strategy -> (logarithm, its deviation, the world size).
        native_left_over: kind -> (bytes, logarithm) by size.
        left_over_sd: of strategies that were not measured, by the last part of their key.
        num_observations: fitted to.
        measured_ranks: kind -> the world sizes that were measured.
        shared_scale: kind -> the least time on shared paths seen, over the machine file's; 1 at most.
    """

    names: tuple[tuple[str, int], ...] = ()
    logs: tuple[float, ...] = ()
    covariance: Floats = field(default_factory=lambda: np.zeros((0, 0)))
    left_over: Mapping[tuple[str, ...], tuple[float, float, int]] = field(default_factory=dict)
    native_left_over: Mapping[str, Sequence[tuple[float, float]]] = field(default_factory=dict)
    left_over_sd: Mapping[str, float] = field(default_factory=dict)
    num_observations: int = 0
    measured_ranks: Mapping[str, Sequence[int]] = field(default_factory=dict)
    shared_scale: Mapping[str, float] = field(default_factory=dict)

    def factor(self, kind: str, part: int) -> float:
        """Of a kind's latency (0) or flow (1)."""
        if (kind, part) not in self.names:
            return 1.0
        return math.exp(self.logs[self.names.index((kind, part))])

    def seconds(self, term: Term) -> PredictedValue:
        """A term, calibrated."""
        scale = self._native_scale(term)
        doublings = _doublings(term.num_ranks)
        trend = self.factor(term.kind, 2) ** doublings
        values = {
            0: scale * term.latency_s * self.factor(term.kind, 0),
            1: scale * term.flow_s * self.factor(term.kind, 1) * trend,
        }
        changes: dict[str, float] = {}
        for part, weight in ((0, values[0]), (1, values[1]), (2, doublings * values[1])):
            if (term.kind, part) not in self.names:
                changes[f"{PARTS[part]} of {term.kind}"] = weight * _prior_sd(term.kind, part)
                continue
            row = self._roots[self.names.index((term.kind, part))]
            for index, root in enumerate(row.tolist()):
                changes[f"calibration {index}"] = changes.get(f"calibration {index}", 0.0) + weight * root
        if scale != 1.0 and doublings > 0:
            changes[f"curve of {term.kind} at more ranks"] = sum(values.values()) * CURVE_SD * doublings
        saturated = self._saturated(term, values[1])
        if saturated > 1.0:
            changes[f"shared paths of {term.kind}"] = values[1] * sd_that_reaches(saturated)
        return PredictedValue(sum(values.values()), changes)

    def _saturated(self, term: Term, flow_s: float) -> float:
        """How many times as long the flow takes if the paths that ranks share carry no more than was seen."""
        sizes = self.measured_ranks.get(term.kind, ())
        if not flow_s or not term.shared_s or term.num_ranks <= max(sizes, default=1):
            return 1.0
        return term.shared_s * self.shared_scale.get(term.kind, 1.0) / flow_s

    def rests_on(self, term: Term) -> str | None:
        """What the time of more ranks than were measured rests on; None where as many or none were."""
        sizes = self.measured_ranks.get(term.kind, ())
        is_known = term.num_ranks <= max(sizes, default=1)
        if not self.num_observations or is_known or term.kind not in TREND_SD or not term.flow_s:
            return None
        interval = f"{TREND_SD[term.kind]:.0%} a doubling in the interval"
        if not sizes:
            known = f"not measured, as the machine file has it; {interval}"
        elif len(sizes) == 1:
            known = f"measured on {sizes[0]} ranks alone; {interval}"
        else:
            trend = self.factor(term.kind, 2) - 1
            known = f"measured on {', '.join(map(str, sizes))} ranks; {trend:+.0%} for each doubling beyond"
        saturated = self._saturated(term, self.seconds(term).value)
        if saturated > 1.05:
            known += f"; to {saturated:.1f} times as long, if shared paths carry no more bytes than was seen"
        return f"{NAMES[term.kind]} on {term.num_ranks} ranks: {known}"

    @cached_property
    def _roots(self) -> Floats:
        """A root of the covariance: rows are parameters, columns independent inputs of deviation 1."""
        if not len(self.covariance):
            return self.covariance
        values, vectors = np.linalg.eigh(self.covariance)
        roots: Floats = vectors * np.sqrt(np.clip(values, 0.0, None))
        return roots

    def _native_scale(self, term: Term) -> float:
        curve = self.native_left_over.get(term.kind)
        if not curve or not term.native_bytes:
            return 1.0
        sizes, logs = zip(*curve, strict=True)
        return math.exp(float(np.interp(math.log(term.native_bytes), np.log(sizes), logs)))

    def with_left_over(
        self, key: tuple[str, ...], seconds: PredictedValue, world_size: int
    ) -> tuple[PredictedValue, bool]:
        """The strategy's left-over on top; whether it was measured."""
        if not seconds.value:
            return seconds, True
        source = f"left-over of {' '.join(key)}"
        known = self.left_over.get(key)
        if known is None:
            return seconds.also(source, self.left_over_sd.get(key[-1], UNMEASURED_LEFT_OVER_SD)), False
        log, sd, at = known
        further = LEFT_OVER_SD * abs(math.log2(world_size / at))
        return seconds.times(math.exp(log)).also(source, math.hypot(sd, further)), True


def calibrate(observations: Iterable[Observation]) -> Calibration:
    """The factors that fit best."""
    from scipy.optimize import least_squares  # a fifth of a second, which a worker does not need

    seen = [
        observation
        for observation in observations
        if observation.seconds > 0 and any(t.latency_s + t.flow_s for t in observation.terms)
    ]
    if not seen:
        return Calibration()
    fit = _Fit.of(seen)
    measured = np.log([observation.seconds for observation in seen])
    sds = np.array([observation.sd for observation in seen])
    prior_sds = np.array([_prior_sd(*name) for name in fit.names])

    def errors(logs: Floats) -> Floats:
        off: Floats = np.log(fit.parts(logs).sum(axis=1)) - measured
        return np.concatenate([_soft(off / sds), logs / prior_sds])

    fitted = least_squares(errors, np.zeros(len(fit.names))).x
    off = measured - np.log(fit.parts(fitted).sum(axis=1))
    covariance = _covariance(fit.shares(fitted), off, sds, prior_sds)
    base = Calibration(fit.names, tuple(fitted.tolist()), covariance)
    return _with_left_overs(replace(base, **_seen_of_kinds(seen)), seen, off)


def _seen_of_kinds(seen: Sequence[Observation]) -> dict[str, Any]:
    """`measured_ranks` and `shared_scale` of a calibration."""
    ranks: dict[str, set[int]] = defaultdict(set)
    scales: dict[str, list[float]] = defaultdict(lambda: [1.0])
    for observation in seen:
        for kind in {term.kind for term in observation.terms}:
            ranks[kind].add(observation.world_size)
            shared_s = sum(term.shared_s for term in observation.terms if term.kind == kind)
            if shared_s > LARGE_FLOW_S:
                scales[kind].append(observation.seconds / shared_s)
    return {
        "measured_ranks": {kind: sorted(sizes) for kind, sizes in ranks.items()},
        "shared_scale": {kind: min(values) for kind, values in scales.items()},
    }


@dataclass(frozen=True)
class _Fit:
    """What is fitted: `design` has each observation's seconds by parameter, none for trends."""

    names: tuple[tuple[str, int], ...]
    design: Floats
    doublings: Floats

    @classmethod
    def of(cls, seen: Sequence[Observation]) -> _Fit:
        terms = [(row, term) for row, observation in enumerate(seen) for term in observation.terms]
        known = {(term.kind, part) for _, term in terms for part in (0, 1) if _part(term, part)}
        names = sorted(known | {(kind, 2) for kind, part in known if part == 1 and kind in TREND_SD})
        design = np.zeros((len(seen), len(names)))
        for row, term in terms:
            for part in (0, 1):
                if _part(term, part):
                    design[row, names.index((term.kind, part))] += _part(term, part)
        return cls(
            tuple(names), design, np.array([_doublings(observation.world_size) for observation in seen])
        )

    def parts(self, logs: Floats) -> Floats:
        """Seconds by observation and parameter."""
        parts: Floats = self.design * np.exp(logs)
        for trend, flow in self._trends():
            parts[:, flow] *= np.exp(logs[trend] * self.doublings)
        return parts

    def shares(self, logs: Floats) -> Floats:
        """How an observation's logarithm changes with each parameter."""
        parts = self.parts(logs)
        shares: Floats = parts / parts.sum(axis=1, keepdims=True)
        for trend, flow in self._trends():
            shares[:, trend] = shares[:, flow] * self.doublings
        return shares

    def _trends(self) -> list[tuple[int, int]]:
        kinds = [(index, kind) for index, (kind, part) in enumerate(self.names) if part == 2]
        return [(index, self.names.index((kind, 1))) for index, kind in kinds]


def _doublings(num_ranks: int) -> float:
    """Of two ranks; -1 for a rank alone."""
    return math.log2(num_ranks / 2)


def _soft(errors: Floats) -> Floats:
    """A measurement that is far off (another program, a library's odd size) does not pull the rest."""
    soft: Floats = np.sign(errors) * SOFT_SDS * np.sqrt(2 * (np.sqrt(1 + (errors / SOFT_SDS) ** 2) - 1))
    return soft


def _covariance(shares: Floats, off: Floats, sds: Floats, prior_sds: Floats) -> Floats:
    """Of the logarithms: the inverse of the curvature, larger where errors are larger than they should be."""
    scaled = shares / sds[:, None]
    excess = max(1.0, float(np.median((off / sds) ** 2)) / MEDIAN_OF_CHI_SQUARE)
    inverse = np.linalg.inv(scaled.T @ scaled / excess + np.diag(prior_sds**-2.0))
    return np.asarray(inverse, dtype=np.float64)


def _with_left_overs(base: Calibration, seen: Sequence[Observation], off: Floats) -> Calibration:
    points: dict[str, list[tuple[float, float]]] = {}
    for observation, log in zip(seen, off.tolist(), strict=True):
        if observation.key is None and observation.terms[0].native_bytes:
            points.setdefault(observation.terms[0].kind, []).append((observation.terms[0].native_bytes, log))
    curves = {kind: _mean_by_size(values) for kind, values in points.items()}
    sized = replace(base, native_left_over=curves)
    raw: dict[tuple[str, ...], list[tuple[float, float, int]]] = {}
    for observation in seen:
        if observation.key is not None:
            log = math.log(observation.seconds / sum(sized.seconds(term).value for term in observation.terms))
            raw.setdefault(observation.key, []).append(
                (
                    log,
                    math.hypot(observation.relative_sd, CLOCK_S / observation.seconds),
                    observation.world_size,
                )
            )
    largest = {key: max(at for _, _, at in values) for key, values in raw.items()}
    means = {
        key: _mean([(log, sd) for log, sd, at in values if at == largest[key]]) for key, values in raw.items()
    }
    spreads = {
        transport: _spread([mean for key, mean in means.items() if key[-1] == transport])
        for transport in {k[-1] for k in means}
    }
    left_over = {}
    for key, (log, noise) in means.items():
        # What is no more than the measurement's own noise is not the strategy's: it is shrunk by that share.
        kept = spreads[key[-1]] ** 2 / (spreads[key[-1]] ** 2 + noise**2)
        left_over[key] = (kept * log, math.sqrt(kept) * noise, largest[key])
    unmeasured = {transport: max(UNMEASURED_LEFT_OVER_SD, spread) for transport, spread in spreads.items()}
    return replace(sized, left_over=left_over, left_over_sd=unmeasured, num_observations=len(seen))


def _mean(values: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """Of logarithms with their deviations, and its deviation: the larger of theirs and their spread."""
    logs = [log for log, _ in values]
    spread = float(np.std(logs)) if len(logs) > 1 else 0.0
    return float(np.mean(logs)), max(spread, *(sd for _, sd in values))


def _spread(values: Sequence[tuple[float, float]]) -> float:
    """Deviation of the strategies' left-overs themselves, without the noise of the measurements."""
    if len(values) < 3:
        return UNMEASURED_LEFT_OVER_SD
    variance = float(np.mean([log**2 - sd**2 for log, sd in values]))
    return math.sqrt(max(variance, MODEL_SD**2))


def _mean_by_size(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    sizes = sorted({size for size, _ in points})
    return [(size, float(np.mean([log for other, log in points if other == size]))) for size in sizes]


def _part(term: Term, part: int) -> float:
    return (term.latency_s, term.flow_s)[part]


def _prior_sd(kind: str, part: int) -> float:
    return TREND_SD.get(kind, 0.0) if part == 2 else PRIOR_SD[kind][part]

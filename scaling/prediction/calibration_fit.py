"""Fits the factors of a `Calibration` to what was measured."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from scaling.prediction.calibration import (
    CLOCK_S,
    MODEL_SD,
    TREND_SD,
    UNMEASURED_LEFT_OVER_SD,
    Calibration,
    Floats,
    Observation,
    doublings_of,
    prior_sd,
)
from scaling.prediction.estimate import PredictedValue, total
from scaling.prediction.strategy import Term

LARGE_FLOW_S = 1e-3
"""From which on an exchange tells what shared paths carry: smaller ones stay in the processor's cache."""

SOFT_SDS = 2.0
"""Errors beyond so many deviations count less and less in the fit."""

MEDIAN_OF_CHI_SQUARE = 0.455
"""Of one degree of freedom: what the median of squared errors is if they are as large as stated."""


def calibrate(observations: Iterable[Observation]) -> Calibration:
    """The factors that fit best."""
    from scipy.optimize import least_squares  # a fifth of a second, which a worker does not need

    used = [
        observation
        for observation in observations
        if observation.seconds > 0 and any(t.latency_s + t.flow_s for t in observation.terms)
    ]
    if not used:
        return Calibration()
    fit = _Fit.of(used)
    measured = np.log([observation.seconds for observation in used])
    sds = np.array([observation.sd for observation in used])
    prior_sds = np.array([prior_sd(*name) for name in fit.names])

    def errors(logs: Floats) -> Floats:
        off: Floats = np.log(fit.parts(logs).sum(axis=1)) - measured
        return np.concatenate([_soft(off / sds), logs / prior_sds])

    fitted = least_squares(errors, np.zeros(len(fit.names))).x
    off = measured - np.log(fit.parts(fitted).sum(axis=1))
    covariance = _covariance(fit.shares(fitted), off, sds, prior_sds)
    base = Calibration(fit.names, tuple(fitted.tolist()), covariance)
    return _with_left_overs(replace(base, **_seen_of_kinds(used)), used, off)


def _seen_of_kinds(observations: Sequence[Observation]) -> dict[str, Any]:
    """`measured_ranks` and `shared_scale` of a calibration."""
    ranks: dict[str, set[int]] = defaultdict(set)
    scales: dict[str, list[float]] = defaultdict(lambda: [1.0])
    for observation in observations:
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
    def of(cls, observations: Sequence[Observation]) -> _Fit:
        terms = [(row, term) for row, observation in enumerate(observations) for term in observation.terms]
        fitted = {(term.kind, part) for _, term in terms for part in (0, 1) if _part(term, part)}
        names = sorted(fitted | {(kind, 2) for kind, part in fitted if part == 1 and kind in TREND_SD})
        design = np.zeros((len(observations), len(names)))
        for row, term in terms:
            for part in (0, 1):
                if _part(term, part):
                    design[row, names.index((term.kind, part))] += _part(term, part)
        return cls(
            tuple(names),
            design,
            np.array([doublings_of(observation.node_ranks) for observation in observations]),
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


def _with_left_overs(base: Calibration, observations: Sequence[Observation], off: Floats) -> Calibration:
    points: dict[str, list[tuple[float, float]]] = {}
    for observation, log in zip(observations, off.tolist(), strict=True):
        if observation.key is None and observation.terms[0].native_bytes:
            points.setdefault(observation.terms[0].kind, []).append((observation.terms[0].native_bytes, log))
    curves = {kind: _mean_by_size(values) for kind, values in points.items()}
    sized = replace(base, native_left_over=curves)
    raw: dict[tuple[str, ...], list[tuple[float, float, int, PredictedValue]]] = {}
    for observation in observations:
        if observation.key is not None:
            fitted = total(sized.seconds(term) for term in observation.terms)
            log = math.log(observation.seconds / fitted.value)
            noise = math.hypot(observation.relative_sd, CLOCK_S / observation.seconds)
            of_fit = fitted.times(1 / fitted.value)
            raw.setdefault(observation.key, []).append((log, noise, observation.world_size, of_fit))
    largest = {key: max(at for _, _, at, _ in values) for key, values in raw.items()}
    used = {key: [value for value in values if value[2] == largest[key]] for key, values in raw.items()}
    means = {key: _mean([(log, sd) for log, sd, _, _ in values]) for key, values in used.items()}
    spreads = {
        transport: _spread([mean for key, mean in means.items() if key[-1] == transport])
        for transport in {k[-1] for k in means}
    }
    left_over = {}
    for key, (log, noise) in means.items():
        # What is no more than the measurement's own noise is not the strategy's: it is shrunk by that share.
        share = spreads[key[-1]] ** 2 / (spreads[key[-1]] ** 2 + noise**2)
        of_fit = total(of_fit for _, _, _, of_fit in used[key]).times(share / len(used[key]))
        left_over[key] = (share * log, math.sqrt(share) * noise, largest[key], of_fit.changes)
    unmeasured = {transport: max(UNMEASURED_LEFT_OVER_SD, spread) for transport, spread in spreads.items()}
    return replace(sized, left_over=left_over, left_over_sd=unmeasured, num_observations=len(observations))


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
    return [
        (size, float(np.mean([log for other_size, log in points if other_size == size]))) for size in sizes
    ]


def _part(term: Term, part: int) -> float:
    return (term.latency_s, term.flow_s)[part]

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
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from scaling.prediction.estimate import PredictedValue, beyond, sd_that_reaches
from scaling.prediction.strategy import Term

Floats = NDArray[np.float64]

PRIOR_SD: dict[str, tuple[float, float]] = {
    **dict.fromkeys(("sends", "sends_host", "native_host"), (0.7, 0.35)),
    **dict.fromkeys(("host_memory", "host"), (0.7, 0.50)),
    **dict.fromkeys(("host_work", "host_threads"), (0.7, 0.60)),
    **dict.fromkeys(("peer_memory_captured", "horovod"), (0.7, 0.0)),
    **dict.fromkeys(("codec_kernels", "codec_kernels_captured"), (1.0, 0.5)),
    **{"peer_memory": (0.7, 0.25), "native": (0.7, 0.30), "gpu_work": (0.7, 0.20)},
    **{"mpi": (1.0, 0.60), "codec": (1.0, 1.0)},
}
"""Of the logarithms of a kind's latency and flow factors: assumptions, from how far files were off."""

TREND_SD: dict[str, float] = {
    **dict.fromkeys(("peer_memory", "sends", "native"), 0.10),
    **dict.fromkeys(("sends_host", "native_host", "host", "host_memory", "host_work", "host_threads"), 0.15),
    "mpi": 0.20,
}
"""Of the logarithm of what each doubling of the ranks beyond two does to a kind's flow, where ranks share
host memory, root ports and switches. Assumptions: from two ranks to four the time changed by -8% (NCCL,
NVLink) to +13% (NCCL, host-only)."""

MODEL_SD = 0.08  # relative deviation that the model has of its own at each measurement. An assumption
CLOCK_S = 10e-6  # what a measured exchange is uncertain by, whatever its length: clocks, starts of kernels
LARGEST_SD = 1e6  # what was measured in no time at all says nothing

LEFT_OVER_SD = 0.06
"""Of a strategy's left-over for each doubling of the world size it was measured at. Measured: 6% from two
H200 GPUs to four (23 strategies, without the noise; 3 to 6% with any one folder left out)."""

ALONE_SD = 0.45
"""Deviation of a host's exchange, measured on one rank of one host, for ranks of another that share it.
Measured: 58% of the exchange over 7 strategies of the host (paper-2xh200), 31% over 12 on the same hosts."""

NAMES = {
    **{"peer_memory": "exchanges over peer memory", "sends": "messages", "mpi": "MPI"},
    **{"sends_host": "messages through host memory", "native": "NCCL's all-reduce"},
    **{"host_memory": "kernels that exchange in host memory", "host": "copies to host memory and back"},
    **{"native_host": "NCCL's all-reduce through host memory"},
    **{"host_work": "sums by stated threads in host memory"},
    **{"host_threads": "sums by all threads in host memory"},
}
"""Of kinds with a trend, for people."""


PARTS = ("latency", "flow", "more ranks")


CURVE_SD = 0.12
"""Of a library's all-reduce by its curve over sizes on two ranks, for each doubling from there. Measured: 4
to 33% off on four H200 GPUs."""

UNMEASURED_LEFT_OVER_SD = 0.15  # of strategies not measured, unless left-overs spread more


@dataclass(frozen=True)
class Observation:
    key: tuple[str, ...] | None  # of the strategy, for its left-over; None for transfers
    terms: Sequence[Term]  # what it consists of
    seconds: float  # that it took
    relative_sd: float  # of those
    world_size: int  # ranks

    @property
    def node_ranks(self) -> int:
        """Of the ranks, those that share a node's paths."""
        return next((term.node_ranks for term in self.terms if term.node_ranks), self.world_size)

    @property
    def sd(self) -> float:
        """Of the logarithm, with the model's and the clock's."""
        by_clock = min(CLOCK_S / self.seconds, LARGEST_SD)
        return math.hypot(min(self.relative_sd, LARGEST_SD), MODEL_SD, by_clock)


@dataclass(frozen=True)
class Calibration:
    names: tuple[tuple[str, int], ...] = ()  # (kind, 0 latency, 1 flow or 2 trend) of each entry
    logs: tuple[float, ...] = ()  # their logarithms
    covariance: Floats = field(default_factory=lambda: np.zeros((0, 0)))  # of those
    # strategy -> (logarithm, its deviation, the world size, and what it has of each input of the fit there,
    # relative: an input that made the fit too long made the left-over as much shorter)
    left_over: Mapping[tuple[str, ...], tuple[float, float, int, Mapping[str, float]]] = field(
        default_factory=dict
    )
    # kind -> (bytes, logarithm) by size
    native_left_over: Mapping[str, Sequence[tuple[float, float]]] = field(default_factory=dict)
    # of strategies that were not measured, by the last part of their key
    left_over_sd: Mapping[str, float] = field(default_factory=dict)
    num_observations: int = 0  # fitted to
    # kind -> the world sizes that were measured
    measured_ranks: Mapping[str, Sequence[int]] = field(default_factory=dict)
    # kind -> the least time on shared paths seen, over the machine file's; 1 at most
    shared_scale: Mapping[str, float] = field(default_factory=dict)

    def factor(self, kind: str, part: int) -> float:
        """Of a kind's latency (0) or flow (1)."""
        if (kind, part) not in self.names:
            return 1.0
        return math.exp(self.logs[self.names.index((kind, part))])

    def seconds(self, term: Term) -> PredictedValue:
        scale = self._native_scale(term)
        doublings = doublings_of(term.node_ranks or term.num_ranks)
        latency_s = scale * term.latency_s * self.factor(term.kind, 0)
        flow_s = scale * term.flow_s * self.factor(term.kind, 1) * self.factor(term.kind, 2) ** doublings
        changes: dict[str, float] = {}
        for part, weight in enumerate((latency_s, flow_s, doublings * flow_s)):
            if (term.kind, part) not in self.names:
                changes[f"{PARTS[part]} of {term.kind}"] = weight * prior_sd(term.kind, part)
                continue
            row = self._roots[self.names.index((term.kind, part))]
            for index, root in enumerate(row.tolist()):
                changes[f"calibration {index}"] = changes.get(f"calibration {index}", 0.0) + weight * root
        trend_sd = doublings * self._trend_sd(term.kind)  # a part of what the two below were seen to be
        if scale != 1.0 and doublings > 0:
            further = beyond(CURVE_SD * doublings, trend_sd)
            changes[f"curve of {term.kind} at more ranks"] = (latency_s + flow_s) * further
        saturated = self._saturated(term, flow_s)
        if saturated > 1.0:
            further = beyond(sd_that_reaches(saturated), trend_sd)
            changes[f"shared paths of {term.kind}"] = flow_s * further
        priced = PredictedValue(latency_s + flow_s, changes)
        return priced.also(f"what {term.name} runs on", term.own_sd) if term.own_sd else priced

    def _trend_sd(self, kind: str) -> float:
        if (kind, 2) not in self.names:
            return prior_sd(kind, 2)
        index = self.names.index((kind, 2))
        return math.sqrt(float(self.covariance[index, index]))

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
            basis = f"not measured, as the machine file has it; {interval}"
        elif len(sizes) == 1:
            basis = f"measured on {sizes[0]} ranks alone; {interval}"
        else:
            trend = self.factor(term.kind, 2) - 1
            basis = f"measured on {', '.join(map(str, sizes))} ranks; {trend:+.0%} for each doubling beyond"
        saturated = self._saturated(term, self.seconds(term).value)
        if saturated > 1.05:
            basis += f"; to {saturated:.1f} times as long, if shared paths carry no more bytes than was seen"
        return f"{NAMES[term.kind]} on {term.num_ranks} ranks: {basis}"

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

    def is_known(self, key: tuple[str, ...]) -> bool:
        """Whether the strategy was measured on several ranks."""
        return key in self.left_over and self.left_over[key][2] > 1

    def with_left_over(
        self, key: tuple[str, ...], seconds: PredictedValue, world_size: int, *, on_another_host: bool = False
    ) -> tuple[PredictedValue, bool]:
        """The strategy's left-over on top; whether it was measured."""
        if not seconds.value:
            return seconds, True
        source = f"left-over of {' '.join(key)}"
        measured = self.left_over.get(key)
        if measured is None:
            return seconds.also(source, self.left_over_sd.get(key[-1], UNMEASURED_LEFT_OVER_SD)), False
        log, sd, at, of_fit = measured
        further = LEFT_OVER_SD * abs(math.log2(world_size / at))
        if on_another_host and at == 1 < world_size:
            further = math.hypot(further, ALONE_SD)
        offset = PredictedValue(0.0, {name: -seconds.value * change for name, change in of_fit.items()})
        return (seconds + offset).times(math.exp(log)).also(source, math.hypot(sd, further)), True


def doublings_of(num_ranks: int) -> float:
    """Of two ranks; -1 for a rank alone."""
    return math.log2(num_ranks / 2)


def prior_sd(kind: str, part: int) -> float:
    return TREND_SD.get(kind, 0.0) if part == 2 else PRIOR_SD[kind][part]

"""What calibrates a machine: its measured exchanges and transfers, as terms, and the fit to them."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from scaling.collectives.mpi_library import MpiLibrary, mpi_price
from scaling.collectives.nccl import nccl_price
from scaling.collectives.ring import ring
from scaling.collectives.simulate import simulate
from scaling.errors import PredictionError, ScheduleError
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
from scaling.prediction.compute import HOST_SD, ComputeModel
from scaling.prediction.estimate import PredictedValue, total
from scaling.prediction.measured import MeasuredCell, MeasuredTransfer
from scaling.prediction.predict import without_saved_update
from scaling.prediction.strategy import Machinery, Strategy, Term, by_host, strategy_key
from scaling.prediction.terms import divide_term, terms_of, update_terms
from scaling.prediction.transports import measured_host_sends, moves, shared_paths_s
from topologies.errors import TopologyError
from topologies.model import Topology

LARGE_FLOW_S = 1e-3  # from here on exchanges tell what shared paths carry: others stay in a cache
SOFT_SDS = 2.0  # errors beyond so many deviations count less and less in the fit
MEDIAN_OF_CHI_SQUARE = 0.455  # of one degree: of squared errors that are as large as stated


def calibrate(observations: Iterable[Observation]) -> Calibration:
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
    return [(size, float(np.mean([log for other, log in points if other == size]))) for size in sizes]


def _part(term: Term, part: int) -> float:
    return (term.latency_s, term.flow_s)[part]


LEAST_TRANSFER_BYTES = 1 << 16
LEAST_S = 1e-9  # of an exchange, so that what took no time is uncertain without end


def observations_of_cells(
    measured: Iterable[tuple[MeasuredCell, Strategy]],
    machinery: Machinery,
    compute: ComputeModel | None = None,
) -> list[Observation]:
    """Measured exchanges of steps with two ranks and more, or with the host: by what they add to the step
    where its computation is known well enough, else by their spans."""
    observations = []
    for cell, strategy in measured:
        exchange_s = cell.exchange_s
        hides = cell.cell["step"] == "overlapped" or cell.cell.get("bucket_mb") is not None
        is_alone = cell.world_size < 2 and not by_host(strategy)
        if hides or is_alone or exchange_s is None or not cell.cell.get("exchanges", True):
            continue
        numbers = range(len(strategy.buckets))
        try:
            terms = [term for i in numbers for term in terms_of(strategy, i, machinery, cell.world_size)]
            terms += divide_term(strategy.num_elements, strategy, machinery, cell.world_size)
            updates = update_terms(strategy, machinery, cell.world_size)
        except (TopologyError, ScheduleError):
            continue  # the machine file has fewer ranks than were measured, or not what this needs
        if updates:
            exchange_s += cell.phases.get("update_s", 0.0)
        noise_s = cell.relative_sd * cell.iteration_s  # of the step, and so of whatever is a part of it
        added_s, sd_s = _added(cell, strategy, compute) or (exchange_s, 0.0)
        relative_sd = math.hypot(noise_s, sd_s) / max(added_s, LEAST_S)
        if strategy.codes_by_tensor:
            relative_sd = math.hypot(relative_sd, HOST_SD)
        key = strategy_key(strategy)
        observations.append(Observation(key, [*terms, *updates], added_s, relative_sd, cell.world_size))
    return observations


def _added(
    cell: MeasuredCell, strategy: Strategy, compute: ComputeModel | None
) -> tuple[float, float] | None:
    """The step less its computation, and the latter's deviation; None where that exceeds the model's."""
    if compute is None or cell.cell.get("device") != "cuda" or cell.world_size < 2:
        return None
    try:
        computed = without_saved_update(compute.step(cell.cell, int(cell.cell["local_batch"])), strategy)
    except PredictionError:
        return None
    added_s = cell.iteration_s - computed.value
    return (added_s, computed.sd) if 0 < computed.sd < MODEL_SD * added_s else None


def observations_of_transfers(
    transfers: Iterable[MeasuredTransfer], machinery: Machinery
) -> list[Observation]:
    observations = []
    for transfer in transfers:
        if transfer.num_bytes < LEAST_TRANSFER_BYTES or transfer.num_ranks < 2:
            continue
        with suppress(TopologyError):  # the machine file has fewer ranks than were measured
            if (term := term_of_transfer(transfer, machinery)) is not None:
                known = transfer.seconds, transfer.relative_sd, transfer.num_ranks
                observations.append(Observation(None, [term], *known))
    return observations


def term_of_transfer(transfer: MeasuredTransfer, machinery: Machinery) -> Term | None:
    """By the machine file; None where it calibrates nothing; TopologyError of too many ranks."""
    peer, size, num_bytes = not transfer.host_only, transfer.num_ranks, transfer.num_bytes
    topology = machinery.topology
    bare, shared_s = topology.without_latency, 0.0
    if transfer.operation == "mpi_all_reduce":
        price: Any = mpi_price(None, topology, size, num_bytes, machinery.mpi)
        sized = price.latency_s, price.flow_s, None, price.choice, float(num_bytes)
        return Term("mpi", "all_reduce", *sized, num_ranks=size)
    if transfer.operation == "all_reduce" and machinery.has_gpus:
        kind = "native" if peer else "native_host"
        price = nccl_price(machinery.on(kind), topology.ranks(size), num_bytes, peer_access=peer)
        shared_s = 0.0 if peer else machinery.ring_through_host_s(size, num_bytes)
        sized = price.latency_s, price.flow_s, None, price.choice, float(num_bytes)
        return Term(kind, kind, *sized, num_ranks=size, shared_s=shared_s)
    if transfer.operation == "all_reduce":
        kind, name, peer, schedule = "sends", "gloo", True, ring(size)
    elif transfer.operation in ("send", "swap", "shift"):
        kind = name = "sends" if peer else "sends_host"
        schedule = moves(transfer.operation, size)
        shared_s = 0.0 if peer else shared_paths_s(schedule, bare, num_bytes)
    else:
        return None
    machine = machinery.on(kind)
    flow_s = simulate(schedule, machine.without_latency, num_bytes, peer_access=peer).seconds
    whole_s = simulate(schedule, machine, num_bytes, peer_access=peer).seconds
    return Term(kind, name, max(0.0, whole_s - flow_s), flow_s, num_ranks=size, shared_s=shared_s)


def fitted(
    topology_machinery: Machinery,
    cells: Sequence[tuple[MeasuredCell, Strategy]],
    transfers: Sequence[MeasuredTransfer],
    compute: ComputeModel | None = None,
) -> Calibration:
    """The factors from everything that was measured on the machine of `topology_machinery`."""
    of_cells = observations_of_cells(cells, topology_machinery, compute)
    return calibrate([*of_cells, *observations_of_transfers(transfers, topology_machinery)])


def machinery_for(
    topology: Topology,
    transfers: Sequence[MeasuredTransfer],
    measured_on: Topology,
    libraries: Mapping[str, str] | None = None,
) -> Machinery:
    """A machine whose messages through host memory reach what was measured on `measured_on`; `libraries`:
    "mpi" and "horovod" -> name and version, as the measured launches recorded them."""
    names = libraries or {}
    return Machinery(
        topology,
        measured_host_sends(measured_on, transfers),
        MpiLibrary.of(names.get("mpi", "")),
        "over MPI" in names.get("horovod", ""),
    )

"""What calibrates a machine: its measured exchanges and transfers, as terms, and the fit to them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from scaling.collectives.mpi_library import MpiLibrary
from scaling.collectives.mpi_price import mpi_price
from scaling.collectives.nccl import nccl_price
from scaling.collectives.ring import ring
from scaling.collectives.simulate import simulate
from scaling.errors import PredictionError, ScheduleError
from scaling.prediction.calibration import MODEL_SD, Calibration, Observation
from scaling.prediction.calibration_fit import calibrate
from scaling.prediction.compute import HOST_SD, ComputeModel
from scaling.prediction.measured import MeasuredCell, MeasuredTransfer
from scaling.prediction.predict import without_saved_update
from scaling.prediction.strategy import Machinery, Strategy, Term, by_host, strategy_key
from scaling.prediction.terms import divide_term, terms_of, update_terms
from scaling.prediction.transports import measured_host_sends, moves, shared_paths_s
from topologies.errors import TopologyError
from topologies.model import Topology

LEAST_TRANSFER_BYTES = 1 << 16
LEAST_S = 1e-9
"""Of an exchange, so that what took no time is uncertain without end."""


def observations_of_cells(
    measured: Iterable[tuple[MeasuredCell, Strategy]],
    machinery: Machinery,
    compute: ComputeModel | None = None,
) -> list[Observation]:
    """Measured exchanges of steps with two ranks and more, or with the host.

    By what they add to the step where its computation is known well enough, else by their spans.
    """
    observations = []
    for cell, strategy in measured:
        exchange_s = cell.exchange_s
        hides = cell.cell["step"] == "overlapped" or cell.cell.get("bucket_mb") is not None
        if hides or exchange_s is None:
            continue
        if cell.world_size < 2 and not by_host(strategy):
            continue
        if not cell.cell.get("exchanges", True):
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
    """The step less its computation, and the latter's deviation.

    None where that is more than the model deviates by: then spans tell more.
    """
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
    """A probe's messages and all-reduces."""
    observations = []
    for transfer in transfers:
        if transfer.num_bytes < LEAST_TRANSFER_BYTES or transfer.num_ranks < 2:
            continue
        try:
            term = term_of_transfer(transfer, machinery)
        except TopologyError:
            continue  # the machine file has fewer ranks than were measured
        if term is not None:
            observations.append(
                Observation(None, [term], transfer.seconds, transfer.relative_sd, transfer.num_ranks)
            )
    return observations


def term_of_transfer(transfer: MeasuredTransfer, machinery: Machinery) -> Term | None:
    """What a transfer is by the machine file; None where it calibrates nothing.

    Raises:
        TopologyError: the file has fewer ranks.
    """
    term = _priced(transfer, machinery)
    return None if term is None else replace(term, num_ranks=transfer.num_ranks)


def _priced(transfer: MeasuredTransfer, machinery: Machinery) -> Term | None:
    peer = not transfer.host_only
    if transfer.operation == "mpi_all_reduce":
        time = mpi_price(None, machinery.topology, transfer.num_ranks, transfer.num_bytes, machinery.mpi)
        return Term(
            "mpi", "all_reduce", time.latency_s, time.flow_s, None, time.choice, float(transfer.num_bytes)
        )
    if transfer.operation == "all_reduce" and machinery.has_gpus:
        kind = "native" if peer else "native_host"
        time = nccl_price(
            machinery.on(kind),
            machinery.topology.ranks(transfer.num_ranks),
            transfer.num_bytes,
            peer_access=peer,
        )
        shared_s = 0.0 if peer else machinery.ring_through_host_s(transfer.num_ranks, transfer.num_bytes)
        term = Term(kind, kind, time.latency_s, time.flow_s, None, time.choice, float(transfer.num_bytes))
        return replace(term, shared_s=shared_s)
    if transfer.operation == "all_reduce":
        gloo, machine = ring(transfer.num_ranks), machinery.topology
        flow_s = simulate(gloo, machine.without_latency, transfer.num_bytes).seconds
        whole_s = simulate(gloo, machine, transfer.num_bytes).seconds
        return Term("sends", "gloo", max(0.0, whole_s - flow_s), flow_s)
    if transfer.operation in ("send", "swap", "shift"):
        kind = "sends" if peer else "sends_host"
        machine = machinery.on(kind)
        schedule = moves(transfer.operation, transfer.num_ranks)
        flow_s = simulate(schedule, machine.without_latency, transfer.num_bytes, peer_access=peer).seconds
        whole_s = simulate(schedule, machine, transfer.num_bytes, peer_access=peer).seconds
        bare = machinery.topology.without_latency
        shared_s = 0.0 if peer else shared_paths_s(schedule, bare, transfer.num_bytes)
        return Term(kind, kind, max(0.0, whole_s - flow_s), flow_s, shared_s=shared_s)
    return None


def fitted(
    topology_machinery: Machinery,
    cells: Sequence[tuple[MeasuredCell, Strategy]],
    transfers: Sequence[MeasuredTransfer],
    compute: ComputeModel | None = None,
) -> Calibration:
    """The factors from everything that was measured on the machine of `topology_machinery`."""
    return calibrate(
        [
            *observations_of_cells(cells, topology_machinery, compute),
            *observations_of_transfers(transfers, topology_machinery),
        ]
    )


def machinery_for(
    topology: Topology,
    transfers: Sequence[MeasuredTransfer],
    measured_on: Topology,
    libraries: Mapping[str, str] | None = None,
) -> Machinery:
    """A machine whose messages through host memory reach what was measured on `measured_on`.

    Args:
        topology: the machine.
        transfers: that were measured.
        measured_on: where.
        libraries: "mpi" and "horovod" -> name and version, as the measured launches recorded them.
    """
    names = libraries or {}
    return Machinery(
        topology,
        measured_host_sends(measured_on, transfers),
        MpiLibrary.of(names.get("mpi", "")),
        "over MPI" in names.get("horovod", ""),
    )

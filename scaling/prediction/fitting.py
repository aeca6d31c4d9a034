"""What calibrates a machine: its measured exchanges and transfers, as terms, and the fit to them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from scaling.collectives.mpi_library import MpiLibrary
from scaling.collectives.simulate import simulate
from scaling.errors import ScheduleError
from scaling.prediction.calibration import Calibration, Observation, calibrate
from scaling.prediction.measured import MeasuredCell, MeasuredTransfer
from scaling.prediction.mpi import mpi_native
from scaling.prediction.native import gloo_all_reduce, nccl_all_reduce
from scaling.prediction.predict import strategy_key
from scaling.prediction.terms import Machinery, Strategy, Term, divide_term, terms_of, update_terms
from scaling.prediction.transports import measured_host_sends, moves
from topologies.errors import TopologyError
from topologies.model import Topology

LEAST_TRANSFER_BYTES = 1 << 16


def observations_of_cells(
    measured: Iterable[tuple[MeasuredCell, Strategy]], machinery: Machinery
) -> list[Observation]:
    """Measured exchanges of eager steps with two ranks and more, as spans told them."""
    found = []
    for one, strategy in measured:
        exchange_s = one.exchange_s
        if one.world_size < 2 or one.cell["step"] != "eager" or exchange_s is None:
            continue
        if not one.cell.get("exchanges", True):
            continue
        numbers = range(len(strategy.buckets))
        try:
            terms = [term for i in numbers for term in terms_of(strategy, i, machinery, one.world_size)]
            terms += divide_term(strategy.num_elements, strategy, machinery, one.world_size)
            updates = update_terms(strategy, machinery, one.world_size)
        except (TopologyError, ScheduleError):
            continue  # the machine file has fewer ranks than were measured, or not what this needs
        if updates:
            exchange_s += one.phases.get("update_s", 0.0)
        key = strategy_key(strategy)
        found.append(Observation(key, [*terms, *updates], exchange_s, one.relative_sd, one.world_size))
    return found


def observations_of_transfers(
    transfers: Iterable[MeasuredTransfer], machinery: Machinery
) -> list[Observation]:
    """A probe's messages and all-reduces."""
    found = []
    for one in transfers:
        if one.num_bytes < LEAST_TRANSFER_BYTES or one.num_ranks < 2:
            continue
        try:
            term = _term_of(one, machinery)
        except TopologyError:
            continue  # the machine file has fewer ranks than were measured
        if term is not None:
            found.append(Observation(None, [term], one.seconds, one.relative_sd, one.num_ranks))
    return found


def _term_of(one: MeasuredTransfer, machinery: Machinery) -> Term | None:
    """What a transfer is by the machine file; None where it calibrates nothing."""
    peer = not one.host_only
    if one.operation == "mpi_all_reduce":
        time = mpi_native(*machinery.on("host"), one.num_ranks, one.num_bytes, machinery.mpi).time
        return Term("mpi", "all_reduce", time.latency_s, time.flow_s, None, time.choice, float(one.num_bytes))
    if one.operation == "all_reduce" and machinery.has_gpus:
        kind = "native" if peer else "native_host"
        time = nccl_all_reduce(*machinery.on(kind), one.num_ranks, one.num_bytes, peer_access=peer)
        return Term(kind, kind, time.latency_s, time.flow_s, None, time.choice, float(one.num_bytes))
    if one.operation == "all_reduce":
        own, bare = machinery.on("sends")
        flow_s = gloo_all_reduce(bare, one.num_ranks, one.num_bytes).seconds
        whole_s = gloo_all_reduce(own, one.num_ranks, one.num_bytes).seconds
        return Term("sends", "gloo", max(0.0, whole_s - flow_s), flow_s)
    if one.operation in ("send", "swap", "shift"):
        kind = "sends" if peer else "sends_host"
        own, bare = machinery.on(kind)
        schedule = moves(one.operation, one.num_ranks)
        flow_s = simulate(schedule, bare, one.num_bytes, peer_access=peer).seconds
        whole_s = simulate(schedule, own, one.num_bytes, peer_access=peer).seconds
        return Term(kind, kind, max(0.0, whole_s - flow_s), flow_s)
    return None


def fitted(
    topology_machinery: Machinery,
    cells: Sequence[tuple[MeasuredCell, Strategy]],
    transfers: Sequence[MeasuredTransfer],
) -> Calibration:
    """The factors from everything that was measured on the machine of `topology_machinery`."""
    return calibrate(
        [
            *observations_of_cells(cells, topology_machinery),
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
    named = libraries or {}
    return Machinery(
        topology,
        measured_host_sends(measured_on, transfers),
        MpiLibrary.of(named.get("mpi", "")),
        "over MPI" in named.get("horovod", ""),
    )

"""The terms of an exchange, by what carries it: MPI, NCCL, or a schedule over a transport."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace

from scaling.collectives.plan import Exchange, Stage
from scaling.collectives.schedule import Schedule
from scaling.collectives.simulate import Simulation, simulate
from scaling.prediction.mpi import mpi_exchange
from scaling.prediction.native import gloo_all_reduce, nccl_all_reduce
from scaling.prediction.strategy import Machinery, Strategy, Term
from scaling.prediction.transports import in_turns, shared_paths_s
from topologies.model import Topology

HOROVOD_CYCLE_S = 1e-3
"""Horovod's ranks agree on what to exchange once in so long (HOROVOD_CYCLE_TIME); half of that is waited."""

HOST_MEETING_S = 200e-6
"""What processes take to meet before and after an exchange through host memory. An assumption; calibrated."""

KERNEL_S = 3e-6
"""What a kernel takes at least. An assumption; calibrated."""


def exchange_terms(
    stage: Exchange, strategy: Strategy, transport: str, machinery: Machinery, world_size: int
) -> list[Term]:
    if stage.for_gpus and not machinery.has_gpus:
        return []
    if is_by_mpi(stage, machinery):
        work = mpi_exchange(stage, *machinery.on("host"), world_size, machinery.mpi)
        time = work.time
        sized = _num_bytes(stage) if stage.native else None  # a probe tells no more than all-reduces by size
        name = _name(stage)
        return [Term("mpi", name, time.latency_s, time.flow_s, time.busiest, time.choice, sized, work.note)]
    has_peer_access = transport not in ("sends_host", "host_memory")
    if stage.native and machinery.has_gpus:
        return _nccl_terms(stage, machinery, world_size, has_peer_access)
    kind = "host" if stage.schedule.num_hosts else transport
    return _schedule_terms(stage, strategy, kind, machinery, world_size, has_peer_access)


def _num_bytes(stage: Exchange) -> float:
    return stage.num_elements * stage.bytes_per_element


def _name(stage: Exchange) -> str:
    return stage.name or stage.schedule.name


def _nccl_terms(stage: Exchange, machinery: Machinery, world_size: int, has_peer_access: bool) -> list[Term]:
    """NCCL's all-reduce, and what Horovod adds to it."""
    num_bytes = _num_bytes(stage)
    kind = "native" if has_peer_access else "native_host"
    machine, bare = machinery.on(kind)
    time = nccl_all_reduce(machine, bare, world_size, num_bytes, peer_access=has_peer_access)
    native = Term(kind, _name(stage), time.latency_s, time.flow_s, time.busiest, time.choice, num_bytes)
    if not has_peer_access:
        native = replace(native, shared_s=machinery.ring_through_host_s(world_size, num_bytes))
    if stage.library != "horovod" or world_size == 1:
        return [native]
    return [native, Term("horovod", "negotiation", HOROVOD_CYCLE_S / 2, 0.0)]


def _schedule_terms(
    stage: Exchange,
    strategy: Strategy,
    kind: str,
    machinery: Machinery,
    world_size: int,
    has_peer_access: bool,
) -> list[Term]:
    """A schedule, or Gloo's all-reduce, simulated with latencies and without."""
    num_bytes, name = _num_bytes(stage), _name(stage)
    machine, bare = machinery.on(kind)

    def simulated(topology: Topology) -> Simulation:
        if stage.native:
            return gloo_all_reduce(topology, world_size, num_bytes)
        return simulate(
            stage.schedule, topology, num_bytes, peer_access=has_peer_access, num_messages=stage.num_messages
        )

    flowing = simulated(bare)
    busiest = flowing.busiest_resource
    latency_s, flow_s = max(0.0, simulated(machine).seconds - flowing.seconds), flowing.seconds
    if kind == "peer_memory":
        latency_s += KERNEL_S * _kernels(stage.schedule)
        # Ranks neither keep in step nor spread their turns evenly: the middle between both.
        turns = simulate(in_turns(stage.schedule), bare, num_bytes, num_messages=stage.num_messages)
        flow_s = (flow_s + turns.seconds) / 2
        if strategy.cell.get("step") == "captured":
            starts = Term("peer_memory_captured", name, latency_s, 0.0)
            return [starts, Term(kind, name, 0.0, flow_s, busiest)]
    is_through_host = kind == "host" or not has_peer_access
    shared_s = shared_paths_s(stage.schedule, machinery.on("host")[1], num_bytes) if is_through_host else 0.0
    if kind != "host":
        return [Term(kind, name, latency_s, flow_s, busiest, shared_s=shared_s)]
    copies_s = flowing.seconds - flowing.reduce_seconds
    copies = Term("host", name, latency_s + HOST_MEETING_S, copies_s, busiest, shared_s=shared_s)
    return [copies, *_host_sums(stage, strategy, machine, world_size, flowing.reduce_seconds)]


def _host_sums(
    stage: Exchange, strategy: Strategy, topology: Topology, world_size: int, reduce_s: float
) -> list[Term]:
    """The processor's sums of an exchange with host memory, if it has any."""
    if not any(transfer.operation == "add" for transfer in stage.schedule.steps[0]):
        return []
    name = f"{_name(stage)}: sums"
    num_rows = min(world_size, len(topology.machine.of_kind("gpu")) or world_size)
    if stage.schedule.name == "host_serial":
        # The partial sum's block stays in the cache: 3 bytes move for the first sum, 2 for a further row.
        return [Term("host_work", name, 0.0, reduce_s * (2 * num_rows - 1) / max(3 * (num_rows - 1), 1))]
    threads = int(strategy.cell.get("threads") or 1)
    return [
        Term("host_threads", name, 0.0, _sums_by_threads_s(_num_bytes(stage), num_rows, threads, topology))
    ]


def _sums_by_threads_s(num_bytes: float, num_rows: int, threads: int, topology: Topology) -> float:
    """Each rank of a node sums its share: every row is read once and the sum written, block by block.

    While they are few the threads bound it, of which one among many moves as many bytes as one alone adds;
    then the host memory does, which all share.
    """
    cpus, memories = (topology.machine.of_kind(kind) for kind in ("cpu", "host_memory"))
    num_threads = min(num_rows * threads, max(1, sum(cpu.cores or 1 for cpu in cpus)))
    rates = [cpu.reduce_bytes_per_s for cpu in cpus if cpu.reduce_bytes_per_s is not None]
    capacity = sum(memory.bandwidth_bytes_per_s or math.inf for memory in memories)
    rate = min(capacity, num_threads * rates[0] if rates else math.inf)
    return (num_rows + 1) * num_bytes / rate


def is_by_mpi(stage: Stage, machinery: Machinery) -> bool:
    """Whether MPI carries it: Horovod's too, where its ranks are processes that MPI connects."""
    if not isinstance(stage, Exchange):
        return False
    is_horovods = stage.library == "horovod" and machinery.horovod_by_mpi and not machinery.has_gpus
    return stage.library == "mpi" or is_horovods


def _kernels(schedule: Schedule) -> int:
    """Copies and sums of the busiest rank, step by step: ranges that do not touch are one each."""
    total = 0
    for index in range(len(schedule.steps)):
        by_rank: Counter[int] = Counter()
        ends: dict[tuple[int, int, str], int] = {}
        for source, target, start, stop, operation in schedule.steps[index]:
            pair = (source, target, operation)
            if ends.get(pair) != start:
                by_rank[target if operation == "add" else source] += 1
            ends[pair] = stop
        total += max(by_rank.values(), default=0)
    return total

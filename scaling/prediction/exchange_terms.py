"""The terms of an exchange, by what carries it: MPI, NCCL, or a schedule over a transport."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from scaling.collectives.nccl import unknown_gpu
from scaling.collectives.plan import Exchange, Stage, exchange_price
from scaling.collectives.schedule import Schedule
from scaling.collectives.simulate import simulate
from scaling.prediction.estimate import NORMAL_95
from scaling.prediction.strategy import Machinery, Strategy, Term
from scaling.prediction.transports import in_turns, shared_paths_s
from topologies.model import Topology

HOROVOD_CYCLE_S = 1e-3  # between Horovod's agreements (HOROVOD_CYCLE_TIME); half is waited
HOST_MEETING_S = 200e-6  # processes meet before and after an exchange in host memory. Assumed; calibrated
UNSEARCHED_SD = 0.7  # of NCCL's all-reduce whose rings or sockets are not known: a factor of two. Assumed
MOST_UNDER_A_SWITCH = 32  # nodes on one switch a rail: their messages share no link. Assumed

CONGESTION = 0.4
"""What messages between more nodes take longer at most. Measured: all-reduces on RoCE were up to 40% faster
with routing that spreads flows (Engineering at Meta, "A RoCE network for distributed AI training at scale",
2024). The middle is taken, and the 95% interval reaches from nothing to all of it."""

THROUGH_HOST = ("sends_host", "host_memory", "host")

KERNEL_S = 3e-6  # what a kernel takes at least. An assumption; calibrated


def exchange_terms(
    stage: Exchange, strategy: Strategy, transport: str, machinery: Machinery, world_size: int
) -> list[Term]:
    """What `exchange_price` says, with what software adds to it as terms of their own."""
    if stage.for_gpus and not machinery.has_gpus:
        return []
    may_access = transport != "host_memory" and strategy.cell.get("peer_access") is not False
    kind = _kind(stage, transport, machinery, world_size, may_access=may_access)
    machine = machinery.on(kind)
    priced = exchange_price(
        stage,
        machine,
        machine.ranks(world_size),
        peer_access=may_access,
        threads=int(strategy.cell.get("threads") or 1),
        mpi=machinery.mpi,
        by_mpi=is_by_mpi(stage, machinery),
    )
    num_bytes, name = stage.num_elements * stage.bytes_per_element, priced.name
    sized = num_bytes if stage.native and kind != "sends" else None  # Gloo's and MPI's messages go by no size
    exchanged = Term(
        kind, name, priced.latency_s, priced.flow_s, priced.busiest, priced.choice, sized, priced.note
    )
    if kind.startswith("native"):
        notes = [note for note in (priced.note, unknown_gpu(machine)) if note]
        sd = UNSEARCHED_SD if priced.note else 0.0
        exchanged = replace(exchanged, own_sd=sd, note="; ".join(notes) or None)
    if kind == "native_host":
        exchanged = replace(exchanged, shared_s=machinery.ring_through_host_s(world_size, num_bytes))
    elif kind in THROUGH_HOST and not stage.native:
        shared_s = shared_paths_s(
            stage.schedule, machinery.on("host").without_latency, num_bytes, peer_access=may_access
        )
        exchanged = replace(exchanged, shared_s=shared_s)
    congestion = _congestion(exchanged, machine, world_size)
    if kind == "peer_memory":
        return _over_peer_memory(stage, exchanged, machine, captured=strategy.cell.get("step") == "captured")
    terms = [exchanged, *congestion]
    if stage.library == "horovod" and kind.startswith("native") and world_size > 1:
        terms.append(Term("horovod", "negotiation", HOROVOD_CYCLE_S / 2, 0.0, is_added=True))
    if kind == "host":
        terms.append(Term("host", f"{name}: meeting", HOST_MEETING_S, 0.0, is_added=True))
        if priced.sums_s:
            by = "host_work" if stage.schedule.name == "host_serial" else "host_threads"
            terms.append(Term(by, f"{name}: sums", 0.0, priced.sums_s))
    return terms


def _congestion(exchanged: Term, machine: Topology, world_size: int) -> list[Term]:
    """Of messages between more nodes than a switch connects: a range."""
    num_nodes = len(machine.on_nodes(world_size))
    if num_nodes <= MOST_UNDER_A_SWITCH or not exchanged.flow_s or not machine.num_gpus:
        return []
    note = f"congestion between {num_nodes} nodes: bytes take 1 to {1 + CONGESTION:.1f} times as long"
    middle = replace(exchanged, latency_s=0.0, flow_s=exchanged.flow_s * CONGESTION / 2, shared_s=0.0)
    name = f"{exchanged.name}: congestion"
    return [replace(middle, name=name, note=note, own_sd=1 / NORMAL_95, is_added=True)]


def _kind(stage: Exchange, transport: str, machinery: Machinery, world_size: int, *, may_access: bool) -> str:
    if is_by_mpi(stage, machinery):
        return "mpi"
    if stage.native and machinery.has_gpus:
        return "native_host" if machinery.rings_through_host(world_size, peer_access=may_access) else "native"
    return "host" if stage.schedule.num_hosts else transport


def _over_peer_memory(stage: Exchange, priced: Term, machine: Topology, *, captured: bool) -> list[Term]:
    """With the kernels of each step, and the turns that ranks take."""
    starts_s = KERNEL_S * _kernels(stage.schedule)
    starts = Term(priced.kind, f"{priced.name}: kernels", starts_s, 0.0, is_added=True)
    # Ranks neither keep in step nor spread their turns evenly: the middle between both.
    num_bytes = stage.num_elements * stage.bytes_per_element
    turns = simulate(in_turns(stage.schedule), machine.without_latency, num_bytes)
    further_s = (turns.seconds - priced.flow_s) / 2
    in_turn = Term(priced.kind, f"{priced.name}: turns", 0.0, further_s, is_added=True)
    if not captured:
        return [priced, starts, in_turn]
    by_gpu = [replace(term, kind="peer_memory_captured", flow_s=0.0) for term in (priced, starts)]
    return [*by_gpu, replace(priced, latency_s=0.0), in_turn]


def is_by_mpi(stage: Stage, machinery: Machinery) -> bool:
    """Whether MPI carries it: Horovod's too, where its ranks are processes that MPI connects."""
    if not isinstance(stage, Exchange):
        return False
    is_horovods = stage.library == "horovod" and machinery.horovod_by_mpi and not machinery.has_gpus
    return stage.library == "mpi" or is_horovods


def _kernels(schedule: Schedule) -> int:
    """Copies and sums of the busiest rank, step by step: ranges that do not touch are one each."""
    total = 0
    for step in schedule.steps:
        by_rank: Counter[int] = Counter()
        ends: dict[tuple[int, int, str], int] = {}
        for source, target, start, stop, operation in step:
            pair = (source, target, operation)
            if ends.get(pair) != start:
                by_rank[target if operation == "add" else source] += 1
            ends[pair] = stop
        total += max(by_rank.values(), default=0)
    return total

"""What an aggregation consists of, as terms that are calibrated one by one.

A term is of a kind (a transport, or a place of work) and has a part that does not depend on the bytes,
`latency_s`, and one that does, `flow_s`, both as the machine file and the schedules have them. Calibration
multiplies each part by a factor of its kind. Terms follow one another.

- exchanges between ranks: peer_memory, sends, sends_host, by `scaling.prediction.transports`; of a captured
  step, whose kernels the GPU starts itself, the latency is peer_memory_captured;
- a library's own: native, native_host (`scaling.prediction.native`), mpi (`scaling.prediction.mpi`);
- exchanges with host memory: `host`, and the processor's sums in them;
- encoding and decoding by a rank: `codec`, where it starts torch's kernels tensor by tensor, `CODEC_LAUNCH_S`
  each, else `codec_kernels`, a few of its own for all (`codec_kernels_captured`);
- sums, means and updates by one thread of the processor, or by a stated number: `host_work`; by all threads
  of all ranks: `host_threads`; by a GPU: `gpu_work`, its memory's rate.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from scaling.collectives.mpi_library import MpiLibrary
from scaling.collectives.plan import Codec, Exchange, Stage, Update, simulate_plan
from scaling.collectives.ring import ring
from scaling.collectives.schedule import Schedule
from scaling.collectives.simulate import Simulation, simulate
from scaling.prediction.estimate import NOTHING, PredictedValue
from scaling.prediction.mpi import mpi_exchange
from scaling.prediction.native import gloo_all_reduce, nccl_all_reduce
from scaling.prediction.transports import HostSends, for_host_sends, in_turns, shared_paths_s, without_latency
from topologies.model import Topology

CODEC_LAUNCH_S = 100e-6
"""What starting the kernels takes that decode a tensor of one message. An assumption; calibrated."""

ENCODE_LAUNCHES = 3.5
"""As many times that takes encoding. Measured: 0.55 ms a tensor for encoding and 0.31 for decoding two
messages (1-bit codecs of torch's operations on H200)."""

HOROVOD_CYCLE_S = 1e-3
"""Horovod's ranks agree on what to exchange once in so long (HOROVOD_CYCLE_TIME); half of that is waited."""

HOST_MEETING_S = 200e-6
"""What processes take to meet before and after an exchange through host memory. An assumption; calibrated."""

CODEC_KERNELS = 3
"""That a codec with kernels of its own starts for a message. An assumption; calibrated."""

KERNEL_S = 3e-6
"""What a kernel takes at least. An assumption; calibrated."""

PAGEABLE_BYTES_PER_S = 7e9
"""Copies from pageable memory to a GPU. Measured: 6.7 to 7.1 GB/s on two H200 (transfer-2xh200)."""

INPUT_COPY_SD = 0.5
"""Of copies of the input: they may be hidden, or wait for the processor. An assumption."""

DIVIDE_BYTES_MOVED = 2.0
"""The sum is divided by the world size where it is on a GPU: read and written."""

CAST_BYTES_MOVED = 3.0
"""For each byte in float32: 4 are read and 2 written for the wire, 2 read and 4 written back."""

DDP_BYTES_MOVED = 4.0
"""DDP copies a gradient into its bucket and the mean back, each read and written (torch's reducer.cpp).
Measured: 0.51 to 0.54 ms for 489 MB on an H200, where this is 0.47."""


@dataclass(frozen=True)
class Term:
    """One part of an aggregation.

    Attributes:
        kind: what calibrates it.
        name: for people.
        latency_s, flow_s: by the machine file.
        busiest: the resource that bounds it; None where that is no link.
        choice: a library's algorithm and protocol.
        native_bytes: of a library's all-reduce, the buffer; else None.
        note: what was assumed of it.
        num_ranks: that take part.
        shared_s: of what goes through host memory, on the busiest path that ranks share, by the machine file.
    """

    kind: str
    name: str
    latency_s: float
    flow_s: float
    busiest: str | None = None
    choice: str = ""
    native_bytes: float | None = None
    note: str | None = None
    num_ranks: int = 2
    shared_s: float = 0.0

    @property
    def by_gpu(self) -> bool:
        """Whether the GPU itself works on it, so that nothing that it computes hides it."""
        return self.kind.startswith("codec") or self.kind == "gpu_work"


@dataclass(frozen=True)
class Strategy:
    """One aggregation as plans have it, for one cell.

    Attributes:
        cell: its independent variables.
        buckets: stages of each bucket's aggregation, in the order in which gradients become ready; no update
            where every replica takes it.
        bucket_elements, bucket_tensors: of each bucket.
        updates: the update, where it is not every replica's.
        num_elements: of the whole gradient, as many as its bytes are in float32.
        codes_by_tensor: its codec starts kernels for each tensor.
        cast: the gradient is cast to 16 bits for the wire, and back.
        sample_bytes: of a sample's input, where its data lies in host memory.
    """

    cell: Mapping[str, Any]
    buckets: tuple[tuple[Stage, ...], ...]
    bucket_elements: tuple[int, ...]
    bucket_tensors: tuple[int, ...]
    updates: tuple[Update, ...]
    num_elements: int
    codes_by_tensor: bool = False
    cast: bool = False
    sample_bytes: int = 0

    @property
    def gpu_update_share(self) -> float:
        """Of the parameters, those that the busiest rank's own device updates, where replicas do not all."""
        share, total = 0.0, sum(update.num_elements for update in self.updates)
        for update in self.updates:
            if update.site == "root" and total:
                share += update.num_elements / total
            elif update.site == "owner" and total:
                share += max(update.owner_elements) / total
        return share


@dataclass
class Machinery:
    """A topology, and what prices on it: made once for many cells.

    Attributes:
        topology: the machine.
        host_sends: what messages through its host memory reach; None: as the machine file has it.
        mpi: the MPI library; None: a default, which predictions say.
        horovod_by_mpi: whether Horovod's ranks without GPUs exchange by MPI, and not by Gloo.
    """

    topology: Topology
    host_sends: HostSends | None = None
    mpi: MpiLibrary | None = None
    horovod_by_mpi: bool = False
    _bare: dict[str, Topology] = field(default_factory=dict)

    def on(self, transport: str) -> tuple[Topology, Topology]:
        """The topology of a transport, and the same without latency."""
        if transport not in self._bare:
            topology = self.topology
            if transport in ("sends_host", "native_host"):
                topology = for_host_sends(self.topology, self.host_sends)
            self._bare[transport], self._bare[f"{transport}, bare"] = topology, without_latency(topology)
        return self._bare[transport], self._bare[f"{transport}, bare"]

    def ring_through_host_s(self, world_size: int, num_bytes: float) -> float:
        """A library's ring without access between GPUs, on the paths that the ranks of a node share."""
        per_node = min(world_size, len(self.topology.machine.of_kind("gpu")))
        return shared_paths_s(ring(per_node), self.on("host")[1], num_bytes) if per_node > 1 else 0.0

    @property
    def has_gpus(self) -> bool:
        """Whether ranks are GPUs."""
        return bool(self.topology.machine.of_kind("gpu"))


def transport_of(strategy: Strategy, machinery: Machinery, world_size: int) -> str:
    """How ranks exchange: by the study's `peer_access`, the machine, and what the aggregator asks for."""
    if any(_by_mpi(stage, machinery) for bucket in strategy.buckets for stage in bucket):
        return "mpi"
    if not machinery.has_gpus:
        return "sends"
    topology = machinery.topology
    peer = strategy.cell.get("peer_access") is not False
    gpus = topology.machine.of_kind("gpu")
    on_one_node = world_size <= len(gpus)
    all_reach = all(
        topology.machine.peer_access(gpus[0].id, gpu.id) for gpu in gpus[1 : min(world_size, len(gpus))]
    )
    if not peer or not all_reach:
        return "sends_host"
    transport = dict(strategy.cell.get("aggregator_parameters") or {}).get("transport", "auto")
    return "peer_memory" if on_one_node and transport in ("auto", "peer_memory", "one_kernel") else "sends"


def terms_of(strategy: Strategy, bucket: int, machinery: Machinery, world_size: int) -> list[Term]:
    """The terms of one bucket's aggregation, by its number.

    Raises:
        TopologyError: the machine has not what a stage needs.
    """
    transport = transport_of(strategy, machinery, world_size)
    threads = int(strategy.cell.get("threads") or 1)
    terms: list[Term] = []
    for stage in strategy.buckets[bucket]:
        if isinstance(stage, Exchange):
            terms += _exchange_terms(stage, strategy, transport, machinery, world_size)
        elif isinstance(stage, Codec) and stage.where == "rank":
            terms.append(_codec_term(stage, strategy, bucket, machinery, world_size))
        else:
            terms.append(_host_work(stage, machinery, world_size, threads))
    return [replace(term, num_ranks=world_size) for term in terms]


def update_terms(strategy: Strategy, machinery: Machinery, world_size: int) -> list[Term]:
    """Those of an update on the host; an update on GPUs follows the measured one (`gpu_update_share`)."""
    threads = int(strategy.cell.get("threads") or 1)
    works = [
        _host_work(update, machinery, world_size, threads)
        for update in strategy.updates
        if update.site == "host"
    ]
    return [replace(work, num_ranks=world_size) for work in works]


def divide_term(num_elements: int, strategy: Strategy, machinery: Machinery, world_size: int) -> list[Term]:
    """The mean of what was summed between GPUs."""
    if world_size == 1 or not machinery.has_gpus or not strategy.cell.get("exchanges", True):
        return []
    if any(update.site == "host" for update in strategy.updates) or sums_by_mpi(strategy):
        return []
    bandwidth = machinery.topology.machine.of_kind("gpu")[0].bandwidth_bytes_per_s
    if bandwidth is None:
        return []
    share = strategy.gpu_update_share if strategy.updates else 1.0
    gradient_s = 4.0 * num_elements / bandwidth
    terms = [Term("gpu_work", "divide", 0.0, share * gradient_s * DIVIDE_BYTES_MOVED)]
    if strategy.cast:
        terms.append(Term("gpu_work", "cast", 0.0, gradient_s * CAST_BYTES_MOVED))
    return terms


def ddp_terms(strategy: Strategy, machinery: Machinery) -> list[Term]:
    """DDP's own copies, for a computation that was measured without it."""
    gpus = machinery.topology.machine.of_kind("gpu")
    if not gpus or gpus[0].bandwidth_bytes_per_s is None:
        return []
    flow_s = 4.0 * strategy.num_elements * DDP_BYTES_MOVED / gpus[0].bandwidth_bytes_per_s
    return [Term("gpu_work", "copies of DDP", 0.0, flow_s)]


def input_copy(strategy: Strategy, machinery: Machinery) -> PredictedValue:
    """A batch from host memory to each GPU, all at the same time."""
    gpus = machinery.topology.machine.of_kind("gpu")
    if not gpus:
        return NOTHING
    machine = machinery.topology.machine
    link = machine.route(gpus[0].id, machine.nearest(gpus[0].id, "host_memory"))[0][0]
    rate = min(link.bandwidth_bytes_per_s, link.back_bytes_per_s or link.bandwidth_bytes_per_s)
    if strategy.cell.get("input_placement") != "pinned":
        rate = min(rate, PAGEABLE_BYTES_PER_S)
    seconds = strategy.sample_bytes * int(strategy.cell["local_batch"]) / rate
    return PredictedValue.of(seconds, "copies of the input", INPUT_COPY_SD)


def _exchange_terms(
    stage: Exchange, strategy: Strategy, transport: str, machinery: Machinery, world_size: int
) -> list[Term]:
    if stage.for_gpus and not machinery.has_gpus:
        return []
    if _by_mpi(stage, machinery):
        work = mpi_exchange(stage, *machinery.on("host"), world_size, machinery.mpi)
        time = work.time
        sized = _num_bytes(stage) if stage.native else None  # a probe tells no more than all-reduces by size
        name = _name(stage)
        return [Term("mpi", name, time.latency_s, time.flow_s, time.busiest, time.choice, sized, work.note)]
    has_peer_access = transport != "sends_host"
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


def _by_mpi(stage: Stage, machinery: Machinery) -> bool:
    """Whether MPI carries it: Horovod's too, where its ranks are processes that MPI connects."""
    if not isinstance(stage, Exchange):
        return False
    is_horovods = stage.library == "horovod" and machinery.horovod_by_mpi and not machinery.has_gpus
    return stage.library == "mpi" or is_horovods


def sums_by_mpi(strategy: Strategy) -> bool:
    """Whether MPI sums the gradient itself, in host memory, where it is divided too."""
    return any(
        isinstance(stage, Exchange) and stage.library == "mpi" and stage.native
        for bucket in strategy.buckets
        for stage in bucket
    )


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


def _codec_term(stage: Codec, strategy: Strategy, bucket: int, machinery: Machinery, world_size: int) -> Term:
    priced = simulate_plan([stage], machinery.topology, world_size).seconds
    num_messages = world_size if stage.name == "decode" else 1
    if strategy.codes_by_tensor:
        # The messages of all ranks are stacked, and half of the kernels decode all of them at once.
        launches = 1 + num_messages / 2 if stage.name == "decode" else ENCODE_LAUNCHES
        launches_s = strategy.bucket_tensors[bucket] * launches * CODEC_LAUNCH_S
        return Term("codec", stage.name, launches_s, priced)
    kind = "codec_kernels_captured" if strategy.cell.get("step") == "captured" else "codec_kernels"
    return Term(kind, stage.name, CODEC_KERNELS * num_messages * KERNEL_S, priced)


def _host_work(stage: Codec | Update, machinery: Machinery, world_size: int, threads: int) -> Term:
    by_all = stage.num_threads > 1 and (isinstance(stage, Update) or stage.by_all)
    if by_all and isinstance(stage, Update):  # a share a rank, by all of its threads
        stage = replace(stage, num_threads=stage.num_threads * threads)
    priced = simulate_plan([stage], machinery.topology, world_size).seconds
    return Term("host_threads" if by_all else "host_work", stage.name or "work", 0.0, priced)

"""What an aggregation consists of, as terms that are calibrated one by one.

A term is of a kind (a transport, or a place of work) and has a part that does not depend on the bytes,
`latency_s`, and one that does, `flow_s`, both as the machine file and the schedules have them. Calibration
multiplies each part by a factor of its kind. Terms follow one another.

- exchanges between ranks: peer_memory, sends, sends_host, host_memory, by `scaling.prediction.transports`; of
  a captured step, whose kernels the GPU starts itself, the latency is peer_memory_captured;
- a library's own: native, native_host (`scaling.collectives.nccl`), mpi (`scaling.collectives.mpi_library`);
- exchanges with host memory: `host`, and the processor's sums in them;
- encoding and decoding by a rank: `codec`, where it starts torch's kernels tensor by tensor, `CODEC_LAUNCH_S`
  each, else `codec_kernels`, a few of its own for all (`codec_kernels_captured`);
- sums, means and updates by one thread of the processor, or by a stated number: `host_work`; by all threads
  of all ranks: `host_threads`; by a GPU: `gpu_work`, its memory's rate.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from itertools import combinations
from typing import Any

from scaling.collectives.plan import CodecWork, Exchange, Update, simulate_plan
from scaling.errors import ScheduleError
from scaling.prediction.estimate import NOTHING, PredictedValue
from scaling.prediction.exchange_terms import KERNEL_S, exchange_terms, is_by_mpi
from scaling.prediction.strategy import Machinery, Strategy, Term
from topologies.model import Topology

CODEC_LAUNCH_S = 100e-6  # starting the kernels that decode a tensor of one message. Assumed; calibrated

ENCODE_LAUNCHES = 3.5
"""As many times that takes encoding. Measured: 0.55 ms a tensor for encoding and 0.31 for decoding two
messages (1-bit codecs of torch's operations on H200)."""


CODEC_KERNELS = 3  # that a codec with kernels of its own starts for a message. An assumption; calibrated


PAGEABLE_BYTES_PER_S = 7e9  # to a GPU. Measured: 6.7 to 7.1 GB/s on two H200 (transfer-2xh200)
INPUT_COPY_SD = 0.5  # of copies of the input: they may be hidden, or wait for the processor. An assumption
DIVIDE_BYTES_MOVED = 2.0  # the sum is divided by the world size where it is on a GPU: read and written
CAST_BYTES_MOVED = 3.0  # of each float32 byte: 4 read and 2 written for the wire, and back

DDP_BYTES_MOVED = 4.0
"""DDP copies a gradient into its bucket and the mean back, each read and written (torch's reducer.cpp).
Measured: 0.51 to 0.54 ms for 489 MB on an H200, where this is 0.47."""

BLOCK_BYTES_MOVED = 5.0
"""For each byte of the model, by every rank at the end of a block of local updates: what it was moved by (two
read, one written), and the copy of the new model."""

OUTER_BYTES_MOVED = {"plain": 3.0, "momentum": 8.0, "nesterov": 11.0}
"""Bytes moved for each byte of the model by the outer update, torch's SGD (torch/optim/sgd.py)."""


def transport_of(strategy: Strategy, machinery: Machinery, world_size: int) -> str:
    """How ranks exchange: by the study's `peer_access`, the machine, and what the aggregator asks for."""
    if any(is_by_mpi(stage, machinery) for stage in strategy.stages):
        return "mpi"
    if not machinery.has_gpus:
        return "sends"
    transport = dict(strategy.cell.get("aggregator_parameters") or {}).get("transport", "auto")
    if transport == "host_memory":
        return "host_memory"
    topology = machinery.topology
    may_access = strategy.cell.get("peer_access") is not False
    if not may_access or not all_reach(topology, world_size):
        return "sends_host"
    on_one_node = len(topology.on_nodes(world_size)) == 1
    return "peer_memory" if on_one_node and transport in ("auto", "peer_memory", "one_kernel") else "sends"


def all_reach(topology: Topology, world_size: int) -> bool:
    """Whether all of a node's GPUs that take part access one another's memory."""
    pairs = combinations(topology.gpus_of_node(world_size), 2)
    return all(topology.machine.peer_access(a, b) for a, b in pairs)


def terms_of(strategy: Strategy, bucket: int, machinery: Machinery, world_size: int) -> list[Term]:
    """Of one bucket, by its number; TopologyError where the machine has not what a stage needs."""
    transport = transport_of(strategy, machinery, world_size)
    threads = int(strategy.cell.get("threads") or 1)
    terms: list[Term] = []
    for stage in strategy.buckets[bucket]:
        if isinstance(stage, Exchange):
            terms += exchange_terms(stage, strategy, transport, machinery, world_size)
        elif isinstance(stage, CodecWork) and stage.where == "rank":
            terms += _codec_terms(stage, strategy, bucket, machinery, world_size)
        else:
            terms.append(_host_work(stage, machinery, world_size, threads))
    return _among(terms, machinery, world_size)


def update_terms(strategy: Strategy, machinery: Machinery, world_size: int) -> list[Term]:
    """Those of an update on the host; an update on GPUs follows the measured one (`gpu_update_share`)."""
    threads = int(strategy.cell.get("threads") or 1)
    if any(isinstance(stage, Update) for stage in strategy.stages):
        return []  # each comes with its bucket
    on_host = [update for update in strategy.updates if update.site == "host"]
    works = [_host_work(update, machinery, world_size, threads) for update in on_host]
    return _among(works, machinery, world_size)


def _among(terms: list[Term], machinery: Machinery, world_size: int) -> list[Term]:
    on_node = machinery.topology.on_nodes(world_size)[0]
    return [replace(term, num_ranks=world_size, node_ranks=on_node) for term in terms]


def divide_term(num_elements: int, strategy: Strategy, machinery: Machinery, world_size: int) -> list[Term]:
    """The mean of what was summed between GPUs."""
    if world_size == 1 or not machinery.has_gpus or not strategy.cell.get("exchanges", True):
        return []
    exchanges = [stage for stage in strategy.stages if isinstance(stage, Exchange)]
    if any(stage.library == "mpi" and stage.native for stage in exchanges):
        return []  # MPI sums the gradient itself, in host memory, where it is divided too
    if any(update.site == "host" for update in strategy.updates):
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


def block_terms(strategy: Strategy, machinery: Machinery, world_size: int) -> list[Term]:
    """What the end of a block of local updates goes through on each rank, besides its exchange."""
    name = strategy.cell.get("outer_update")
    gpus = machinery.topology.machine.of_kind("gpu")
    if name is None or (gpus and gpus[0].bandwidth_bytes_per_s is None):
        return []
    by_update = OUTER_BYTES_MOVED["nesterov" if name == "nesterov" else "momentum"]
    if not strategy.cell.get("outer_momentum"):
        by_update = OUTER_BYTES_MOVED["plain"]
    share = strategy.gpu_update_share if strategy.updates else 1.0
    work = Update("replica", strategy.num_elements, bytes_moved=BLOCK_BYTES_MOVED + share * by_update)
    priced = simulate_plan([work], machinery.topology, world_size).seconds
    terms = [Term("gpu_work" if gpus else "host_work", "end of a block", 0.0, priced)]
    return _among(terms, machinery, world_size)


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


def _codec_terms(
    stage: CodecWork, strategy: Strategy, bucket: int, machinery: Machinery, world_size: int
) -> list[Term]:
    priced = simulate_plan([stage], machinery.topology, world_size).seconds
    num_messages = world_size if stage.name == "decode" else 1
    if strategy.codes_by_tensor:
        # The messages of all ranks are stacked, and half of the kernels decode all of them at once.
        launches = 1 + num_messages / 2 if stage.name == "decode" else ENCODE_LAUNCHES
        kind, starts_s = "codec", strategy.bucket_tensors[bucket] * launches * CODEC_LAUNCH_S
    else:
        kind = "codec_kernels_captured" if strategy.cell.get("step") == "captured" else "codec_kernels"
        starts_s = CODEC_KERNELS * num_messages * KERNEL_S
    starts = Term(kind, f"{stage.name}: kernels", starts_s, 0.0, is_added=True)
    return [Term(kind, stage.name, 0.0, priced), starts]


def _host_work(stage: CodecWork | Update, machinery: Machinery, world_size: int, threads: int) -> Term:
    by_all = stage.num_threads > 1 and (isinstance(stage, Update) or stage.by_all)
    if by_all and isinstance(stage, Update):  # a share a rank, by all of its threads
        stage = replace(stage, num_threads=stage.num_threads * threads)
    priced = simulate_plan([stage], machinery.topology, world_size).seconds
    return Term("host_threads" if by_all else "host_work", stage.name or "work", 0.0, priced)


def of_other_device(cell: Mapping[str, Any], topology: Topology) -> str | None:
    """Why the cell's computation is none of that machine's ranks; None where it is."""
    has_gpus, by_processor = bool(topology.machine.of_kind("gpu")), cell.get("device") == "cpu"
    if by_processor != has_gpus:
        return None
    if by_processor:
        return (
            f"a step computed by the processor tells nothing of the GPUs of {topology.name}: say "
            "device=cuda, and name results of GPUs by --from"
        )
    return f"{topology.name} has no GPUs: say device=cpu, and name results of processors by --from"


def require_it_runs(strategy: Strategy, topology: Topology) -> None:
    """Raises ScheduleError where `run` would refuse the cell: the machine's hosts or its access forbid it."""
    cell, ranks = strategy.cell, topology.ranks(int(strategy.cell["world_size"]))
    on_hosts = topology.on_nodes(len(ranks))
    label = cell.get("aggregator_label", cell.get("aggregator"))
    if strategy.one_host and len(on_hosts) > 1:
        raise ScheduleError(
            f"{label} goes through memory that the ranks of one host share, and {len(ranks)} ranks are on "
            f"{len(on_hosts)} hosts of {topology.name}: it does not run there; ask for up to "
            f"{on_hosts[0]} ranks"
        )
    transport = dict(cell.get("aggregator_parameters") or {}).get("transport")
    may_access = cell.get("peer_access") is not False and all_reach(topology, len(ranks))
    if transport in ("peer_memory", "one_kernel") and topology.num_gpus and len(ranks) > 1 and not may_access:
        raise ScheduleError(
            f"{label} reads the other GPUs' memory, which not all of {topology.name} "
            f"{'are known to ' * topology.machine.other_peers_unknown}reach: it does not run there; use "
            "transport: sends or auto"
        )

"""Every collective by name, with a default for each parameter but the world size."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from scaling.collectives.halving_doubling import halving_doubling, recursive_doubling
from scaling.collectives.hierarchical import hierarchical, tf_hierarchical_copy
from scaling.collectives.host_staging import host_parallel, host_serial
from scaling.collectives.mxnet_tree import mxnet_tree
from scaling.collectives.owners import sharded_owners, shuffle, star, stripes
from scaling.collectives.ring import ring
from scaling.collectives.schedule import Schedule
from scaling.collectives.schedule_file import for_ranks, is_file
from scaling.collectives.tree import caffe_tree, double_binary_tree, tree
from scaling.errors import ScheduleError

# Weights and biases of the fully connected network 784-2048-4096-1024-10 of arXiv 1608.07249, in elements.
FCN_R_TENSORS = (784 * 2048, 2048, 2048 * 4096, 4096, 4096 * 1024, 1024, 1024 * 10, 10)
MAX_RANKS_PER_HOST = 8
PIPELINE_CHUNKS = 8


@dataclass(frozen=True)
class Entry:
    description: str
    schedule: Callable[[int], Schedule]


def schedule(name: str, world_size: int) -> Schedule:
    """The collective called `name` with its default parameters, or that of a file (`FILE.yaml`).
    ScheduleError: there is none of that name, `world_size` is below 1, or the file is not for it."""
    if is_file(name) and world_size >= 1:
        return for_ranks(name, world_size)
    if name not in COLLECTIVES:
        raise ScheduleError(f"unknown collective {name!r}; known: {', '.join(COLLECTIVES)}")
    if world_size < 1:
        raise ScheduleError(f"{name}: {world_size} ranks; allowed are 1 and more")
    return COLLECTIVES[name].schedule(world_size)


def _ranks_per_host(world_size: int) -> int:
    """The largest machine of up to 8 ranks of which the world is a multiple."""
    return max(g for g in range(1, MAX_RANKS_PER_HOST + 1) if world_size % g == 0)


COLLECTIVES: dict[str, Entry] = {
    "ring": Entry("reduce-scatter and all-gather round one ring", ring),
    "ring_both_ways": Entry("half of the buffer round each way", lambda n: ring(n, directions=2)),
    "xring": Entry(
        "TensorFlow's ring of two sub-rings with rotated starts", lambda n: ring(n, subrings=min(2, n))
    ),
    "tree": Entry("binomial tree to rank 0 and back", tree),
    "pipelined_tree": Entry("the binomial tree in 8 chunks", lambda n: tree(n, num_chunks=PIPELINE_CHUNKS)),
    "caffe_tree": Entry(
        "Caffe's tree on boards of two GPUs without peer access between them", lambda n: caffe_tree(n, 2)
    ),
    "star": Entry("Torch's gather to rank 0 and broadcast, one rank a step", star),
    "recursive_doubling": Entry("swaps of the whole buffer; extra ranks fold in", recursive_doubling),
    "halving_doubling": Entry("Rabenseifner's halving and doubling; extra ranks fold in", halving_doubling),
    "binary_blocks": Entry(
        "halving and doubling in blocks of powers of two", lambda n: halving_doubling(n, "binary_blocks")
    ),
    "double_binary_tree": Entry(
        "NCCL's two trees, half of the buffer each, in 8 chunks",
        lambda n: double_binary_tree(n, num_chunks=PIPELINE_CHUNKS),
    ),
    "sharded_owners": Entry(
        "MXNet's owner a tensor, for the eight tensors of FCN-R", lambda n: sharded_owners(n, FCN_R_TENSORS)
    ),
    "shuffle": Entry(
        "TensorFlow's shuffle: each half of the buffer summed by a rank", lambda n: shuffle(n, (0, 1 % n))
    ),
    "mxnet_tree": Entry("MXNet's tree a root, one slice each, all links equal", mxnet_tree),
    "hierarchical": Entry(
        "rings inside machines of up to 8 ranks and across", lambda n: hierarchical(n, _ranks_per_host(n))
    ),
    "hierarchical_leader": Entry(
        "trees inside machines of up to 8 ranks, a ring of their leaders",
        lambda n: hierarchical(n, _ranks_per_host(n), "leader"),
    ),
    "tf_hierarchical_copy": Entry("TensorFlow's two halves with a main GPU each", tf_hierarchical_copy),
    "host_serial": Entry("sum in one host's memory, the buffer whole", host_serial),
    "host_parallel": Entry("sum in one host's memory, in one piece a rank", host_parallel),
    "host_serial_by_8": Entry(
        "sum in the memory of each 8 ranks' host, ring of hosts", lambda n: host_serial(n, MAX_RANKS_PER_HOST)
    ),
    "host_parallel_by_8": Entry(
        "the same, in 8 pieces a host", lambda n: host_parallel(n, MAX_RANKS_PER_HOST)
    ),
    "stripes": Entry("CNTK's stripe a rank, sent to its owner and back to all", stripes),
}

"""Host staging: every rank adds its buffer into its machine's host memory and copies the sum back.

What a system does that has no path between GPUs, or keeps its parameters on the CPU. All ranks of a machine
share the way to its host memory, and the CPU does the sums.

1. Every rank adds its buffer into its host memory, which starts as zero.
2. Where there are H > 1 machines, the hosts sum among themselves by a ring (ring.py): 2(H-1) steps.
3. Every rank copies the sum from its host memory.

`host_serial` sums the buffer whole: the adds follow one another in rank order. `host_parallel` cuts it into
as many pieces as a machine has ranks: the adds of a piece follow one another, those of different pieces can
run at the same time, one thread a piece. Cut into C further chunks, both ways of the bus and the sums work at
the same time: chunk c goes up in step c and comes back 1 + 2(H-1) steps later.

Steps: 1 + 2(H-1) + C. Bytes sent: S by a rank in C messages; by a host S to each of its ranks, and 2(H-1)/H S
to the next host in 2(H-1)C messages. Error: one order of summation, then copies, so the ranks agree bit for
bit.

References: M. Abadi et al., "TensorFlow: Large-Scale Machine Learning on Heterogeneous Distributed Systems",
arXiv 1603.04467 (2016), with variables on the CPU (serial); S. Shi, Q. Wang, P. Xu, X. Chu, "Benchmarking
State-of-the-Art Deep Learning Software Tools", arXiv 1608.07249v7 (2017), on Torch (parallel); MXNet's
`CommCPU` (src/kvstore/comm.h), which is parallel for large tensors only. They update the parameters on the
host and copy those back; TensorFlow's example copies all buffers side by side before it takes their mean.
None of them pipelines.
"""

from __future__ import annotations

import numpy as np

from scaling.collectives.composition import pipelined, placed
from scaling.collectives.ring import ring
from scaling.collectives.schedule import Columns, LazySteps, Schedule, ScheduleStep, Transfer
from scaling.errors import ScheduleError


def host_serial(world_size: int, ranks_per_host: int | None = None, num_chunks: int = 1) -> Schedule:
    """Sums through host memory, the whole buffer at a time. `ranks_per_host`: ranks r with the same r //
    ranks_per_host share a host; None puts all on one. `num_chunks`: for the pipeline; 1 sends the buffer
    whole. ScheduleError: `ranks_per_host` or `num_chunks` is below 1."""
    ranks_per_host = world_size if ranks_per_host is None else ranks_per_host
    return _staged("host_serial", world_size, ranks_per_host, 1, num_chunks)


def host_parallel(world_size: int, ranks_per_host: int | None = None, num_chunks: int = 1) -> Schedule:
    """Sums through host memory, in as many pieces as a host has ranks; arguments as for `host_serial`."""
    ranks_per_host = world_size if ranks_per_host is None else ranks_per_host
    return _staged("host_parallel", world_size, ranks_per_host, min(ranks_per_host, world_size), num_chunks)


def _staged(name: str, world_size: int, ranks_per_host: int, num_pieces: int, num_groups: int) -> Schedule:
    if ranks_per_host < 1 or num_groups < 1:
        raise ScheduleError(
            f"{name}: {ranks_per_host} ranks per host, {num_groups} chunks; allowed are 1 and more"
        )
    num_hosts = -(-world_size // ranks_per_host)
    hosts = range(world_size, world_size + num_hosts)
    host_of = [hosts[r // ranks_per_host] for r in range(world_size)]
    width = num_pieces * num_hosts
    if num_hosts == 1:
        on_one = _steps_on_one_host(world_size, num_pieces, num_groups)
        return Schedule(name, world_size, width * num_groups, on_one, num_hosts=1)
    pieces = [(piece * num_hosts, (piece + 1) * num_hosts) for piece in range(num_pieces)]
    to_host = tuple(Transfer(r, host_of[r], *piece, "add") for r in range(world_size) for piece in pieces)
    to_ranks = tuple(Transfer(host_of[r], r, 0, width, "copy") for r in range(world_size))
    between_hosts = placed(ring(num_hosts).steps, hosts, width=num_pieces)
    steps = pipelined([to_host, *between_hosts, to_ranks], num_groups, width)
    return Schedule(name, world_size, width * num_groups, tuple(steps), num_hosts=num_hosts)


def _steps_on_one_host(world_size: int, num_pieces: int, num_groups: int) -> LazySteps:
    """Group c goes up in step c and comes back in the next: a step of 1,024 ranks has a million transfers."""
    ranks, host = np.arange(world_size), world_size
    sources, pieces = np.repeat(ranks, num_pieces), np.tile(np.arange(num_pieces), world_size)

    def step(t: int) -> ScheduleStep:
        up, back = pieces + t * num_pieces, (t - 1) * num_pieces
        if t == 0:
            return Columns(sources, host, up, up + 1, True)
        if t == num_groups:
            return Columns(host, ranks, back, back + num_pieces, False)
        return Columns(
            np.concatenate([sources, np.full(world_size, host)]),
            np.concatenate([np.full(len(sources), host), ranks]),
            np.concatenate([up, np.full(world_size, back)]),
            np.concatenate([up + 1, np.full(world_size, back + num_pieces)]),
            np.arange(len(sources) + world_size) < len(sources),
        )

    return LazySteps(num_groups + 1, step, lambda t: (t == 0, t == num_groups), hosts_are_alike=True)

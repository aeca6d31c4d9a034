"""Ring all-reduce: reduce-scatter round a ring of ranks, then all-gather round the same ring.

Every rank sends in every step, and only ever to its successor, so each link carries the same bytes and the time
does not grow with the number of ranks where bandwidth decides.

1. The buffer is cut into n chunks.
2. Reduce-scatter, steps t = 0 .. n-2: rank r adds its chunk (r - t) mod n into its successor's.
   Afterwards rank r holds the whole sum of chunk (r + 1) mod n.
3. All-gather, steps t = 0 .. n-2: rank r copies its chunk (r + 1 - t) mod n to its successor.

Steps: 2(n-1). Bytes sent per rank: 2(n-1)/n S, in 2(n-1) messages. Error: each chunk is summed once, in one
order, and then copied, so the ranks agree bit for bit.

Reference: P. Patarasuk, X. Yuan, "Bandwidth optimal all-reduce algorithms for clusters of workstations",
J. Parallel Distrib. Comput. 69 (2009).
"""

from __future__ import annotations

from scaling.collectives.schedule import Operation, Schedule, Step, Transfer


def ring(world_size: int) -> Schedule:
    """The ring all-reduce of `world_size` ranks, rank r sending to (r + 1) mod n, with n chunks."""
    n = world_size

    def step(first_chunk: int, t: int, operation: Operation) -> Step:
        chunks = [(r + first_chunk - t) % n for r in range(n)]
        return tuple(Transfer(r, (r + 1) % n, c, c + 1, operation) for r, c in enumerate(chunks))

    reduce_scatter = [step(0, t, "add") for t in range(n - 1)]
    all_gather = [step(1, t, "copy") for t in range(n - 1)]
    return Schedule("ring", n, n, tuple(reduce_scatter + all_gather))

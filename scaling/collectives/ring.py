"""Ring all-reduce: reduce-scatter round a ring of ranks, then all-gather round the same ring.

Every rank sends in every step, and only ever to its successor, so each link carries the same bytes and the
time does not grow with the number of ranks where bandwidth decides.

1. The buffer is cut into n segments, each of k chunks: one chunk for each of k sub-rings.
2. Sub-ring s starts s floor(n/k) ranks further on: rank r has the position p = (r - s floor(n/k)) mod n in
   it.
3. Reduce-scatter, steps t = 0 .. n-2: position p adds its segment (p - t) mod n into its successor's.
   Afterwards position p holds the whole sum of segment (p + 1) mod n.
4. All-gather, steps t = 0 .. n-2: position p copies its segment (p + 1 - t) mod n to its successor.

With two directions the second half of the buffer goes round the other way at the same time: two neighbours
to talk to, where a transport gives each pair of ranks only so much.

Steps: 2(n-1). Bytes sent per rank: 2(n-1)/n S, in 2(n-1) messages, twice as many with two directions. Error:
each chunk is summed once, in one order, and then copied, so the ranks agree bit for bit.

Reference: P. Patarasuk, X. Yuan, "Bandwidth optimal all-reduce algorithms for clusters of workstations", J.
Parallel Distrib. Comput. 69 (2009). Sub-rings as `xring#k` of TensorFlow's benchmarks
(tensorflow/python/distribute/v1/all_reduce.py): on one machine all of them use the same links, and a rank
sends its k chunks of a step in one message. There position p ends with the sum of segment p; where several
machines take part, the rotation there is inside each machine.
"""

from __future__ import annotations

import numpy as np

from scaling.collectives.schedule import Columns, LazySteps, Schedule, ScheduleStep
from scaling.errors import ScheduleError


def ring(world_size: int, subrings: int = 1, directions: int = 1) -> Schedule:
    """The ring all-reduce of `world_size` ranks, rank r sending to (r + 1) mod n, with n `subrings` chunks.
    `subrings`: rings with starts of their own, through the ranks in the same order. `directions`: 2 gives
    half of the buffer to the opposite order; that doubles the chunks. ScheduleError: there are more sub-rings
    than ranks, or none; or not one or two directions."""
    n, k = world_size, subrings
    if directions not in (1, 2):
        raise ScheduleError(f"ring: {directions} directions; allowed are 1 and 2")
    if directions == 2:
        return _both_ways(ring(n, k))
    if not 1 <= k <= n:
        raise ScheduleError(f"ring: {k} sub-rings of {n} ranks; allowed are 1 to {n}")
    rank, subring = np.divmod(np.arange(n * k), k)
    successor = (rank + 1) % n
    position = (rank - subring * (n // k)) % n

    def transfers(first_segment: int, t: int, is_add: bool) -> ScheduleStep:
        chunk = (position + first_segment - t) % n * k + subring
        return Columns(rank, successor, chunk, chunk + 1, is_add)

    def step(t: int) -> ScheduleStep:
        return transfers(0, t, True) if t < n - 1 else transfers(1, t - (n - 1), False)

    steps = LazySteps(2 * (n - 1), step, kind_of=lambda t: "add" if t < n - 1 else "copy")
    return Schedule("ring", n, n * k, steps)


def _both_ways(one_way: Schedule) -> Schedule:
    """The ring, and the same ring on as many further chunks with the ranks in opposite order."""
    n, chunks = one_way.world_size, one_way.num_chunks

    def step(t: int) -> ScheduleStep:
        forth = Columns.of(one_way.steps[t])
        return Columns(
            np.append(forth.source, n - 1 - forth.source),
            np.append(forth.target, n - 1 - forth.target),
            np.append(forth.start, forth.start + chunks),
            np.append(forth.stop, forth.stop + chunks),
            np.append(forth.is_add, forth.is_add),
        )

    steps = LazySteps(len(one_way.steps), step, kind_of=lambda t: "add" if t < n - 1 else "copy")
    return Schedule("ring", n, 2 * chunks, steps)

"""Stripes: every rank owns 1/n of the buffer, gets that stripe from all others at once, and sends the sum to
all.

Direct instead of round a ring: two steps, each of which loads every pair of ranks.

1. Every rank adds its part of each other rank's stripe into that rank's.
2. Every rank copies its own stripe, now the sum, to every other rank.

Steps: 2. Bytes sent per rank: 2(n-1)/n S, in 2(n-1) messages. Error: each stripe is summed by its owner in
one order (its own, then the others in rank order) and then copied, so the ranks agree bit for bit.

Reference: CNTK's `AllReduceDistGradAggregator` (Source/1BitSGD), the exchange of F. Seide, H. Fu, J. Droppo,
G. Li, D. Yu, "1-bit stochastic gradient descent and its application to data-parallel distributed training of
speech DNNs", Interspeech 2014. CNTK cuts every gradient matrix by columns, quantises both steps, sums in the
order of arrival and sends its stripe to each rank by itself; here the stripes are equal parts of the buffer.
"""

from __future__ import annotations

import numpy as np

from scaling.collectives.schedule import Columns, Schedule


def stripes(world_size: int) -> Schedule:
    """The exchange of `world_size` ranks over n stripes, stripe r being rank r's."""
    if world_size == 1:
        return Schedule("stripes", 1, 1, ())
    ranks = np.arange(world_size)
    rank, owner = np.divmod(np.flatnonzero(ranks[:, None] != ranks), world_size)
    to_owner = Columns(rank, owner, owner, owner + 1, is_add=True)
    to_all = Columns(owner, rank, owner, owner + 1, is_add=False)
    return Schedule("stripes", world_size, world_size, (to_owner, to_all))

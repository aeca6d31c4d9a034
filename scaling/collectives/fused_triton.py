"""Small exchanges over peer memory in one launch, in Triton: the barriers are inside.

A program takes a block of elements, the same one on every rank, and meets the programs of that block on the
other ranks alone. A rank has a pad of zeros that the others can write: [block, rank] int32. To meet, a
program turns its word of every other rank's pad from 0 to 1, waits for theirs in its own, and turns them
back: the pads are zero again after each launch, so that it can be captured and replayed. All programs of a
launch have to run at a time, so there are fewer than a GPU has multiprocessors.

1. `one_shot`, the schedule `recursive_doubling` of two ranks: meet; read the block of the other rank and add
   it; meet, since the other still reads what is written next; write the sum.
2. `two_shot`, the schedule `stripes`: meet; add the block of all ranks in this rank's stripe, its own first,
   then theirs in rank order, and write the sum to every rank; meet.

The sums have the order of the schedule, so they are the same bits as any other execution of it.

This module imports Triton; `execute_fused` does so late.

Reference: torch's symmetric memory (torch/csrc/distributed/c10d/symm_mem), whose one-shot and two-shot
all-reduce meet in the same way.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _pad(pads, rank, block, of_rank, NUM_RANKS: tl.constexpr):  # noqa: N803
    """Address of the word that `of_rank` has in the pad of `rank`."""
    pad = tl.load(pads + rank).to(tl.pointer_type(tl.int32))
    return pad + block * NUM_RANKS + of_rank


@triton.jit
def _meet(pads, block, RANK: tl.constexpr, NUM_RANKS: tl.constexpr):  # noqa: N803
    """Returns when the programs of this block are here on all ranks; what they did before is seen."""
    tl.debug_barrier()
    for peer in tl.static_range(NUM_RANKS):
        if peer != RANK:
            word = _pad(pads, peer, block, RANK, NUM_RANKS)
            while tl.atomic_cas(word, 0, 1, sem="release", scope="sys") != 0:
                pass
    for peer in tl.static_range(NUM_RANKS):
        if peer != RANK:
            word = _pad(pads, RANK, block, peer, NUM_RANKS)
            while tl.atomic_cas(word, 1, 0, sem="acquire", scope="sys") != 1:
                pass
    tl.debug_barrier()


@triton.jit
def _buffer(buffers, rank, like):
    return tl.load(buffers + rank).to(tl.pointer_type(like.dtype.element_ty))


@triton.jit
def one_shot(
    buffers, pads, local, num_elements,
    RANK: tl.constexpr, NUM_RANKS: tl.constexpr, BLOCK: tl.constexpr,  # noqa: N803
):  # fmt: skip
    """One program a block of the whole buffer."""
    block = tl.program_id(0)
    at = block * BLOCK + tl.arange(0, BLOCK)
    inside = at < num_elements
    _meet(pads, block, RANK, NUM_RANKS)
    total = tl.load(local + at, mask=inside)
    for peer in tl.static_range(NUM_RANKS):
        if peer != RANK:
            total += tl.load(_buffer(buffers, peer, local) + at, mask=inside)
    _meet(pads, block, RANK, NUM_RANKS)
    tl.store(local + at, total, mask=inside)


@triton.jit
def two_shot(
    buffers, pads, local, start, stop,
    RANK: tl.constexpr, NUM_RANKS: tl.constexpr, BLOCK: tl.constexpr,  # noqa: N803
):  # fmt: skip
    """Every program some blocks of this rank's stripe, which is `start` to `stop`."""
    block = tl.program_id(0)
    _meet(pads, block, RANK, NUM_RANKS)
    for first in range(start + block * BLOCK, stop, tl.num_programs(0) * BLOCK):
        at = first + tl.arange(0, BLOCK)
        inside = at < stop
        total = tl.load(local + at, mask=inside)
        for peer in tl.static_range(NUM_RANKS):
            if peer != RANK:
                total += tl.load(_buffer(buffers, peer, local) + at, mask=inside)
        for peer in tl.static_range(NUM_RANKS):
            tl.store(_buffer(buffers, peer, local) + at, total, mask=inside)
    _meet(pads, block, RANK, NUM_RANKS)

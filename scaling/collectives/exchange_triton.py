"""Exchanges in one launch, in Triton, with the waiting inside; `execute_kernels` imports this module late.

All programs of a launch have to run at a time, so there are fewer than a GPU has multiprocessors. Sums have
the order of the schedule, so they are the same bits as any other execution of it.

**Over peer memory.** A program takes a block of elements, the same one on every rank, and meets the programs
of that block on the other ranks alone. A rank has a pad of zeros that the others can write: [block, rank]
int32. To meet, a program turns its word of every other rank's pad from 0 to 1, waits for theirs in its own,
and turns them back: the pads are zero again after each launch, so that it can be captured and replayed.

1. `one_shot`, the schedule `recursive_doubling` of two ranks: meet; read the block of the other rank and add
   it; meet, since the other still reads what is written next; write the sum.
2. `two_shot`, the schedule `stripes`: meet; add the block of all ranks in this rank's stripe, its own first,
   then theirs in rank order, and write the sum to every rank; meet.

**Through pinned host memory that all ranks of a host have mapped** (`stripes_through_host`). Every byte
crosses a GPU's bus once up and once down, and GPUs do the sums. A stripe is cut into chunks of a block;
program p of every rank has chunks p, p + P, ... of all stripes. It works on three of them at a time, so that
stores, which go up, and loads, which come down, keep both directions busy:

1. post chunk j: store this rank's values of the others' stripes to host memory, and tell;
2. sum chunk j - 1: wait for the others' posts; add their values to this rank's own, in rank order; store the
   sum to its own buffer and to host memory, and tell;
3. fetch chunk j - 2: wait for the others' sums, and load them into its own buffer.

Waiting: a program has two counters in host memory, of chunks that it has posted and has summed, ever. It
alone writes them, as plain 64-bit stores with release semantics; the same program of other ranks reads them
with acquire semantics: a bus need not have atomic operations. How many chunks it did in earlier launches is
in the GPU's own memory, where the program itself adds to it: a captured launch can be replayed as it is.

No deadlock: posts wait for nothing, sums of j for posts of j, fetches of j for sums of j, and each program
takes them in the order of 1 to 3 for rising j, the same on all ranks.

No overwriting: chunk c (counted through all launches) uses slot c mod 4 of its program.

- Rank r overwrites its values in a slot when it posts c + 4. It has fetched c before (3. runs two chunks
  behind), so every owner had told its sum of c, which it does after it has loaded r's values of c.
- Owner o overwrites its sum in a slot when it sums c + 4. It has seen all others' posts of c + 4 before, and
  each of them had fetched the sum of c when it posted that.

A launch ends with all its chunks fetched, so nothing differs where c and c + 4 are of different launches.
Over the bus go (n-1)/n S + S/n up, and as much, (n-1)/n S twice, down: S each way with two ranks.

References: torch's symmetric memory (torch/csrc/distributed/c10d/symm_mem), whose one-shot and two-shot
all-reduce meet in the same way; NCCL, src/transport/shm.cc, whose ranks meet in shared pinned memory too, in
a ring; PTX ISA, "Memory Consistency Model", for release and acquire at system scope.
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


SLOTS = tl.constexpr(4)
LINE = tl.constexpr(16)  # Counters are a line of 128 bytes apart


@triton.jit
def _counter(counters, rank, which):
    """Address of what this program of `rank` has posted (0) or summed (1)."""
    return counters + ((rank * tl.num_programs(0) + tl.program_id(0)) * 2 + which) * LINE


@triton.jit
def _tell(counter, count, NATIVE: tl.constexpr):  # noqa: N803
    """Sets an own counter; what the program did before is seen before that is."""
    tl.debug_barrier()
    if NATIVE:
        tl.inline_asm_elementwise(
            """{
            .reg .pred %first;
            .reg .u32 %thread;
            mov.u32 %thread, %tid.x;
            setp.eq.u32 %first, %thread, 0;
            @%first st.release.sys.global.u64 [$1], $2;
            mov.u32 $0, 0;
            }""",
            "=r,l,l",
            [counter, count],
            dtype=tl.int32,
            is_pure=False,
            pack=1,
        )
    else:
        tl.atomic_xchg(counter, count, sem="release", scope="sys")


@triton.jit
def _await(counter, count, NATIVE: tl.constexpr):  # noqa: N803
    """Returns when another's counter is there; what its program did before is seen."""
    if NATIVE:
        tl.inline_asm_elementwise(
            """{
            .reg .pred %go;
            .reg .u32 %thread;
            .reg .u64 %seen;
            mov.u32 %thread, %tid.x;
            setp.ne.u32 %go, %thread, 0;
            @%go bra there;
            again:
            ld.acquire.sys.global.u64 %seen, [$1];
            setp.lt.s64 %go, %seen, $2;
            @%go bra again;
            there:
            mov.u32 $0, 0;
            }""",
            "=r,l,l",
            [counter, count],
            dtype=tl.int32,
            is_pure=False,
            pack=1,
        )
    else:
        while tl.atomic_add(counter, 0, sem="acquire", scope="sys") < count:
            pass
    tl.debug_barrier()


@triton.jit
def _slot(slots, rank, chunk, of_rank, NUM_RANKS: tl.constexpr, BLOCK: tl.constexpr):  # noqa: N803
    """Of what this program of `rank` writes: its values of the stripe of `of_rank`, or its sum if its own."""
    row = (rank * tl.num_programs(0) + tl.program_id(0)) * SLOTS + chunk % SLOTS
    return slots + (row * NUM_RANKS + of_rank) * BLOCK + tl.arange(0, BLOCK)


@triton.jit
def stripes_through_host(
    slots, counters, done, local, bounds, num_chunks,
    RANK: tl.constexpr, NUM_RANKS: tl.constexpr, BLOCK: tl.constexpr, NATIVE: tl.constexpr,  # noqa: N803
):  # fmt: skip
    """Every program some chunks of all stripes.

    Args:
        slots: [rank, program, slot, rank, BLOCK] in host memory.
        counters: [rank, program, 2, LINE] int64 in host memory, zero before the first launch.
        done: [program] int64 in this GPU's memory, likewise.
        local: this rank's buffer, with the stripes at `bounds`, [rank + 1] int64.
        num_chunks: of the longest stripe.
    """
    first, stride = tl.program_id(0), tl.num_programs(0)
    before = tl.load(done + first)
    num_mine = tl.cdiv(num_chunks - first, stride)
    for step in range(num_mine + 2):
        if step < num_mine:
            at = (first + step * stride) * BLOCK + tl.arange(0, BLOCK)
            for owner in tl.static_range(NUM_RANKS):
                if owner != RANK:
                    start, stop = tl.load(bounds + owner), tl.load(bounds + owner + 1)
                    values = tl.load(local + start + at, mask=start + at < stop, other=0.0)
                    tl.store(_slot(slots, RANK, before + step, owner, NUM_RANKS, BLOCK), values)
            _tell(_counter(counters, RANK, 0), before + step + 1, NATIVE)
        if (step >= 1) & (step <= num_mine):
            at = (first + (step - 1) * stride) * BLOCK + tl.arange(0, BLOCK)
            start, stop = tl.load(bounds + RANK), tl.load(bounds + RANK + 1)
            total = tl.load(local + start + at, mask=start + at < stop, other=0.0)
            for peer in tl.static_range(NUM_RANKS):
                if peer != RANK:
                    _await(_counter(counters, peer, 0), before + step, NATIVE)
                    place = _slot(slots, peer, before + step - 1, RANK, NUM_RANKS, BLOCK)
                    total += tl.load(place, cache_modifier=".cv")
            tl.store(_slot(slots, RANK, before + step - 1, RANK, NUM_RANKS, BLOCK), total)
            tl.store(local + start + at, total, mask=start + at < stop)
            _tell(_counter(counters, RANK, 1), before + step, NATIVE)
        if step >= 2:
            at = (first + (step - 2) * stride) * BLOCK + tl.arange(0, BLOCK)
            for owner in tl.static_range(NUM_RANKS):
                if owner != RANK:
                    start, stop = tl.load(bounds + owner), tl.load(bounds + owner + 1)
                    _await(_counter(counters, owner, 1), before + step - 1, NATIVE)
                    place = _slot(slots, owner, before + step - 2, owner, NUM_RANKS, BLOCK)
                    total = tl.load(place, cache_modifier=".cv")
                    tl.store(local + start + at, total, mask=start + at < stop)
    tl.store(done + first, before + num_mine)

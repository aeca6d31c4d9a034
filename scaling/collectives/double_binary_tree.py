"""Double binary tree: two binary trees over the same ranks, each reducing and broadcasting one half of the
buffer.

A rank that has children in one tree is a leaf in the other, so no rank's link carries more than twice the
buffer, and the depth stays logarithmic.

1. First tree, rooted at rank 0: with b the lowest set bit of r, rank r's parent is (r xor b) or 2b, and r xor
   b where that is no rank.
2. Second tree: the mirror image r -> n-1-r if n is even, shifted by one rank, r -> (r+1) mod n, if n is odd.
3. Reduce in each tree, levels l = 0 .. ceil(log2 n) - 1: the ranks with b = 2^l add their half into their
   parent's.
4. Broadcast, the same levels backwards.
5. Each half cut into C/2 chunks, level l of chunk c runs in step l + c.

Steps: 2 ceil(log2 n) + C/2 - 1. Bytes sent: 2(n-1) S by all ranks together; by one rank S/2 up in each tree
where it is not the root and S/2 to each child, so at most 2 S. Error: one order of summation in each half,
then copies, so the ranks agree bit for bit.

Reference: P. Sanders, J. Speck, J. L. Träff, "Two-tree algorithms for full bandwidth broadcast, reduction and
scan", Parallel Comput. 35 (2009); the trees are NCCL's (src/graph/trees.cc, `ncclGetBtree` and
`ncclGetDtree`). NCCL builds them over the machines and a chain inside each; here over the ranks. A parent
gets both children's sums in one step.
"""

from __future__ import annotations

from scaling.collectives.composition import mirrored, pipelined, placed, side_by_side
from scaling.collectives.schedule import Schedule, ScheduleStep, Transfer
from scaling.errors import ScheduleError


def double_binary_tree(world_size: int, num_chunks: int = 2) -> Schedule:
    """NCCL's two trees over `world_size` ranks; the first carries the first half of the `num_chunks` chunks.

    Raises:
        ScheduleError: `num_chunks` is odd or below 2.
    """
    if num_chunks < 2 or num_chunks % 2:
        raise ScheduleError(f"double_binary_tree: {num_chunks} chunks; allowed are 2, 4, 6, ...")
    half = num_chunks // 2
    reduce = _reduce(world_size)
    steps = pipelined(reduce + mirrored(reduce), half)
    second = placed(steps, second_tree_ranks(world_size), first_chunk=half)
    return Schedule("double_binary_tree", world_size, num_chunks, tuple(side_by_side([steps, second])))


def binary_tree_parent(rank: int, world_size: int) -> int | None:
    """The parent of `rank` in NCCL's binary tree; None for the root, rank 0."""
    if rank == 0:
        return None
    bit = rank & -rank
    parent = (rank ^ bit) | 2 * bit
    return parent if parent < world_size else rank ^ bit


def second_tree_ranks(world_size: int) -> list[int]:
    """The rank that stands in the second tree where rank 0, 1, ... stands in the first."""
    n = world_size
    return [(r + 1) % n for r in range(n)] if n % 2 else [n - 1 - r for r in range(n)]


def _reduce(world_size: int) -> list[ScheduleStep]:
    levels: list[list[Transfer]] = [[] for _ in range((world_size - 1).bit_length())]
    for rank in range(1, world_size):
        parent = binary_tree_parent(rank, world_size)
        assert parent is not None
        # All children of a rank have a lower lowest bit than it has: their sums are there before it sends.
        levels[(rank & -rank).bit_length() - 1].append(Transfer(rank, parent, 0, 1, "add"))
    return [tuple(level) for level in levels]

"""Trees: the binomial one of Caffe and MPICH, and NCCL's two at a time.

Error of both: one order of summation of each chunk, then copies, so the ranks agree bit for bit.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from scaling.collectives.composition import mirrored, pipelined, placed, side_by_side
from scaling.collectives.schedule import Schedule, ScheduleStep, Transfer
from scaling.errors import ScheduleError

Pair = tuple[int, int]  # (parent, child)


def tree(world_size: int, pairs: Sequence[Pair] | None = None, num_chunks: int = 1) -> Schedule:
    """The whole buffer up the tree of `pairs` (None: the binomial one) to its root, then down again.

    Few messages, but each carries the whole buffer and half of the ranks rest on every level: the strategy of
    Caffe before it took NCCL, there with parameters on the way down.

    1. Reduce, levels d = 1, 2, 4, ... < n: every rank r with r mod 2d = d adds its buffer into rank r - d.
    2. Broadcast, the same levels backwards: rank r - d copies its buffer to rank r.
    3. With other pairs, each takes the first level at which both of its ranks are free.
    4. Cut into C chunks, level l of chunk c runs in step l + c, so that the levels work at the same time.

    Steps: 2 ceil(log2 n) + C - 1. Bytes sent: rank 0 sends S to each of its ceil(log2 n) children; every
    other rank sends S up and S to each of its own children.

    Reference: R. Thakur, R. Rabenseifner, W. Gropp, "Optimization of collective communication operations in
    MPICH", Int. J. High Perform. Comput. Appl. 19 (2005). Caffe does not pipeline, and leaves the order of
    the sums at a node to the order of arrival.

    `pairs`: (parent, child), every rank but the root once as child, and after that in no pair any more.
    `num_chunks`: for the pipeline; 1 sends the buffer whole. ScheduleError: the pairs make no tree, or
    `num_chunks` is below 1.
    """
    if num_chunks < 1:
        raise ScheduleError(f"tree: {num_chunks} chunks; allowed are 1 and more")
    if pairs is None:
        distances = [2**level for level in range((world_size - 1).bit_length())]
        pairs = [(r - d, r) for d in distances for r in range(d, world_size, 2 * d)]
    _check_pairs(world_size, pairs)
    reduce = _levels(world_size, pairs)
    return Schedule("tree", world_size, num_chunks, tuple(pipelined(reduce + mirrored(reduce), num_chunks)))


def _check_pairs(world_size: int, pairs: Sequence[Pair]) -> None:
    waiting = set(range(world_size))  # ranks that have not given their sum away yet
    for parent, child in pairs:
        if parent == child or not {parent, child} <= waiting:
            raise ScheduleError(
                f"tree: pair ({parent}, {child}): both must be different ranks below {world_size} that "
                "were in no earlier pair as child"
            )
        waiting.remove(child)
    if len(waiting) > 1:
        raise ScheduleError(f"tree: ranks {sorted(waiting)} are no one's child; only one may be, the root")


def _levels(world_size: int, pairs: Sequence[Pair]) -> list[ScheduleStep]:
    """The reduction: each pair in the first level at which neither of its ranks is in an earlier pair."""
    levels: list[list[Transfer]] = []
    free_from = [0] * world_size
    for parent, child in pairs:
        level = max(free_from[parent], free_from[child])
        if level == len(levels):
            levels.append([])
        levels[level].append(Transfer(child, parent, 0, 1, "add"))
        free_from[parent] = free_from[child] = level + 1
    return [tuple(level) for level in levels]


def caffe_pairs(board_of: Sequence[int], peer_access: Sequence[Sequence[bool]]) -> list[Pair]:
    """The (parent, child) pairs that Caffe forms: on one board first, then with peer access, then the rest.

    Caffe's `DevicePair::compute` (src/caffe/parallel.cpp before January 2017): two boards of two give (0, 1),
    (2, 3), (0, 2). Where three GPUs remain for its last pass, Caffe reads past the end of its list; we leave
    the third one for the next round.

    `board_of`: the board of each GPU, in the user's order; a GPU that is alone has a number of its own.
    `peer_access`: peer_access[i][j] says whether GPU i can access GPU j's memory.
    """
    passes: list[Callable[[int, int], bool]] = [
        lambda i, j: board_of[i] == board_of[j],
        lambda i, j: bool(peer_access[i][j]),
        lambda i, j: True,
    ]
    remaining = list(range(len(board_of)))
    pairs: list[Pair] = []
    for may_join in passes:
        for _ in range((len(remaining) - 1).bit_length()):
            pairs += _round(remaining, may_join)
    return pairs


def caffe_tree(world_size: int, gpus_per_board: int) -> Schedule:
    """Caffe's, where only the GPUs of a board have access to each other."""
    boards = [rank // gpus_per_board for rank in range(world_size)]
    return tree(world_size, caffe_pairs(boards, [[False] * world_size] * world_size))


def _round(remaining: list[int], may_join: Callable[[int, int], bool]) -> list[Pair]:
    """Joins every remaining GPU with the first later one that it may; removes those from `remaining`."""
    pairs: list[Pair] = []
    for parent in list(remaining):
        if parent in remaining:
            later = remaining[remaining.index(parent) + 1 :]
            child = next((other for other in later if may_join(parent, other)), None)
            if child is not None:
                pairs.append((parent, child))
                remaining.remove(child)
    return pairs


def double_binary_tree(world_size: int, num_chunks: int = 2) -> Schedule:
    """NCCL's two trees over the same ranks; the first carries the first half of the chunks, the second the
    rest.

    A rank that has children in one tree is a leaf in the other, so no rank's link carries more than twice the
    buffer, and the depth stays logarithmic.

    1. First tree, rooted at rank 0: with b the lowest set bit of r, rank r's parent is (r xor b) or 2b, and r
       xor b where that is no rank. Second tree: the mirror image r -> n-1-r if n is even, shifted by one rank
       if odd.
    2. Reduce in each tree, levels l = 0 .. ceil(log2 n) - 1: the ranks with b = 2^l add their half into their
       parent's. Broadcast, the same levels backwards. Level l of chunk c of a half runs in step l + c.

    Steps: 2 ceil(log2 n) + C/2 - 1. Bytes sent: 2(n-1) S by all ranks together; by one rank S/2 up in each
    tree where it is not the root and S/2 to each child, so at most 2 S.

    Reference: P. Sanders, J. Speck, J. L. Träff, "Two-tree algorithms for full bandwidth broadcast, reduction
    and scan", Parallel Comput. 35 (2009); the trees are NCCL's (src/graph/trees.cc, `ncclGetBtree` and
    `ncclGetDtree`). NCCL builds them over the machines and a chain inside each; here over the ranks. A parent
    gets both children's sums in one step.

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

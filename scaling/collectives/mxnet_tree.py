"""MXNet's trees: slice i of the buffer is reduced over a binary tree rooted at rank i, then broadcast down
it.

All trees work at the same time, and each keeps to the heaviest links that the earlier ones left: for machines
where some pairs of GPUs have a fast link and others do not.

A tree is a list of 2^depth leaves, depth = ceil(log2 n): the rank at leaf j (j a multiple of 2d) gets the sum
of the rank at leaf j + d on the level with stride d = 1, 2, 4, ...; if that is the same rank, nothing is
sent. Leaf 0 is the root.

1. If the double or single NVLinks alone connect all GPUs, the other links are dropped; else those count 1/n.
2. For each root in turn, Kernighan-Lin: halve the set of ranks so that swapping two of them improves the cut
   no more, join the root to the other half by its heaviest link, do the same in both halves.
3. Where a root has no link to the other half, after `MAX_ATTEMPTS` other first halves: backtracking over all
   trees, to the heaviest for up to 8 ranks, to the first one above that (exponential at worst).
4. The links of a tree count 0.7 of their weight for the trees after it.

Steps: 2 ceil(log2 n). Bytes sent: 2(n-1) S by all ranks together; with several roots by each (n-1)/n S up,
and S/n to each child that it has in any tree. Error: each slice is summed in one order and then copied, so
the ranks agree bit for bit.

References: MXNet's `CommDeviceTree` (src/kvstore/comm_tree.h), kvstore "device" with MXNET_KVSTORE_USETREE=1,
and src/kvstore/gpu_topology.h (`ComputeTrees`, MXNET_KVSTORE_TREE_LINK_USAGE_PENALTY, default 0.7); B. W.
Kernighan, S. Lin, "An efficient heuristic procedure for partitioning graphs", Bell Syst. Tech. J. 49 (1970).
In MXNet a tensor of more than 10 million elements with at least 2n rows is cut by rows and takes several
roots, any other takes the tree of rank 0; here the slices are equal parts of the buffer. MXNet's
Kernighan-Lin gives up where one half can be split further than the other (5 GPUs, say) and backtracks; ours
goes on. Its random numbers are another generator's, so ties can fall otherwise.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from scaling.collectives.composition import mirrored
from scaling.collectives.schedule import Schedule, Transfer
from scaling.errors import ScheduleError

Method = Literal["kernighan_lin", "backtracking"]
Weights = NDArray[np.float64]

LINK_USAGE_PENALTY = 0.7
IDLE_PENALTY = 10.0  # MXNet's, for a rank that sends nothing on a level above the leaves
MAX_ATTEMPTS = 10
MAX_OPTIMAL_DEPTH = 3


def link_trees(links: Sequence[Sequence[float]], method: Method = "kernighan_lin") -> list[list[int]]:
    """One tree for each rank as root, in the order of the roots. `links`: symmetric; links[i][j] is 1 for
    PCIe, 2 for one NVLink, 3 for two. ScheduleError: `links` is no symmetric square matrix, the method is
    unknown, or a root has no tree."""
    matrix = np.array(links, dtype=np.float64)
    if matrix.ndim != 2 or matrix.shape[0] != matrix.shape[1] or not np.array_equal(matrix, matrix.T):
        raise ScheduleError(f"mxnet_tree: links of shape {matrix.shape}; a symmetric square matrix is needed")
    if method not in ("kernighan_lin", "backtracking"):
        raise ScheduleError(f"mxnet_tree: method {method!r}; allowed are kernighan_lin and backtracking")
    return [list(leaves) for leaves in _found(tuple(map(tuple, matrix.tolist())), method)]


@lru_cache(maxsize=64)
def _found(links: tuple[tuple[float, ...], ...], method: Method) -> tuple[tuple[int, ...], ...]:
    """Searched once: schedules of some and of all trees are made again and again."""
    weights = usable_weights(np.array(links))
    generator = random.Random(1)
    trees = []
    for root in range(len(weights)):
        attempts = MAX_ATTEMPTS if method == "kernighan_lin" else 0
        ranks, depth = list(range(len(weights))), _depth(len(weights))
        grown = (_grow(weights, root, ranks, depth, generator) for _ in range(attempts))
        leaves = next(filter(None, grown), None) or _by_backtracking(weights, root)
        if leaves is None:
            raise ScheduleError(f"mxnet_tree: the links allow no binary tree from rank {root}")
        for parent, child, _ in tree_edges(leaves):
            weights[parent, child] = weights[child, parent] = weights[parent, child] * LINK_USAGE_PENALTY
        trees.append(tuple(leaves))
    return tuple(trees)


def tree_edges(leaves: Sequence[int]) -> Iterator[tuple[int, int, int]]:
    """The (parent, child, stride) that send something, from the level of the leaves up."""
    stride = 1
    while stride < len(leaves):
        for j in range(0, len(leaves), 2 * stride):
            if leaves[j] != leaves[j + stride]:
                yield leaves[j], leaves[j + stride], stride
        stride *= 2


def usable_weights(links: Weights) -> Weights:
    """The weights without PCIe where NVLinks (above 1) connect all ranks; else with PCIe at 1/n."""
    n = len(links)
    reached, frontier = {0}, [0]
    while frontier:
        near = {int(j) for j in np.flatnonzero(links[frontier.pop()] > 1)} - reached
        reached |= near
        frontier += near
    weights = np.where(links == 1, 0.0 if len(reached) == n else 1 / n, links)
    np.fill_diagonal(weights, 0.0)
    return weights


def _depth(num_ranks: int) -> int:
    return (num_ranks - 1).bit_length()


def _grow(
    weights: Weights, root: int, members: list[int], depth: int, generator: random.Random
) -> list[int] | None:
    """The leaves of a tree of that depth over `members`; None if a root has no link where it needs one."""
    if len(members) == 1:
        return [root] * 2**depth
    near, far = _bisect(weights, members, generator)
    if root in far:
        near, far = far, near
    to_far = weights[root].take(far).tolist()
    heaviest = max(to_far)
    if heaviest <= 0:
        return None
    child = generator.choice([rank for rank, weight in zip(far, to_far, strict=True) if weight == heaviest])
    left = _grow(weights, root, near, depth - 1, generator)
    right = _grow(weights, child, far, depth - 1, generator)
    return left + right if left and right else None


def _bisect(weights: Weights, members: list[int], generator: random.Random) -> tuple[list[int], list[int]]:
    """Two halves, the first the smaller: a random cut, then the best swap again and again while it gains."""
    half = len(members) // 2
    if len(members) == 2:
        return members[:half], members[half:]
    order = generator.sample(members, len(members))
    w = weights.take(order, 0).take(order, 1)
    twice = 2 * w
    side = np.ones(len(order))
    side[half:] = -1.0
    for _ in range(len(order)):
        # What the cut loses if a rank changes sides: its weight to the other side less that to its own.
        gain = -side * (w @ side)
        swaps = (gain[:, None] + gain - twice) * (side[:, None] > side)
        i, j = divmod(int(swaps.argmax()), len(order))
        if swaps[i, j] <= 1e-9:  # rounding must not swap the same two for ever
            break
        side[[i, j]] = side[[j, i]]
    signs = side.tolist()
    first = [rank for rank, sign in zip(order, signs, strict=True) if sign > 0]
    second = [rank for rank, sign in zip(order, signs, strict=True) if sign < 0]
    return first, second


def _by_backtracking(weights: Weights, root: int) -> list[int] | None:
    def weight(leaves: list[int]) -> float:
        edges = list(tree_edges(leaves))
        num_idle = len(leaves) // 2 - 1 - sum(stride > 1 for _, _, stride in edges)
        return float(sum(weights[parent, child] for parent, child, _ in edges)) - IDLE_PENALTY * num_idle

    depth = _depth(len(weights))
    candidates = _all_trees(weights, [root], 2**depth)
    if depth <= MAX_OPTIMAL_DEPTH:
        return max(candidates, key=weight, default=None)
    return next(candidates, None)


def _all_trees(weights: Weights, leaves: list[int], num_leaves: int) -> Iterator[list[int]]:
    """All ways to fill up `leaves`: each next rank is the one it would send to, or linked to that and new."""
    position = len(leaves)
    num_missing = len(weights) - len(set(leaves))
    if num_missing > num_leaves - position:
        return
    if position == num_leaves:
        yield list(leaves)
        return
    parent = leaves[position - (position & -position)]
    for rank in range(len(weights)):
        if rank == parent or (rank not in leaves and weights[parent, rank] > 0):
            yield from _all_trees(weights, [*leaves, rank], num_leaves)


MAX_RANKS = 256
"""Whose trees are searched; those of more take minutes, and MXNet's are of the GPUs of one machine."""


def mxnet_tree(
    world_size: int,
    links: Sequence[Sequence[float]] | None = None,
    multi_root: bool = True,
    method: Method = "kernighan_lin",
) -> Schedule:
    """The all-reduce over one tree per root and a slice each, or over rank 0's alone. `links`: weights as for
    `link_trees`; None for all equal. ScheduleError: `links` is not of that size, or not what `link_trees`
    takes, or for too many."""
    if world_size > MAX_RANKS:
        raise ScheduleError(
            f"mxnet_tree: {world_size} ranks; the trees of up to {MAX_RANKS} are searched, more take minutes"
        )
    if links is None:
        links = [[1.0] * world_size] * world_size
    if len(links) != world_size:
        raise ScheduleError(f"mxnet_tree: links of {len(links)} ranks for {world_size}")
    trees = link_trees(links, method)
    if not multi_root:
        trees = trees[:1]
    levels: list[list[Transfer]] = [[] for _ in range((world_size - 1).bit_length())]
    for slice_, leaves in enumerate(trees):
        for parent, child, stride in tree_edges(leaves):
            levels[stride.bit_length() - 1].append(Transfer(child, parent, slice_, slice_ + 1, "add"))
    reduce = [tuple(level) for level in levels]
    return Schedule("mxnet_tree", world_size, len(trees), tuple(reduce + mirrored(reduce)))

"""MXNet's trees: slice i of the buffer is reduced over a binary tree rooted at rank i, then broadcast down
it.

All trees work at the same time, and each keeps to the heaviest links that the earlier ones left
(link_trees.py): for machines where some pairs of GPUs have a fast link and others do not.

1. Build one tree of depth ceil(log2 n) for each root.
2. Reduce, level by level from the leaves: in tree i every child adds slice i into its parent's.
3. Broadcast, the same levels backwards.

`multi_root=False` reduces the whole buffer over the tree rooted at rank 0.

Steps: 2 ceil(log2 n). Bytes sent: 2(n-1) S by all ranks together; with several roots by each (n-1)/n S up,
and S/n to each child that it has in any tree. Error: each slice is summed in one order and then copied, so
the ranks agree bit for bit.

Reference: MXNet's `CommDeviceTree` (src/kvstore/comm_tree.h), kvstore "device" with MXNET_KVSTORE_USETREE=1.
There a tensor of more than 10 million elements with at least 2n rows is cut by rows and takes several roots,
any other takes the tree of rank 0; here the slices are equal parts of the buffer.
"""

from __future__ import annotations

from collections.abc import Sequence

from scaling.collectives.composition import mirrored
from scaling.collectives.link_trees import Method, link_trees, tree_edges
from scaling.collectives.schedule import Schedule, Transfer
from scaling.errors import ScheduleError

MAX_RANKS = 256
"""Whose trees are searched; those of more take minutes, and MXNet's are of the GPUs of one machine."""


def mxnet_tree(
    world_size: int,
    links: Sequence[Sequence[float]] | None = None,
    multi_root: bool = True,
    method: Method = "kernighan_lin",
) -> Schedule:
    """The all-reduce over one tree per root, or over rank 0's alone.

    Args:
        world_size: ranks.
        links: weights as for `link_trees`; None for all equal.
        multi_root: cut into one slice a root.
        method: how the trees are found.

    Raises:
        ScheduleError: `links` is not of that size, or not what `link_trees` takes, or for too many.
    """
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

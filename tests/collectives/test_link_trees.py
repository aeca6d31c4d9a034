"""MXNet's trees over links."""

import numpy as np
import pytest

from scaling.collectives.mxnet_tree import link_trees, tree_edges, usable_weights
from scaling.errors import ScheduleError

# A machine of eight GPUs in two quads: 1 is PCIe, 2 one NVLink, 3 two (AWS p3.16xlarge).
EIGHT_GPUS = [
    [0, 2, 2, 3, 3, 1, 1, 1],
    [2, 0, 3, 2, 1, 3, 1, 1],
    [2, 3, 0, 3, 1, 1, 2, 1],
    [3, 2, 3, 0, 1, 1, 1, 2],
    [3, 1, 1, 1, 0, 2, 2, 3],
    [1, 3, 1, 1, 2, 0, 3, 2],
    [1, 1, 2, 1, 2, 3, 0, 3],
    [1, 1, 1, 2, 3, 2, 3, 0],
]
METHODS = ["kernighan_lin", "backtracking"]


def alike(n):
    return [[1.0] * n for _ in range(n)]


def assert_spanning(leaves, root, n):
    """Every rank but the root sends exactly once, and only after all that it receives."""
    sent_at = {}
    for parent, child, stride in tree_edges(leaves):
        assert child not in sent_at
        assert parent not in sent_at or sent_at[parent] == stride
        sent_at[child] = stride
    assert set(sent_at) == set(range(n)) - {root}
    assert leaves[0] == root


@pytest.mark.parametrize(
    ("method", "n"),
    [("kernighan_lin", n) for n in (1, 2, 3, 4, 5, 6, 7, 8, 9, 13, 16)]
    + [("backtracking", n) for n in (1, 2, 3, 4, 5, 9, 13, 16)],
)
def test_every_root_has_a_balanced_spanning_tree(method, n):
    trees = link_trees(alike(n), method)
    assert len(trees) == n
    for root, leaves in enumerate(trees):
        assert len(leaves) == 2 ** (n - 1).bit_length()
        assert_spanning(leaves, root, n)


@pytest.mark.parametrize("method", METHODS)
def test_trees_keep_to_nvlink_where_it_connects_all(method):
    for root, leaves in enumerate(link_trees(EIGHT_GPUS, method)):
        assert_spanning(leaves, root, 8)
        assert all(EIGHT_GPUS[parent][child] > 1 for parent, child, _ in tree_edges(leaves))


def test_backtracking_finds_the_heaviest_tree():
    first = link_trees(EIGHT_GPUS, "backtracking")[0]
    weight = sum(EIGHT_GPUS[parent][child] for parent, child, _ in tree_edges(first))
    assert weight >= max(
        sum(EIGHT_GPUS[parent][child] for parent, child, _ in tree_edges(leaves))
        for leaves in link_trees(EIGHT_GPUS, "kernighan_lin")[:1]
    )


def test_used_links_are_avoided_by_later_trees():
    edges = [{frozenset(edge[:2]) for edge in tree_edges(leaves)} for leaves in link_trees(alike(8))]
    uses = sum(len(tree) for tree in edges)
    assert uses == 8 * 7
    assert len(set().union(*edges)) >= 20  # of 28 links; the same tree again and again would use 7


def test_pcie_is_dropped_where_nvlink_connects_all_and_light_where_it_does_not():
    connected = usable_weights(np.array(EIGHT_GPUS, dtype=float))
    assert connected[0, 5] == 0
    assert connected[0, 3] == 3
    two_islands = np.array([[0, 2, 1], [2, 0, 1], [1, 1, 0]], dtype=float)
    assert usable_weights(two_islands).tolist() == [[0, 2, 1 / 3], [2, 0, 1 / 3], [1 / 3, 1 / 3, 0]]


def test_trees_are_the_same_every_time():
    assert link_trees(EIGHT_GPUS) == link_trees(EIGHT_GPUS)


def test_a_line_of_four_has_no_binary_tree_of_two_levels_from_its_end():
    line = [[2.0 if abs(i - j) == 1 else 0.0 for j in range(4)] for i in range(4)]
    with pytest.raises(ScheduleError, match="no binary tree from rank 0"):
        link_trees(line)


@pytest.mark.parametrize("links", [[[0, 1]], [[0, 1], [2, 0]], [1, 2]])
def test_what_is_no_symmetric_square_matrix_is_refused(links):
    with pytest.raises(ScheduleError, match="a symmetric square matrix is needed"):
        link_trees(links)


def test_another_method_is_refused():
    with pytest.raises(ScheduleError, match="method 'greedy'; allowed are kernighan_lin and backtracking"):
        link_trees(alike(2), "greedy")

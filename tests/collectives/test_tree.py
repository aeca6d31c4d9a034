"""Trees: binomial, in pairs of Caffe's, NCCL's two, and MXNet's over links."""

from collections import Counter
from fractions import Fraction

import numpy as np
import pytest

from scaling.collectives.listing import schedule
from scaling.collectives.mxnet_tree import link_trees, mxnet_tree, tree_edges, usable_weights
from scaling.collectives.tree import (
    binary_tree_parent,
    caffe_pairs,
    double_binary_tree,
    second_tree_ranks,
    tree,
)
from scaling.collectives.verify import verify
from scaling.errors import ScheduleError
from tests.collectives.conftest import add, copy
from topologies.schema import load


def access(n, *groups):
    return [[any(i in group and j in group for group in groups) for j in range(n)] for i in range(n)]


def alike(n):
    return [[1.0] * n for _ in range(n)]


SQUARE = "a symmetric square matrix is needed"
LINE_OF_FOUR = [[2.0 if abs(i - j) == 1 else 0.0 for j in range(4)] for i in range(4)]


@pytest.mark.parametrize(
    ("make", "arguments", "message"),
    [
        (tree, (4, None, 0), "0 chunks"),
        (tree, (3, [(0, 1), (1, 2)]), r"pair \(1, 2\)"),
        (tree, (3, [(0, 1), (0, 1)]), r"pair \(0, 1\)"),
        (tree, (3, [(0, 0), (0, 1)]), r"pair \(0, 0\)"),
        (tree, (3, [(0, 1), (0, 3)]), r"pair \(0, 3\)"),
        (tree, (3, [(0, 1)]), r"ranks \[0, 2\] are no one's child"),
        *((double_binary_tree, (4, count), f"{count} chunks; allowed are 2, 4, 6") for count in (0, 1, 3)),
        (mxnet_tree, (3, [[0, 1], [1, 0]]), "links of 2 ranks for 3"),
        (link_trees, (LINE_OF_FOUR,), "no binary tree from rank 0"),  # of two levels from its end
        *((link_trees, (links,), SQUARE) for links in ([[0, 1]], [[0, 1], [2, 0]], [1, 2])),
        (link_trees, (alike(2), "greedy"), "method 'greedy'; allowed are kernighan_lin and backtracking"),
    ],
)  # fmt: skip
def test_what_is_no_tree_is_refused(make, arguments, message):
    with pytest.raises(ScheduleError, match=message):
        make(*arguments)


class TestBinomialTree:
    def test_steps_of_six_ranks(self):
        levels = [[(0, 1), (2, 3), (4, 5)], [(0, 2)], [(0, 4)]]
        up = [tuple(add(child, parent) for parent, child in level) for level in levels]
        down = [tuple(copy(parent, child) for parent, child in level) for level in levels[::-1]]
        assert (tree(6).steps, tree(6).num_chunks) == ((*up, *down), 1)

    @pytest.mark.parametrize("num_chunks", [1, 2, 3, 16])
    @pytest.mark.parametrize("n", [1, 2, 3, 6, 8])
    def test_chunks_add_steps_and_messages_but_no_bytes(self, n, num_chunks):
        whole, cut = verify(tree(n)), verify(tree(n, num_chunks=num_chunks))
        assert cut.num_steps == (2 * (n - 1).bit_length() + num_chunks - 1 if n > 1 else 0)
        assert cut.sent_ratio_per_rank == whole.sent_ratio_per_rank
        assert cut.num_messages <= whole.num_messages * num_chunks

    def test_level_d_of_chunk_c_runs_in_step_d_plus_c(self):
        for t, step in enumerate(tree(8, num_chunks=4).steps):
            for transfer in step:
                distance = abs(transfer.source - transfer.target).bit_length() - 1
                level = distance if transfer.operation == "add" else 5 - distance
                assert level + transfer.start == t

    def test_any_root_is_allowed_and_a_pair_waits_until_both_ranks_are_free(self):
        assert verify(tree(3, [(2, 0), (2, 1)])).sent_ratio_per_rank == [1, 1, 2]
        steps = tree(4, [(0, 1), (1, 2), (0, 3)][::-1]).steps
        assert steps[:3] == ((add(3, 0), add(2, 1)), (add(1, 0),), (copy(0, 1),))


def caffe_pairs_on(name, world_size):
    """Caffe's pairs for ranks on the first `world_size` GPUs of a topology, by its boards and peer access."""
    topology = load(name)
    places = topology.ranks(world_size)
    devices = [topology.machine.by_id[device] for _, device in places]
    boards = [
        (node, device.board if device.board is not None else device.id)
        for (node, _), device in zip(places, devices, strict=True)
    ]
    peers = [[a[0] == b[0] and topology.machine.peer_access(a[1], b[1]) for b in places] for a in places]
    return caffe_pairs([boards.index(board) for board in boards], peers)


PAIRS = {
    "two boards of two": (caffe_pairs([0, 0, 1, 1], access(4)), [(0, 1), (2, 3), (0, 2)]),
    # GPUs 0 and 1 have access, but each shares its board with another one.
    "boards before access": (caffe_pairs([0, 1, 0, 1], access(4, (0, 1))), [(0, 2), (1, 3), (0, 1)]),
    "access before the order": (
        caffe_pairs([0, 1, 2, 3], access(4, (0, 2), (1, 3))), [(0, 2), (1, 3), (0, 1)],
    ),
    "eight with access in halves": (
        caffe_pairs(range(8), access(8, range(4), range(4, 8))),
        [(0, 1), (2, 3), (4, 5), (6, 7), (0, 2), (4, 6), (0, 4)],
    ),
    # Caffe pairs 0 and 1, then looks at the GPU behind the last one.
    "three left for the last pass": (caffe_pairs([0, 1, 2], access(3)), [(0, 1), (0, 2)]),
    "three boards of two leave three": (
        caffe_pairs([0, 0, 1, 1, 2, 2], access(6)), [(0, 1), (2, 3), (4, 5), (0, 2), (0, 4)],
    ),
    "one GPU": (caffe_pairs([0], access(1)), []),
    "the paper's machine": (caffe_pairs_on("dual-k80", 4), [(0, 1), (2, 3), (0, 2)]),
    "three of its GPUs": (caffe_pairs_on("dual-k80", 3), [(0, 1), (0, 2)]),
}  # fmt: skip


class TestCaffePairs:
    @pytest.mark.parametrize(("pairs", "expected"), PAIRS.values(), ids=PAIRS)
    def test_they_are_caffes(self, pairs, expected):
        assert pairs == expected

    @pytest.mark.parametrize("n", [1, 2, 4, 8])
    def test_peer_access_for_all_gives_the_binomial_tree(self, n):
        assert tree(n, caffe_pairs_on("hgx-h200", n)) == tree(n)

    @pytest.mark.parametrize("n", range(1, 20))
    def test_every_rank_but_the_root_is_child_once(self, n):
        irregular = [[(i * j + i + j) % 3 == 0 for j in range(n)] for i in range(n)]
        pairs = caffe_pairs([r // 3 for r in range(n)], irregular)
        assert sorted(child for _, child in pairs) == list(range(1, n))
        assert sum(verify(tree(n, pairs)).sent_ratio_per_rank) == 2 * (n - 1)


def children(n, ranks):
    """Rank -> its number of children in the binary tree whose place i is taken by ranks[i]."""
    parents = [binary_tree_parent(place, n) for place in range(n)]
    return {ranks[place]: parents.count(place) for place in range(n)}


class TestDoubleBinaryTree:
    def test_a_rank_sends_half_a_buffer_up_and_to_each_child_and_has_children_in_one_tree(self, verified):
        for n in range(2, 65):
            first, second = children(n, range(n)), children(n, second_tree_ranks(n))
            roots = [0, second_tree_ranks(n)[0]]
            expected = [(first[r] + second[r] + 2 - roots.count(r)) / 2 for r in range(n)]
            assert verified("double_binary_tree", n).sent_ratio_per_rank == expected
            assert {r for r in range(n) if first[r] and second[r]} <= set(roots)

    def test_first_tree_of_14_ranks_is_the_one_drawn_in_nccl_and_the_second_mirrors_or_shifts(self):
        parents = [binary_tree_parent(rank, 14) for rank in range(14)]
        assert parents == [None, 2, 4, 2, 8, 6, 4, 6, 0, 10, 12, 10, 8, 12]
        assert second_tree_ranks(12) == list(reversed(range(12)))
        assert second_tree_ranks(13) == [*range(1, 13), 0]

    def test_each_tree_carries_its_half(self):
        n, ranks = 12, second_tree_ranks(12)
        place = {rank: i for i, rank in enumerate(ranks)}
        for t in (t for step in double_binary_tree(n, 4).steps for t in step):
            child, parent = (t.source, t.target) if t.operation == "add" else (t.target, t.source)
            if t.start < 2:
                assert binary_tree_parent(child, n) == parent
            else:
                assert binary_tree_parent(place[child], n) == place[parent]


# A machine of eight GPUs in two quads: 1 is PCIe, 2 one NVLink, 3 two (AWS p3.16xlarge).
ROWS = "02233111 20321311 23031121 32301112 31110223 13112032 11212303 11123230"
EIGHT_GPUS = [[int(weight) for weight in row] for row in ROWS.split()]
METHODS = ["kernighan_lin", "backtracking"]


def assert_spanning(leaves, root, n):
    """Every rank but the root sends exactly once, and only after all that it receives."""
    sent_at = {}
    for parent, child, stride in tree_edges(leaves):
        assert child not in sent_at
        assert parent not in sent_at or sent_at[parent] == stride
        sent_at[child] = stride
    assert set(sent_at) == set(range(n)) - {root}
    assert leaves[0] == root


def weight_of(leaves):
    return sum(EIGHT_GPUS[parent][child] for parent, child, _ in tree_edges(leaves))


class TestMxnet:
    @pytest.mark.parametrize("n", [2, 3, 5, 8, 13])
    def test_a_rank_sends_each_foreign_slice_up_and_a_slice_to_each_child(self, n, verified):
        steps = schedule("mxnet_tree", n).steps
        children = Counter(t.target for step in steps for t in step if t.operation == "add")
        expected = [Fraction(n - 1 + children[rank], n) for rank in range(n)]
        assert verified("mxnet_tree", n).sent_ratio_per_rank == expected

    def test_slice_i_is_summed_at_rank_i_or_the_buffer_whole_at_a_single_root(self):
        last = mxnet_tree(8).steps[2]
        assert [(t.operation, t.target - t.start) for t in last] == [("add", 0)] * 8
        single = mxnet_tree(6, multi_root=False)
        assert (single.num_chunks, {t.target for t in single.steps[2]}) == (1, {0})
        assert sum(verify(single).sent_ratio_per_rank) == 10
        assert sum(verify(mxnet_tree(4, method="backtracking")).sent_ratio_per_rank) == 6

    @pytest.mark.parametrize("n", [1, 2, 3, 4, 5, 9, 13, 16])
    @pytest.mark.parametrize("method", METHODS)
    def test_every_root_has_a_balanced_spanning_tree(self, method, n):
        trees = link_trees(alike(n), method)
        assert [len(leaves) for leaves in trees] == [2 ** (n - 1).bit_length()] * n
        for root, leaves in enumerate(trees):
            assert_spanning(leaves, root, n)

    @pytest.mark.parametrize("method", METHODS)
    def test_trees_keep_to_nvlink_where_it_connects_all_and_are_the_same_every_time(self, method):
        trees = link_trees(EIGHT_GPUS, method)
        for root, leaves in enumerate(trees):
            assert_spanning(leaves, root, 8)
            assert all(EIGHT_GPUS[parent][child] > 1 for parent, child, _ in tree_edges(leaves))
        assert trees == link_trees(EIGHT_GPUS, method)
        heaviest = weight_of(link_trees(EIGHT_GPUS, "backtracking")[0])
        assert heaviest >= weight_of(trees[0])

    def test_used_links_are_avoided_by_later_trees(self):
        edges = [{frozenset(edge[:2]) for edge in tree_edges(leaves)} for leaves in link_trees(alike(8))]
        assert sum(len(tree) for tree in edges) == 8 * 7
        assert len(set().union(*edges)) >= 20  # of 28 links; the same tree again and again would use 7

    def test_pcie_is_dropped_where_nvlink_connects_all_and_light_where_it_does_not(self):
        connected = usable_weights(np.array(EIGHT_GPUS, dtype=float))
        assert (connected[0, 5], connected[0, 3]) == (0, 3)
        two_islands = np.array([[0, 2, 1], [2, 0, 1], [1, 1, 0]], dtype=float)
        assert usable_weights(two_islands).tolist() == [[0, 2, 1 / 3], [2, 0, 1 / 3], [1 / 3, 1 / 3, 0]]

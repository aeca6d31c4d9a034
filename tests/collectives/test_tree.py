"""Trees: binomial, in pairs of Caffe's, NCCL's two, and MXNet's over links."""

from collections import Counter
from fractions import Fraction

import numpy as np
import pytest

from scaling.collectives.listing import schedule
from scaling.collectives.mxnet_tree import link_trees, mxnet_tree, tree_edges, usable_weights
from scaling.collectives.schedule import Transfer
from scaling.collectives.tree import (
    binary_tree_parent,
    caffe_pairs,
    double_binary_tree,
    second_tree_ranks,
    tree,
)
from scaling.collectives.verify import verify
from scaling.errors import ScheduleError
from topologies.schema import load


def depth(n):
    return (n - 1).bit_length()


def no_access(n):
    return [[False] * n for _ in range(n)]


def access(n, *groups):
    """Peer access inside each group of GPUs."""
    return [[any(i in group and j in group for group in groups) for j in range(n)] for i in range(n)]


class TestBinomialTree:
    def test_steps_of_six_ranks(self):
        levels = [[(0, 1), (2, 3), (4, 5)], [(0, 2)], [(0, 4)]]
        up = [tuple(Transfer(child, parent, 0, 1, "add") for parent, child in level) for level in levels]
        down = [
            tuple(Transfer(parent, child, 0, 1, "copy") for parent, child in level) for level in levels[::-1]
        ]
        assert tree(6).steps == tuple(up + down)
        assert tree(6).num_chunks == 1


class TestPipeline:
    @pytest.mark.parametrize("num_chunks", [1, 2, 3, 16])
    @pytest.mark.parametrize("n", [1, 2, 3, 6, 8])
    def test_chunks_add_steps_and_messages_but_no_bytes(self, n, num_chunks):
        whole, cut = verify(tree(n)), verify(tree(n, num_chunks=num_chunks))
        assert cut.num_steps == (2 * depth(n) + num_chunks - 1 if n > 1 else 0)
        assert cut.sent_ratio_per_rank == whole.sent_ratio_per_rank
        assert cut.num_messages <= whole.num_messages * num_chunks

    def test_level_d_of_chunk_c_runs_in_step_d_plus_c(self):
        for t, step in enumerate(tree(8, num_chunks=4).steps):
            for transfer in step:
                distance = abs(transfer.source - transfer.target).bit_length() - 1
                level = distance if transfer.operation == "add" else 5 - distance
                assert level + transfer.start == t

    def test_no_chunks_are_refused(self):
        with pytest.raises(ScheduleError, match="0 chunks"):
            tree(4, num_chunks=0)


class TestCaffePairs:
    def test_two_boards_of_two(self):
        assert caffe_pairs([0, 0, 1, 1], no_access(4)) == [(0, 1), (2, 3), (0, 2)]

    def test_boards_come_before_peer_access(self):
        # GPUs 0 and 1 have access, but each shares its board with another one.
        assert caffe_pairs([0, 1, 0, 1], access(4, (0, 1))) == [(0, 2), (1, 3), (0, 1)]

    def test_peer_access_comes_before_the_order_of_the_list(self):
        assert caffe_pairs([0, 1, 2, 3], access(4, (0, 2), (1, 3))) == [(0, 2), (1, 3), (0, 1)]

    def test_eight_with_access_in_halves(self):
        assert caffe_pairs(range(8), access(8, range(4), range(4, 8))) == [
            (0, 1),
            (2, 3),
            (4, 5),
            (6, 7),
            (0, 2),
            (4, 6),
            (0, 4),
        ]

    def test_three_left_for_the_last_pass(self):
        # Caffe pairs 0 and 1, then looks at the GPU behind the last one.
        assert caffe_pairs([0, 1, 2], no_access(3)) == [(0, 1), (0, 2)]

    def test_three_boards_of_two_leave_three(self):
        assert caffe_pairs([0, 0, 1, 1, 2, 2], no_access(6)) == [(0, 1), (2, 3), (4, 5), (0, 2), (0, 4)]

    def test_one_gpu_has_no_pair(self):
        assert caffe_pairs([0], no_access(1)) == []

    def test_four_gpus_give_the_default_tree(self):
        assert tree(4, caffe_pairs([0, 0, 1, 1], no_access(4))) == tree(4)

    @pytest.mark.parametrize("n", range(1, 20))
    def test_every_rank_but_the_root_is_child_once(self, n):
        irregular = [[(i * j + i + j) % 3 == 0 for j in range(n)] for i in range(n)]
        pairs = caffe_pairs([r // 3 for r in range(n)], irregular)
        assert sorted(child for _, child in pairs) == list(range(1, n))
        verification = verify(tree(n, pairs))
        assert sum(verification.sent_ratio_per_rank) == 2 * (n - 1)


class TestPairs:
    def test_any_root_is_allowed(self):
        assert verify(tree(3, [(2, 0), (2, 1)])).sent_ratio_per_rank == [1, 1, 2]

    def test_pair_waits_until_both_ranks_are_free(self):
        assert tree(4, [(0, 1), (1, 2), (0, 3)][::-1]).steps[:3] == (
            (Transfer(3, 0, 0, 1, "add"), Transfer(2, 1, 0, 1, "add")),
            (Transfer(1, 0, 0, 1, "add"),),
            (Transfer(0, 1, 0, 1, "copy"),),
        )

    @pytest.mark.parametrize(
        ("pairs", "message"),
        [
            ([(0, 1), (1, 2)], r"pair \(1, 2\)"),
            ([(0, 1), (0, 1)], r"pair \(0, 1\)"),
            ([(0, 0), (0, 1)], r"pair \(0, 0\)"),
            ([(0, 1), (0, 3)], r"pair \(0, 3\)"),
            ([(0, 1)], r"ranks \[0, 2\] are no one's child"),
        ],
    )
    def test_what_is_no_tree_is_refused(self, pairs, message):
        with pytest.raises(ScheduleError, match=message):
            tree(3, pairs)


def caffe_pairs_on(topology, world_size):
    """Caffe's pairs for ranks on the first `world_size` GPUs of a topology, by its boards and peer access."""
    places = topology.ranks(world_size)
    devices = [topology.machine.by_id[device] for _, device in places]
    boards = [
        (node, device.board if device.board is not None else device.id)
        for (node, _), device in zip(places, devices, strict=True)
    ]
    peers = [[a[0] == b[0] and topology.machine.peer_access(a[1], b[1]) for b in places] for a in places]
    return caffe_pairs([boards.index(board) for board in boards], peers)


class TestPairingFromATopology:
    def test_boards_pair_first_on_the_papers_machine(self):
        assert caffe_pairs_on(load("dual-k80"), 4) == [(0, 1), (2, 3), (0, 2)]

    def test_three_of_its_gpus_leave_one_for_the_last_pass(self):
        assert caffe_pairs_on(load("dual-k80"), 3) == [(0, 1), (0, 2)]

    @pytest.mark.parametrize("world_size", [1, 2, 4, 8])
    def test_peer_access_for_all_gives_the_binomial_tree(self, world_size):
        pairs = caffe_pairs_on(load("hgx-h200"), world_size)
        assert tree(world_size, pairs) == tree(world_size)


def children(n, ranks):
    """Rank -> its number of children in the binary tree whose place i is taken by ranks[i]."""
    parents = [binary_tree_parent(place, n) for place in range(n)]
    return {ranks[place]: parents.count(place) for place in range(n)}


def test_a_rank_sends_half_a_buffer_up_and_to_each_child(verified):
    for n in range(2, 65):
        first, second = children(n, range(n)), children(n, second_tree_ranks(n))
        roots = [0, second_tree_ranks(n)[0]]
        expected = [(first[r] + second[r] + 2 - roots.count(r)) / 2 for r in range(n)]
        assert verified("double_binary_tree", n).sent_ratio_per_rank == expected


def test_a_rank_has_children_in_one_tree_only_but_for_the_roots():
    for n in range(2, 65):
        first, second = children(n, range(n)), children(n, second_tree_ranks(n))
        both = {r for r in range(n) if first[r] and second[r]}
        assert both <= {0, second_tree_ranks(n)[0]}


def test_first_tree_of_14_ranks_is_the_one_drawn_in_nccl():
    parents = [binary_tree_parent(rank, 14) for rank in range(14)]
    assert parents == [None, 2, 4, 2, 8, 6, 4, 6, 0, 10, 12, 10, 8, 12]


def test_second_tree_mirrors_even_and_shifts_odd_worlds():
    assert second_tree_ranks(12) == list(reversed(range(12)))
    assert second_tree_ranks(13) == [*range(1, 13), 0]


def test_each_tree_carries_its_half():
    n, ranks = 12, second_tree_ranks(12)
    place = {rank: i for i, rank in enumerate(ranks)}
    for step in double_binary_tree(n, 4).steps:
        for t in step:
            child, parent = (t.source, t.target) if t.operation == "add" else (t.target, t.source)
            if t.start < 2:
                assert binary_tree_parent(child, n) == parent
            else:
                assert binary_tree_parent(place[child], n) == place[parent]


@pytest.mark.parametrize("num_chunks", [0, 1, 3])
def test_odd_chunk_numbers_are_refused(num_chunks):
    with pytest.raises(ScheduleError, match=f"{num_chunks} chunks; allowed are 2, 4, 6"):
        double_binary_tree(4, num_chunks)


@pytest.mark.parametrize("n", [2, 3, 5, 8, 13])
def test_a_rank_sends_each_foreign_slice_up_and_a_slice_to_each_child(n, verified):
    steps = schedule("mxnet_tree", n).steps
    children = Counter(t.target for step in steps for t in step if t.operation == "add")
    expected = [Fraction(n - 1 + children[rank], n) for rank in range(n)]
    assert verified("mxnet_tree", n).sent_ratio_per_rank == expected


def test_slice_i_is_summed_at_rank_i():
    steps = mxnet_tree(8).steps
    for transfer in steps[2]:
        assert transfer.operation == "add"
        assert transfer.target == transfer.start
    assert len(steps[2]) == 8


def test_single_root_sends_the_buffer_whole_to_rank_0():
    single = mxnet_tree(6, multi_root=False)
    assert single.num_chunks == 1
    assert {transfer.target for transfer in single.steps[2]} == {0}
    assert sum(verify(single).sent_ratio_per_rank) == 10


def test_backtracking_delivers_the_sum():
    assert sum(verify(mxnet_tree(4, method="backtracking")).sent_ratio_per_rank) == 6


def test_links_of_another_number_of_ranks_are_refused():
    with pytest.raises(ScheduleError, match="links of 2 ranks for 3"):
        mxnet_tree(3, [[0, 1], [1, 0]])


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

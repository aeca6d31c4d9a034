"""The binomial tree, its pipeline and Caffe's pairing."""

import pytest

from scaling.collectives.schedule import Transfer
from scaling.collectives.tree import caffe_pairs, tree
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


def num_children(n, rank):
    lowest_bit = rank & -rank if rank else 2 ** depth(n)
    return sum(rank + 2**level < n for level in range(depth(n)) if 2**level < lowest_bit)


class TestBinomialTree:
    def test_counts_are_those_of_the_docstring(self, verified):
        for n in range(1, 65):
            verification = verified("tree", n)
            assert verification.num_steps == 2 * depth(n)
            expected = [num_children(n, rank) + (rank > 0) for rank in range(n)]
            assert verification.sent_ratio_per_rank == expected
            assert verification.messages_per_rank == expected
            assert expected[0] == depth(n)

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

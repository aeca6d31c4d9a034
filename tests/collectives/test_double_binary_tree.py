"""NCCL's double binary tree."""

import pytest

from scaling.collectives.tree import binary_tree_parent, double_binary_tree, second_tree_ranks
from scaling.collectives.verify import verify
from scaling.errors import ScheduleError


def depth(n):
    return (n - 1).bit_length()


def children(n, ranks):
    """Rank -> its number of children in the binary tree whose place i is taken by ranks[i]."""
    parents = [binary_tree_parent(place, n) for place in range(n)]
    return {ranks[place]: parents.count(place) for place in range(n)}


@pytest.mark.parametrize("num_chunks", [2, 8])
def test_counts_are_those_of_the_docstring(num_chunks):
    for n in range(1, 33):
        verification = verify(double_binary_tree(n, num_chunks))
        assert verification.num_steps == (2 * depth(n) + num_chunks // 2 - 1 if n > 1 else 0)
        assert sum(verification.sent_ratio_per_rank) == 2 * (n - 1)
        assert max(verification.sent_ratio_per_rank) <= 2


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

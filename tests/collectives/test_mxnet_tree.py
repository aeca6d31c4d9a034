"""MXNet's all-reduce over one tree a root."""

from collections import Counter
from fractions import Fraction

import pytest

from scaling.collectives.listing import schedule
from scaling.collectives.mxnet_tree import mxnet_tree
from scaling.collectives.verify import verify
from scaling.errors import ScheduleError


def test_counts_are_those_of_the_docstring(verified):
    for n in range(1, 65):
        verification = verified("mxnet_tree", n)
        assert verification.num_steps == 2 * (n - 1).bit_length()
        assert sum(verification.sent_ratio_per_rank) == 2 * (n - 1)


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

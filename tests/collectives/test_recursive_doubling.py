"""Recursive doubling and the folding of extra ranks."""

from scaling.collectives.halving_doubling import folding, power_of_two_below, recursive_doubling
from scaling.collectives.schedule import Transfer


def test_counts_are_those_of_the_docstring(verified):
    for n in range(1, 65):
        m = 2 ** (n.bit_length() - 1)
        extra, num_swaps = n - m, m.bit_length() - 1
        expected = [num_swaps + (r < extra) for r in range(m)] + [1] * extra
        verification = verified("recursive_doubling", n)
        assert verification.num_steps == num_swaps + 2 * (extra > 0)
        assert verification.messages_per_rank == expected
        assert verification.sent_ratio_per_rank == expected


def test_a_step_is_symmetric_swaps_of_adds():
    for step in recursive_doubling(8).steps:
        assert {(t.source, t.target) for t in step} == {(t.target, t.source) for t in step}
        assert all(t.operation == "add" for t in step)


def test_partners_are_one_then_two_then_four_apart():
    assert [abs(step[0].source - step[0].target) for step in recursive_doubling(8).steps] == [1, 2, 4]


def test_extra_ranks_fold_into_the_first_ones():
    assert folding(6, num_chunks=4) == [(Transfer(4, 0, 0, 4, "add"), Transfer(5, 1, 0, 4, "add"))]
    assert folding(8, num_chunks=4) == []


def test_power_of_two_below():
    assert [power_of_two_below(n) for n in (1, 2, 3, 4, 7, 8, 9)] == [1, 2, 2, 4, 4, 8, 8]

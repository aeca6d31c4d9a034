"""Rabenseifner's all-reduce and its two treatments of other world sizes."""

from fractions import Fraction

import pytest

from scaling.collectives.halving_doubling import halving_doubling
from scaling.errors import ScheduleError


def log2(m):
    return m.bit_length() - 1


def test_folded_counts_are_those_of_the_docstring(verified):
    for n in range(1, 65):
        m = 2 ** log2(n)
        extra = n - m
        verification = verified("halving_doubling", n)
        assert verification.num_steps == 2 * log2(m) + 2 * (extra > 0)
        assert verification.messages_per_rank == [2 * log2(m) + (r < extra) for r in range(m)] + [1] * extra
        core = Fraction(2 * (m - 1), m)
        assert verification.sent_ratio_per_rank == [core + (r < extra) for r in range(m)] + [1] * extra


def test_binary_blocks_counts_are_those_of_the_docstring(verified):
    for n in range(1, 65):
        blocks = [2**bit for bit in reversed(range(n.bit_length())) if n >> bit & 1]
        ratios, messages = [], []
        for i, b in enumerate(blocks):
            has_larger, has_smaller = i > 0, i + 1 < len(blocks)
            ratios += [Fraction(2 * (b - 1) + has_larger + has_smaller, b)] * b
            up = blocks[i - 1] // b if has_larger else 0
            messages += [2 * log2(b) + up + has_smaller] * b
        verification = verified("binary_blocks", n)
        assert verification.num_steps == 2 * log2(blocks[0]) + 2 * (len(blocks) > 1)
        assert verification.sent_ratio_per_rank == ratios
        assert verification.messages_per_rank == messages


def test_treatments_are_the_same_for_powers_of_two():
    for n in (1, 2, 4, 8, 16):
        assert halving_doubling(n, "binary_blocks") == halving_doubling(n, "fold")


def test_first_step_swaps_halves_with_the_neighbour():
    first = halving_doubling(8).steps[0]
    assert all(t.source ^ t.target == 1 and t.stop - t.start == 4 for t in first)


def test_another_treatment_is_refused():
    with pytest.raises(ScheduleError, match="treatment 'pad'; allowed are fold and binary_blocks"):
        halving_doubling(3, "pad")

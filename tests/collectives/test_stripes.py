"""CNTK's stripe a rank."""

from fractions import Fraction

from scaling.collectives.owners import stripes


def test_counts_are_those_of_the_docstring(verified):
    for n in range(1, 65):
        verification = verified("stripes", n)
        assert verification.num_steps == (2 if n > 1 else 0)
        assert verification.messages_per_rank == [2 * (n - 1)] * n
        assert verification.sent_ratio_per_rank == [Fraction(2 * (n - 1), n)] * n


def test_every_pair_of_ranks_exchanges_in_both_steps():
    for step in stripes(5).steps:
        assert {(t.source, t.target) for t in step} == {(a, b) for a in range(5) for b in range(5) if a != b}


def test_owner_adds_the_others_in_rank_order():
    assert [t.source for t in stripes(4).steps[0] if t.target == 2] == [0, 1, 3]

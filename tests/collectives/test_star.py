"""Torch's star."""

from scaling.collectives.owners import star
from scaling.collectives.schedule import Transfer


def test_counts_are_those_of_the_docstring(verified):
    for n in range(1, 65):
        verification = verified("star", n)
        assert verification.num_steps == 2 * (n - 1)
        assert verification.messages_per_rank == [n - 1] + [1] * (n - 1)
        assert verification.sent_ratio_per_rank == [n - 1] + [1] * (n - 1)


def test_one_rank_at_a_time_in_rank_order():
    assert star(3).steps == (
        (Transfer(1, 0, 0, 1, "add"),),
        (Transfer(2, 0, 0, 1, "add"),),
        (Transfer(0, 1, 0, 1, "copy"),),
        (Transfer(0, 2, 0, 1, "copy"),),
    )

"""TensorFlow's two halves."""

from fractions import Fraction

import pytest

from scaling.collectives.hierarchical import GCP_V100_PAIRS, tf_hierarchical_copy
from scaling.collectives.schedule import Transfer
from scaling.collectives.verify import verify
from scaling.errors import ScheduleError


def test_counts_are_those_of_the_docstring(verified):
    for n in range(1, 65):
        verification = verified("tf_hierarchical_copy", n)
        assert verification.num_steps == {1: 0, 2: 2}.get(n, 4)
        assert sum(verification.sent_ratio_per_rank) == 2 * (n - 1)
        if n % 2 == 0:
            assert verification.sent_ratio_per_rank == [Fraction(2 * (n - 1), n)] * n


def test_tensor_i_uses_the_mains_i_and_i_plus_half():
    cross = tf_hierarchical_copy(8).steps[1]
    assert [(t.start, t.target, t.source) for t in cross] == [(i, i, (i + 4) % 8) for i in range(8)]


def test_mains_gather_their_own_half():
    first = [t for t in tf_hierarchical_copy(4).steps[0] if t.start == 2]
    assert first == [Transfer(1, 0, 2, 3, "add"), Transfer(3, 2, 2, 3, "add")]


def test_gcp_pairs():
    schedule = tf_hierarchical_copy(8, GCP_V100_PAIRS)
    assert schedule.num_chunks == 4
    verification = verify(schedule)
    assert sum(verification.sent_ratio_per_rank) == 14
    crossing = {
        (t.source, t.target) for step in schedule.steps for t in step if t.source // 4 != t.target // 4
    }
    assert crossing == {(0, 5), (5, 0), (2, 7), (7, 2)}


@pytest.mark.parametrize("pair", [(0, 3), (4, 7), (0, 8), (-1, 4)])
def test_mains_must_be_in_different_halves(pair):
    with pytest.raises(ScheduleError, match="one must be a rank below 4, the other one of 4 to 7"):
        tf_hierarchical_copy(8, [pair])


def test_no_pairs_are_refused():
    with pytest.raises(ScheduleError, match="no pair of mains"):
        tf_hierarchical_copy(8, [])

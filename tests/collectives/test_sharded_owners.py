"""MXNet's owner a tensor."""

from fractions import Fraction

import pytest

from scaling.collectives.listing import FCN_R_TENSORS
from scaling.collectives.owners import assign_owners, sharded_owners
from scaling.collectives.verify import verify

NUM_ELEMENTS = 14_205_962


def loads(tensor_elements, n):
    owners = assign_owners(tensor_elements, n)
    return [sum(e for e, o in zip(tensor_elements, owners, strict=True) if o == rank) for rank in range(n)]


def test_fcn_r_has_the_papers_number_of_parameters():
    assert sum(FCN_R_TENSORS) == NUM_ELEMENTS


@pytest.mark.parametrize("n", [2, 4, 8])
def test_owner_of_fcn_rs_largest_matrix_has_59_percent_of_all_elements(n):
    largest = max(loads(FCN_R_TENSORS, n))
    assert largest == 2048 * 4096
    assert round(100 * largest / NUM_ELEMENTS, 2) == 59.05


def test_largest_tensors_are_placed_first():
    assert assign_owners([1, 5, 3, 4], 2) == [0, 0, 1, 1]


def test_ties_go_to_the_first_tensor_and_the_lowest_rank():
    assert assign_owners([2, 2, 2, 2, 2], 3) == [0, 1, 2, 0, 1]


def test_counts_are_those_of_the_docstring(verified):
    for n in range(1, 65):
        owned = loads(FCN_R_TENSORS, n)
        owners = {rank for rank in range(n) if owned[rank]}
        verification = verified("sharded_owners", n)
        assert verification.num_steps == (2 if n > 1 else 0)
        assert verification.sent_ratio_per_rank == [
            Fraction(NUM_ELEMENTS - o + (n - 1) * o, NUM_ELEMENTS) if n > 1 else 0 for o in owned
        ]
        assert verification.messages_per_rank == [
            len(owners - {rank}) + (n - 1) * (rank in owners) for rank in range(n)
        ]


def test_chunks_are_the_tensors_in_the_order_of_the_buffer():
    schedule = sharded_owners(2, [3, 9, 1])
    assert schedule.num_chunks == 3
    assert schedule.chunk_elements == (3, 9, 1)
    assert schedule.bounds(13) == [0, 3, 12, 13]
    assert verify(schedule).sent_ratio_per_rank == [1, 1]


def test_owner_adds_the_others_in_rank_order():
    gather = sharded_owners(4, [5]).steps[0]
    assert [(t.source, t.target) for t in gather] == [(1, 0), (2, 0), (3, 0)]

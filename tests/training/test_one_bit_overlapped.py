"""1-bit SGD as DDP's communication hook, in two real processes: residuals belong to parameters."""

import pytest

WAYS = ("one bucket", "several")
SAVED_AFTER = 3

pytestmark = pytest.mark.processes


@pytest.fixture(scope="module")
def ranks(on_ranks):
    """What each rank saw."""
    return on_ranks("one_bit_worker.py", 2)


@pytest.mark.parametrize("way", WAYS)
def test_it_trains_as_the_eager_step_whatever_the_buckets(ranks, way):
    for rank in ranks:
        assert rank[way] == pytest.approx(rank["eager"], rel=1e-4)


@pytest.mark.parametrize("new", WAYS)
@pytest.mark.parametrize("old", WAYS)
def test_training_goes_on_from_a_saved_state_in_other_buckets(ranks, old, new):
    for rank in ranks:
        assert rank[f"{old} to {new}"] == pytest.approx(rank[old][SAVED_AFTER:], rel=1e-5)


def test_what_encodes_is_noted(ranks):
    for rank in ranks:
        assert "one_bit in torch operations, by planes" in rank["several notes"]

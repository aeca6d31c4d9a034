"""DDP's buckets with their sizes one by one: they are what is exchanged, and the training stays the same."""

import pytest

from scaling.training.ddp import TAKES_SIZES

KIB = 1024

pytestmark = pytest.mark.processes


@pytest.fixture(scope="module")
def ranks(on_ranks):
    return on_ranks("bucket_sizes_worker.py", 2)


@pytest.mark.parametrize("name", ["all_reduce", "ring"])
class TestBuckets:
    @pytest.mark.skipif(
        not TAKES_SIZES, reason="this torch takes the sizes of the first bucket and of the others"
    )
    def test_are_of_the_sizes_one_by_one_of_which_the_last_is_repeated(self, ranks, name):
        for rank in ranks:
            assert rank[name]["one by one"]["bytes"] == [2 * KIB, KIB, 4 * KIB, KIB]

    def test_of_two_sizes_are_the_first_and_the_others(self, ranks, name):
        for rank in ranks:
            assert rank[name]["in older torch"]["bytes"] == [KIB, 3 * KIB, 3 * KIB, KIB]
            assert rank[name]["first and others"]["bytes"] == [KIB, 3 * KIB, 3 * KIB, KIB]

    def test_do_not_change_the_training(self, ranks, name):
        for rank in ranks:
            assert rank[name]["one size"]["bytes"] == [8 * KIB]
            for way in ("one by one", "first and others", "in older torch"):
                assert rank[name][way]["parameters"] == pytest.approx(
                    rank[name]["one size"]["parameters"], rel=1e-6, abs=1e-7
                )


def test_unused_parameters_are_not_looked_for_where_sizes_are_those_of_gradients_in_their_order(ranks):
    assert all("needs a loss that depends on every parameter" in rank["refused"] for rank in ranks)

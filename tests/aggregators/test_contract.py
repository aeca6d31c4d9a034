"""The contract suite over every built-in aggregator."""

import pytest

from scaling import conformance
from scaling.aggregators.registry import BUILT_IN, create

AGGREGATORS = [create(name) for name in BUILT_IN] + [create("one_bit", {"threshold": "mean"})]


@pytest.mark.parametrize("world_size", conformance.WORLD_SIZES)
@pytest.mark.parametrize("aggregator", AGGREGATORS, ids=lambda aggregator: aggregator.label())
class TestContract:
    @pytest.mark.parametrize("dtype", conformance.DTYPES, ids=str)
    @pytest.mark.parametrize("num_elements", conformance.SIZES)
    def test_result_is_the_mean_on_every_rank(self, aggregator, world_size, num_elements, dtype):
        conformance.check(aggregator, world_size, num_elements, dtype)

    def test_saved_state_continues_bit_for_bit(self, aggregator, world_size):
        conformance.check_state(aggregator, world_size)

"""The contract suite over every built-in aggregator, and every way of the bytes."""

from dataclasses import replace

import pytest

from scaling import conformance
from scaling.aggregators.registry import BUILT_IN, create
from scaling.aggregators.scheduled import Scheduled


def variants(aggregator):
    """In a process, ranks can both send and reach each other's memory."""
    if not isinstance(aggregator, Scheduled):
        return [aggregator]
    return [replace(aggregator, transport=transport) for transport in ("sends", "peer_memory")]


# One_bit_momentum withholds of its momentum, not of the gradient (test_striped.py); the others keep nothing.
WITHOUT_FEEDBACK = ("one_bit_momentum", "sign", "qsgd", "fp16", "bf16")
BY_NAME = [
    *(create(name) for name in BUILT_IN),
    create("one_bit", {"threshold": "mean"}),
    create("power_sgd", {"approximation_size": 3, "warm_start": False}),
    create("qsgd", {"bits": 8, "norm": "max"}),
    create("top_k", {"momentum_correction": 0.9}),
    create("ef_sign", {"error_feedback": False}),
]
# What is carried by another library takes processes: tests/startup.
BY_NAME = [aggregator for aggregator in BY_NAME if aggregator.library is None]
AGGREGATORS = [variant for aggregator in BY_NAME for variant in variants(aggregator)]
SCHEDULED = [aggregator for aggregator in BY_NAME if isinstance(aggregator, Scheduled)]


def label(aggregator):
    return aggregator.label()


@pytest.mark.parametrize("world_size", conformance.WORLD_SIZES)
@pytest.mark.parametrize("aggregator", AGGREGATORS, ids=label)
class TestContract:
    @pytest.mark.parametrize("dtype", conformance.DTYPES, ids=str)
    @pytest.mark.parametrize("num_elements", conformance.SIZES)
    def test_mean_is_where_the_step_is_taken_and_parameters_reach_all(
        self, aggregator, world_size, num_elements, dtype
    ):
        conformance.check(aggregator, world_size, num_elements, dtype)

    def test_saved_state_continues_bit_for_bit(self, aggregator, world_size):
        conformance.check_state(aggregator, world_size)

    def test_lossy_ones_withhold_what_they_do_not_deliver(self, aggregator, world_size):
        keeps = aggregator.lossy and aggregator.name not in WITHOUT_FEEDBACK
        keeps &= not aggregator.own_momentum() and getattr(aggregator, "error_feedback", True)
        assert conformance.check_residuals(aggregator, world_size) == keeps


@pytest.mark.parametrize("world_size", [1, 2, 3, 5, 8, 12])
@pytest.mark.parametrize("aggregator", SCHEDULED, ids=label)
def test_schedules_deliver_the_sum_where_the_step_is_taken(aggregator, world_size):
    for num_elements in (1, 1027):
        conformance.check_schedule(aggregator, world_size, conformance.layout_of(num_elements))


@pytest.mark.parametrize(
    "name", ["none", "all_reduce", "ring", "tree", "host_serial", "host_parallel", "one_bit"]
)
def test_wire_bytes_are_stated_and_so_checked(name):
    layout = conformance.layout_of(1000)
    stated = [create(name).wire_bytes(layout, 4, rank, 4) for rank in range(4)]
    assert all(isinstance(num_bytes, int) for num_bytes in stated)

"""The contract suite over every built-in aggregator, and every path of the bytes."""

from dataclasses import replace
from itertools import product

import pytest

from scaling import conformance
from scaling.aggregators.registry import BUILT_IN, create
from scaling.aggregators.schedule import Scheduled

NUM_EXAMPLES = 3


def variants(aggregator):
    """In a process, ranks can both send and reach each other's memory."""
    if not isinstance(aggregator, Scheduled):
        return [aggregator]
    return [replace(aggregator, transport=transport) for transport in ("sends", "peer_memory")]


WITHOUT_FEEDBACK = ("sign", "qsgd", "fp16", "bf16")
BY_NAME = [
    *(create(name) for name in BUILT_IN if name != "one_bit_adam"),
    create("one_bit_adam", {"warmup_steps": 1}),
    create("one_bit", {"threshold": "mean"}),
    create("power_sgd", {"approximation_size": 3, "warm_start": False}),
    create("qsgd", {"bits": 8, "norm": "max"}),
    create("top_k", {"momentum_correction": 0.9}),
    create("ef_sign", {"error_feedback": False}),
]
# What is carried by another library takes processes: tests/runtime.
BY_NAME = [aggregator for aggregator in BY_NAME if aggregator.library is None]
ON_ONE_RANK = list({type(aggregator): aggregator for aggregator in reversed(BY_NAME)}.values())
"""One of each class."""
AGGREGATORS = [variant for aggregator in BY_NAME for variant in variants(aggregator)]
SCHEDULED = [aggregator for aggregator in BY_NAME if isinstance(aggregator, Scheduled)]


def label(aggregator):
    return aggregator.label()


@pytest.mark.sampled(4)
@pytest.mark.parametrize(
    ("aggregator", "world_size"),
    [*((aggregator, 1) for aggregator in ON_ONE_RANK), *product(AGGREGATORS, (3, 4))],
    ids=lambda value: value if isinstance(value, int) else value.label(),
)
def test_contract_holds_on_fixed_and_drawn_cases(aggregator, world_size):
    """A few cases of a fixed seed; `scaling verify --all --examples 500 --seed 7` draws more, and others."""
    found = conformance.check_drawn(aggregator, world_size, num_examples=NUM_EXAMPLES)
    keeps = aggregator.lossy and aggregator.name not in WITHOUT_FEEDBACK
    keeps &= getattr(aggregator, "error_feedback", True)
    assert found.has_residuals == keeps


@pytest.mark.parametrize("world_size", [1, 2, 3, 5, 8, 12])
@pytest.mark.parametrize("aggregator", SCHEDULED, ids=label)
def test_schedules_deliver_the_sum_where_the_step_is_taken(aggregator, world_size):
    for shapes in (((1,),), ((3, 171), (513,), ())):
        conformance.check_schedule(aggregator, world_size, conformance.layout_of(shapes))


@pytest.mark.parametrize(
    "name", ["none", "all_reduce", "ring", "tree", "host_serial", "host_parallel", "one_bit"]
)
def test_wire_bytes_are_stated_and_so_checked(name):
    layout = conformance.layout_of(((1000,),))
    stated = [create(name).wire_bytes(layout, 4, rank, 4) for rank in range(4)]
    assert all(isinstance(num_bytes, int) for num_bytes in stated)

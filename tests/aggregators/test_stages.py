"""What aggregators say of themselves for predictions: it can be priced, and sends what is metered."""

import math
from dataclasses import dataclass

import pytest

from scaling.aggregators.base import Aggregator, unmarked
from scaling.aggregators.prediction import copies_to_ranks, gathered_by_all, rows_from_host, rows_to_host
from scaling.aggregators.presets import mxnet
from scaling.aggregators.presets.mxnet import MxnetLocal
from scaling.aggregators.registry import BUILT_IN, create
from scaling.aggregators.state import AggregatorState
from scaling.collectives.plan import CodecWork, Update, exchanges_of, simulate_plan
from scaling.collectives.plan_record import plan_of
from scaling.errors import StudyError
from tests.aggregators.conftest import NETWORK, layout_of, one_step
from topologies.schema import load

AGGREGATORS = [create(name) for name in BUILT_IN] + [
    create("cntk_32bit", {"transport": "device"}),
    create("tf_spec", {"spec": "nccl:100:psgpu:4k:xring"}),
]


@pytest.fixture(scope="module")
def big_network():
    return layout_of("fcn-r")


def names(stages):
    return [type(stage).__name__.lower() if isinstance(stage, Update) else stage.name for stage in stages]


@pytest.mark.parametrize("aggregator", AGGREGATORS, ids=lambda one: one.label())
class TestEveryAggregator:
    @pytest.mark.sampled(4)
    @pytest.mark.parametrize(
        ("topology", "world_size"),
        [("cpu-2", 1), ("cpu-2", 2), ("dual-k80", 4), ("hgx-h200-4", 3), ("hgx-h200", 8)],
    )
    def test_can_be_priced(self, aggregator, topology, world_size, big_network):
        stages = aggregator.stages(big_network, world_size)
        price = simulate_plan(stages, load(topology), world_size)
        assert 0 < price.seconds < 10
        assert sum(isinstance(stage, Update) for stage in stages) == 1

    @pytest.mark.sampled(4)
    @pytest.mark.parametrize("world_size", [1, 2, 3, 4, 7])
    def test_sends_what_is_metered(self, aggregator, world_size):
        stages = aggregator.stages(NETWORK, world_size)
        plan = plan_of(exchanges_of(stages, with_gpus=False), world_size)
        # Stripes are unequal where columns do not divide evenly; an all-reduce is rounded down to bytes.
        tolerance = 0.05 if aggregator.lossy else 0.003
        planned = [plan.sent_bytes(rank) for rank in range(world_size)]
        if aggregator.wire_bytes(NETWORK, world_size, 0, itemsize=4) is None:
            return  # a step of torch's: tests/training/test_library_sharded.py
        metered = [aggregator.wire_bytes(NETWORK, world_size, rank, itemsize=4) for rank in range(world_size)]
        if aggregator.lossy:
            planned, metered = [sum(planned)], [sum(metered)]
        assert planned == pytest.approx(metered, rel=tolerance, abs=200)

    @pytest.mark.sampled(4)
    @pytest.mark.parametrize("world_size", [1, 2, 3, 4, 7])
    def test_meters_what_it_says_it_sends(self, aggregator, world_size):
        stated = aggregator.wire_bytes(NETWORK, world_size, 0, itemsize=4)
        if aggregator.library is not None or stated is None:
            return  # takes processes: tests/runtime, tests/training/test_library_sharded.py
        for rank, outcome in enumerate(one_step(aggregator, world_size, NETWORK)):
            assert outcome.num_bytes == aggregator.wire_bytes(NETWORK, world_size, rank, itemsize=4)

    @pytest.mark.sampled(4)
    def test_more_gradient_takes_longer(self, aggregator, big_network):
        topology = load("dual-k80")
        plans = (aggregator.stages(layout, 4) for layout in (NETWORK, big_network))
        small, large = (simulate_plan(plan, topology, 4).seconds for plan in plans)
        assert small < large


class TestOrder:
    @pytest.mark.parametrize(("name", "expected"), [
        ("none", ["update"]), ("all_reduce", ["all_reduce", "update"]), ("ring", ["", "update"]),
        ("caffe", ["reduce", "update", "distribute"]),
        ("mxnet_device", ["reduce", "update", "distribute"]),
        ("caffe_nccl", ["caffe_nccl"] * 3 + ["update"]),
        ("host_serial", ["", "mean", "update", ""]), ("host_parallel", ["", "update"]),
        ("torch_cpu", ["", "update", ""]),
        ("tensorflow", ["", "concatenate", "mean", "update", ""]),
        ("mxnet_local", ["", "sum", "sum", "update", ""]),
        ("cntk", ["encode", "", "decode", "encode", "", "decode", "update"]),
        ("cntk_32bit", ["", "all_reduce", "", "update"]),
        ("mpi", ["", "all_reduce", "divide", "", "update"]),
        ("mpi_one_bit", ["encode", *[""] * 3, "decode", "encode", *[""] * 3, "decode", "update"]),
        ("horovod", ["horovod", "update"]),
        ("horovod_optimizer", ["horovod_optimizer", "update"]),
        ("tf_spec", ["", "", "", "update"]),
    ])  # fmt: skip
    def test_is_that_of_the_step(self, name, expected):
        assert names(create(name).stages(NETWORK, 4)) == expected

    def test_owners_step_what_they_own(self):
        (update,) = [s for s in create("mxnet_device").stages(NETWORK, 4) if isinstance(s, Update)]
        assert sum(update.owner_elements) == NETWORK.num_elements
        assert max(update.owner_elements) == math.prod((257, 263))
        (root,) = [s for s in create("caffe").stages(NETWORK, 4) if isinstance(s, Update)]
        assert root.owner_elements == (NETWORK.num_elements, 0, 0, 0)

    def test_large_tensors_are_summed_by_several_threads(self, monkeypatch):
        monkeypatch.setattr(mxnet, "BIGARRAY_BOUND", 257 * 263)
        sums = [s for s in MxnetLocal().stages(NETWORK, 4) if isinstance(s, CodecWork)]
        assert [s.num_threads for s in sums] == [4, 1]
        assert sums[0].num_bytes == 4 * 4 * 257 * 263
        assert sum(s.num_bytes for s in sums) == 4 * 4 * NETWORK.num_elements

    def test_very_large_tensors_are_stepped_by_every_rank(self, monkeypatch):
        monkeypatch.setattr(mxnet, "MAX_ELEMENTS_ON_HOST", 257 * 263 - 1)
        stages = MxnetLocal().stages(NETWORK, 4)
        assert names(stages) == ["", "sum", "sum", "", "update"]
        assert stages[-1].site == "replica"


def test_star_costs_more_than_a_tree_and_that_more_than_a_ring(big_network):
    def seconds(name):
        return simulate_plan(create(name).stages(big_network, 4), load("dual-k80"), 4).seconds

    assert seconds("ring") < seconds("caffe") < seconds("torch_dpt")
    assert seconds("torch_cpu") < seconds("tensorflow")
    assert seconds("mxnet_device") < seconds("torch_dpt")


def test_aggregator_that_says_nothing_is_an_error_that_names_it():
    @dataclass(frozen=True)
    class Silent(Aggregator[AggregatorState]):
        name = "silent"

        def start(self, layout, group, dtype, device):
            return AggregatorState(group, layout)

        def aggregate(self, state, gradient, phase=unmarked):
            return gradient

    with pytest.raises(StudyError, match=r"'silent' cannot be predicted: .* does not define `stages`"):
        Silent().stages(NETWORK, 2)


@pytest.mark.parametrize("world_size", [1, 2, 5])
@pytest.mark.parametrize(("make", "pairs"), [
    # Every rank writes a row of its own, reads it, reads the one buffer, sends its own to all others.
    (rows_to_host, lambda n: {(rank, n): rank for rank in range(n)}),
    (rows_from_host, lambda n: {(n, rank): rank for rank in range(n)}),
    (copies_to_ranks, lambda n: {(n, rank): 0 for rank in range(n)}),
    (gathered_by_all, lambda n: {(a, b): a for a in range(n) for b in range(n) if a != b}),
])  # fmt: skip
def test_every_rank_moves_its_row_of_host_memory(world_size, make, pairs):
    exchange = make(1000, world_size)
    (step,) = exchange.schedule.steps
    bounds = exchange.schedule.bounds(exchange.num_elements)
    moved = {(one.source, one.target): (bounds[one.start], bounds[one.stop]) for one in step}
    assert moved == {pair: (1000 * row, 1000 * (row + 1)) for pair, row in pairs(world_size).items()}

"""What holds for every preset: the mean arrives, replicas stay equal, what is sent is stated."""

import inspect
import math

import pytest
import torch

from scaling import conformance
from scaling.aggregators.presets.caffe import Caffe, CaffeNccl, layer_spans
from scaling.aggregators.presets.mxnet import MxnetLocal
from scaling.aggregators.presets.tensorflow import TensorFlow, TfReplicated
from scaling.aggregators.presets.tf_spec import TfSpec
from scaling.aggregators.presets.torch7 import TorchCpu, TorchDpt
from scaling.aggregators.registry import BUILT_IN, create
from scaling.bucket import BucketLayout
from scaling.collectives.schedule import chunk_bounds
from scaling.collectives.tree import caffe_pairs
from scaling.collectives.verify import verify
from scaling.errors import ScheduleError, StudyError
from tests.aggregators.conftest import NETWORK, of_states, one_step

PRESETS = [name for name, target in BUILT_IN.items() if ".presets." in target]
WORLD_SIZES = (1, 2, 3, 4, 7)


def by_label(name, parameters):
    return pytest.param(create(name, parameters), id=create(name, parameters).label())


OTHERS = [by_label(*variant) for variant in [
    ("caffe", {"gpus_per_board": 3}), ("cntk", {"threshold": "mean"}),
    ("cntk_32bit", {"transport": "device"}), ("mxnet_local", {"num_threads": 1}),
    *(("tf_spec", {"spec": spec}) for spec in ("xring", "psgpu", "nccl", "collective#2:2:xring")),
    ("tf_spec", {"spec": "pscpu#3:100:psgpu:1k:nccl/rechd"}),
]]  # fmt: skip


def test_all_systems_are_there():
    assert PRESETS == [
        "caffe", "caffe_nccl", "cntk", "cntk_32bit", "mxnet_device", "mxnet_local", "mxnet_tree",
        "tensorflow", "tf_replicated", "tf_spec", "torch_dpt", "torch_cpu",
    ]  # fmt: skip


@pytest.mark.parametrize("name", PRESETS)
def test_module_names_its_source_and_what_differs_and_the_site_of_small_tensors_is_the_classs(name):
    aggregator = create(name)
    text = inspect.getmodule(type(aggregator)).__doc__
    assert f"`{name}`" in text
    for needed in ("Reference", "Differences", "Bytes", "Error", "mean", "sum"):
        assert needed in text
    assert aggregator.site(NETWORK) == aggregator.update_site


@pytest.mark.sampled(4)
@pytest.mark.parametrize("world_size", WORLD_SIZES)
@pytest.mark.parametrize("aggregator", [by_label(name, {}) for name in PRESETS] + OTHERS)
def test_contract_holds_on_tensors_of_a_network(aggregator, world_size):
    """Tensors of every tier; the aggregators of the contract's own suite see smaller ones."""
    conformance.check(aggregator, conformance.Case(world_size, torch.float32, NETWORK.shapes, ("normal",)))


@pytest.mark.parametrize("aggregator", [other for other in OTHERS if not other.values[0].lossy])
def test_other_parameters_keep_the_contract(aggregator):
    conformance.check_drawn(aggregator, world_size=3, num_examples=3)


def to_and_from_host(num_messages):
    """Every rank's gradient goes to the host, in so many messages, and the parameters come back."""
    return lambda rank, world_size, size: ((size, num_messages), (size, 1))


def by_rank_0(rank, world_size, size):
    """It gets every other rank's gradient, and sends to all."""
    down = (world_size - 1) * (rank == 0)
    return (size * (rank != 0), int(rank != 0)), (down * size, down)


@pytest.mark.parametrize("world_size", WORLD_SIZES)
class TestOneHost:
    @pytest.mark.parametrize(("aggregator", "traffic"), [
        (TorchDpt(), by_rank_0), (TorchCpu(), to_and_from_host(1)),
        (TensorFlow(), to_and_from_host(6)),  # a variable each; one of the seven is empty
        (MxnetLocal(), to_and_from_host(6)),
    ])  # fmt: skip
    def test_traffic_is_that_of_the_system(self, aggregator, traffic, world_size):
        size = 4 * NETWORK.num_elements
        for rank, outcome in enumerate(one_step(aggregator, world_size, NETWORK)):
            assert (outcome.aggregate_traffic, outcome.distribute_traffic) == traffic(rank, world_size, size)

    @pytest.mark.parametrize("aggregator", [TensorFlow(), Caffe()])
    def test_rank_0_steps_everything(self, aggregator, world_size):
        outcomes = one_step(aggregator, world_size, NETWORK)
        assert [o.owned for o in outcomes] == [[(0, NETWORK.num_elements)]] + [[]] * (world_size - 1)
        assert [o.mean is not None for o in outcomes] == [True] + [False] * (world_size - 1)

    def test_dpt_sums_one_rank_after_the_other(self, world_size):
        schedule = TorchDpt().schedule(world_size, NETWORK)
        assert len(schedule.steps) == 2 * (world_size - 1)
        assert [step[0].source for step in schedule.steps[: world_size - 1]] == [*range(1, world_size)]
        assert all(len(step) == 1 for step in schedule.steps)

    def test_on_torchs_cpu_every_rank_owns_its_share_summed_in_rank_order(self, world_size):
        bounds = chunk_bounds(NETWORK.num_elements, world_size)
        dpt = one_step(TorchDpt(), world_size, NETWORK)[0].mean
        for rank, outcome in enumerate(one_step(TorchCpu(), world_size, NETWORK)):
            ((start, stop),) = outcome.owned
            assert (start, stop) == (bounds[rank], bounds[rank + 1])
            assert torch.equal(outcome.mean[start:stop], dpt[start:stop])

    def test_towers_of_the_largest_variable_have_room_side_by_side(self, world_size):
        rooms = of_states(TensorFlow(), NETWORK, world_size, lambda state: state.concatenated.numel())
        assert rooms == [world_size * 257 * 263] + [0] * (world_size - 1)


def test_rank_without_elements_owns_nothing_and_returns_none():
    outcomes = one_step(TorchCpu(), 4, BucketLayout.of([("bias", (2,))]))
    assert [outcome.owned for outcome in outcomes] == [[], [(0, 1)], [], [(1, 2)]]
    assert [outcome.mean is None for outcome in outcomes] == [True, False, True, False]


@pytest.mark.parametrize("world_size", range(1, 9))
class TestReplicated:
    def test_schedule_delivers_the_sum_of_an_empty_bucket_too(self, world_size):
        for layout in (NETWORK, BucketLayout.of([("a", (0,)), ("b", (3, 0))])):
            verify(TfReplicated().schedule(world_size, layout))

    def test_owners_take_turns_and_send_what_they_own_to_all(self, world_size):
        owned = [0] * world_size
        for i, shape in enumerate(NETWORK.shapes):
            owned[i % world_size] += 4 * math.prod(shape)
        for rank, outcome in enumerate(one_step(TfReplicated(), world_size, NETWORK)):
            others = sum(owned) - owned[rank]
            assert outcome.num_bytes == others + (world_size - 1) * owned[rank]
            owners = [o for o in range(world_size) if owned[o]]
            messages = len([o for o in owners if o != rank]) + (world_size - 1) * (rank in owners)
            assert outcome.aggregate_traffic[1] == messages


WORLD_SIZES_PRESETS_CAFFE = (1, 2, 3, 4, 6, 7, 8)


def pairs_of(aggregator, world_size, layout):
    """(parent, child) of every transfer up."""
    steps = aggregator.schedule(world_size, layout).steps
    return [(t.target, t.source) for step in steps for t in step if t.operation == "add"]


class TestTree:
    @pytest.mark.parametrize("gpus_per_board", [1, 2, 3, 4])
    @pytest.mark.parametrize("world_size", range(1, 9))
    def test_every_board_size_delivers_the_sum(self, world_size, gpus_per_board):
        verify(Caffe(gpus_per_board=gpus_per_board).schedule(world_size, NETWORK))

    def test_two_boards_of_two_pair_as_on_the_papers_machine_and_boards_before_neighbours(self):
        assert pairs_of(Caffe(gpus_per_board=2), 4, NETWORK) == [(0, 1), (2, 3), (0, 2)]
        assert set(pairs_of(Caffe(gpus_per_board=3), 6, NETWORK)) == {(0, 1), (3, 4), (0, 2), (3, 5), (0, 3)}
        assert set(pairs_of(Caffe(), 6, NETWORK)) == {(0, 1), (2, 3), (4, 5), (0, 2), (0, 4)}

    @pytest.mark.parametrize("world_size", WORLD_SIZES_PRESETS_CAFFE)
    def test_ranks_send_up_once_and_down_to_each_child(self, world_size):
        pairs = caffe_pairs([*range(world_size)], [[False] * world_size] * world_size)
        num_bytes = 4 * NETWORK.num_elements
        outcomes = one_step(Caffe(), world_size, NETWORK)
        for rank, outcome in enumerate(outcomes):
            num_children = sum(parent == rank for parent, _ in pairs)
            assert outcome.aggregate_traffic == (num_bytes * (rank != 0), int(rank != 0))
            assert outcome.distribute_traffic == (num_bytes * num_children, num_children)
        assert sum(outcome.num_bytes for outcome in outcomes) == 2 * (world_size - 1) * num_bytes


class TestLayers:
    @pytest.mark.parametrize(("tensors", "spans"), [
        ([("0.weight", (1,)), ("0.bias", (2,)), ("2.body.1.weight", (3,)), ("2.body.1.bias", (4,)),
          ("3.weight", (5,))], [(0, 3), (3, 10), (10, 15)]),
        ([("scale", (2, 3)), ("shift", (4,))], [(0, 10)]),  # parameters of the network itself
        ([("a.weight", (0, 3)), ("a.bias", (2,)), ("b.weight", (0,))], [(0, 2), (2, 2)]),
    ])  # fmt: skip
    def test_weight_and_bias_of_a_module_are_one_layer(self, tensors, spans):
        assert layer_spans(BucketLayout.of(tensors)) == spans

    def test_last_layer_is_reduced_first(self):
        layout = BucketLayout.of([("a.weight", (2,)), ("b.weight", (3,)), ("b.bias", (1,))])
        assert of_states(CaffeNccl(), layout, 1, lambda state: state.layers) == [[(2, 6), (0, 2)]]

    @pytest.mark.parametrize("world_size", WORLD_SIZES_PRESETS_CAFFE)
    def test_traffic_is_an_all_reduce_a_layer(self, world_size):
        sizes = [stop - start for start, stop in layer_spans(NETWORK) if start < stop]
        assert sizes == [684, 3774, math.prod((257, 263)) + 257]
        rounds = 2 * (world_size - 1)
        num_bytes = sum(4 * size * rounds // world_size for size in sizes)
        for outcome in one_step(CaffeNccl(), world_size, NETWORK):
            assert outcome.aggregate_traffic == (num_bytes, rounds * len(sizes))
            assert outcome.distribute_traffic == (0, 0)


class TestTraffic:
    @pytest.mark.parametrize("world_size", WORLD_SIZES[1:])
    def test_small_tensors_go_to_the_host_and_the_large_one_round_the_ring(self, world_size):
        outcomes = one_step(TfSpec(), world_size, NETWORK)
        ringed = 257 * 263
        host = 2 * 4 * (NETWORK.num_elements - ringed)  # there and back
        sent = sum(outcome.num_bytes for outcome in outcomes)
        assert sent == world_size * host + 2 * (world_size - 1) * 4 * ringed
        for outcome in outcomes:
            share = 2 * (world_size - 1) / world_size * 4 * ringed
            assert outcome.num_bytes - host == pytest.approx(share, abs=4 * 64 * 2 * world_size)
            assert outcome.aggregate_traffic[1] == 4 + 2 * (world_size - 1)  # two tiers of pscpu, one ring

    @pytest.mark.parametrize("spec", ["xring", "xring#2", "rechd"])
    @pytest.mark.parametrize("world_size", [2, 4])
    def test_ring_and_halving_send_twice_the_bucket_to_each_but_one(self, world_size, spec):
        sent = sum(outcome.num_bytes for outcome in one_step(TfSpec(spec), world_size, NETWORK))
        assert sent == 2 * (world_size - 1) * 4 * NETWORK.num_elements

    @pytest.mark.parametrize("spec", ["nccl", "collective", "collective#2", "nccl/xring"])
    @pytest.mark.parametrize("world_size", WORLD_SIZES[1:])
    def test_native_tiers_are_an_all_reduce_a_tensor(self, world_size, spec):
        rounds = 2 * (world_size - 1)
        sizes = [4 * math.prod(shape) for shape in NETWORK.shapes if math.prod(shape)]
        for outcome in one_step(TfSpec(spec), world_size, NETWORK):
            num_bytes = sum(size * rounds // world_size for size in sizes)
            assert outcome.aggregate_traffic == (num_bytes, rounds * len(sizes))

    @pytest.mark.parametrize("world_size", WORLD_SIZES[1:])
    def test_owners_of_psgpu_take_turns(self, world_size):
        sizes = [4 * math.prod(shape) for shape in NETWORK.shapes if math.prod(shape)]
        owned = [sum(sizes[rank::world_size]) for rank in range(world_size)]
        for rank, outcome in enumerate(one_step(TfSpec("psgpu"), world_size, NETWORK)):
            assert outcome.num_bytes == sum(sizes) - owned[rank] + (world_size - 1) * owned[rank]

    @pytest.mark.parametrize("spec", ["pscpu", "pscpu#4", "pscpu/pscpu"])
    def test_host_tier_is_one_message_each_way(self, spec):
        for outcome in one_step(TfSpec(spec), 3, NETWORK):
            assert outcome.aggregate_traffic == (2 * 4 * NETWORK.num_elements, 2)


class TestLimits:
    @pytest.mark.parametrize(("spec", "world_size", "said"), [
        *(("pscpu:100:rechd", n, rf"rechd runs on 2, 4, 8, \.\.\. ranks, not on {n}") for n in (3, 6, 7)),
        *((spec, 2, f"{spec} needs 3 ranks at least, not 2") for spec in ("xring#3", "psgpu#3")),
    ])  # fmt: skip
    def test_numbers_of_ranks_that_a_spec_cannot_have_are_refused(self, spec, world_size, said):
        with pytest.raises(ScheduleError, match=said):
            one_step(TfSpec(spec), world_size, NETWORK)

    @pytest.mark.parametrize("spec", ["xring#3", "psgpu#3", "rechd", "pscpu#3"])
    def test_alone_everything_is_allowed_and_nothing_sent(self, spec):
        assert one_step(TfSpec(spec), 1, NETWORK)[0].num_bytes == 0

    def test_tier_that_no_tensor_is_of_does_not_matter(self):
        layout = BucketLayout.of([("bias", (10,))])
        assert one_step(TfSpec("pscpu:1k:rechd"), 3, layout)[0].num_bytes == 2 * 40

    def test_bad_spec_is_refused_where_the_study_is_read(self):
        with pytest.raises(StudyError, match=r"aggregator 'tf_spec': parameter spec: .*algorithm 'xrings'"):
            create("tf_spec", {"spec": "pscpu:2k:xrings"})


def test_notes_say_how_many_tensors_each_tier_has_and_that_ranks_count_as_one_nodes():
    for spec, note in (
        ("", "tensors: 4 by pscpu, 1 by pscpu, 1 by xring"),
        ("nccl/xring", "nccl/xring: all ranks count as one node's"),
    ):
        notes = of_states(TfSpec(spec) if spec else TfSpec(), NETWORK, 2, lambda state: state.notes)[0]
        assert note in notes[: None if spec else 1]

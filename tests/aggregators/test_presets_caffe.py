"""Caffe's tree and its all-reduce a layer."""

import math

import pytest
import torch

from scaling.aggregators.presets.caffe import Caffe, CaffeNccl, layer_spans
from scaling.bucket import BucketLayout
from scaling.collectives.tree import caffe_pairs
from scaling.collectives.verify import verify
from scaling.process_group import run_in_process

WORLD_SIZES = (1, 2, 3, 4, 6, 7, 8)


def pairs_of(aggregator, world_size, layout):
    """(parent, child) of every transfer up."""
    steps = aggregator.schedule(world_size, layout).steps
    return [(t.target, t.source) for step in steps for t in step if t.operation == "add"]


class TestTree:
    @pytest.mark.parametrize("gpus_per_board", [1, 2, 3, 4])
    @pytest.mark.parametrize("world_size", range(1, 9))
    def test_every_board_size_delivers_the_sum(self, world_size, gpus_per_board, network):
        verify(Caffe(gpus_per_board=gpus_per_board).schedule(world_size, network))

    def test_two_boards_of_two_pair_as_on_the_papers_machine(self, network):
        assert pairs_of(Caffe(gpus_per_board=2), 4, network) == [(0, 1), (2, 3), (0, 2)]

    def test_boards_pair_before_neighbours(self, network):
        assert set(pairs_of(Caffe(gpus_per_board=3), 6, network)) == {(0, 1), (3, 4), (0, 2), (3, 5), (0, 3)}
        assert set(pairs_of(Caffe(), 6, network)) == {(0, 1), (2, 3), (4, 5), (0, 2), (0, 4)}

    @pytest.mark.parametrize("world_size", WORLD_SIZES)
    def test_ranks_send_up_once_and_down_to_each_child(self, world_size, network, step):
        pairs = caffe_pairs([*range(world_size)], [[False] * world_size] * world_size)
        num_bytes = 4 * network.num_elements
        outcomes = step(Caffe(), world_size, network)
        for rank, outcome in enumerate(outcomes):
            num_children = sum(parent == rank for parent, _ in pairs)
            assert outcome.aggregate_traffic == (num_bytes * (rank != 0), int(rank != 0))
            assert outcome.distribute_traffic == (num_bytes * num_children, num_children)
        assert sum(outcome.num_bytes for outcome in outcomes) == 2 * (world_size - 1) * num_bytes

    def test_root_alone_owns_all(self, network, step):
        owned = [outcome.owned for outcome in step(Caffe(), 4, network)]
        assert owned == [[(0, network.num_elements)], [], [], []]


class TestLayers:
    def test_weight_and_bias_of_a_module_are_one_layer(self):
        names = ("0.weight", "0.bias", "2.body.1.weight", "2.body.1.bias", "3.weight")
        layout = BucketLayout.of([(name, (size,)) for size, name in enumerate(names, 1)])
        assert layer_spans(layout) == [(0, 3), (3, 10), (10, 15)]

    def test_parameters_of_the_network_itself_are_one_layer(self):
        assert layer_spans(BucketLayout.of([("scale", (2, 3)), ("shift", (4,))])) == [(0, 10)]

    def test_empty_tensors_belong_to_their_layer(self):
        layout = BucketLayout.of([("a.weight", (0, 3)), ("a.bias", (2,)), ("b.weight", (0,))])
        assert layer_spans(layout) == [(0, 2), (2, 2)]

    def test_last_layer_is_reduced_first(self):
        layout = BucketLayout.of([("a.weight", (2,)), ("b.weight", (3,)), ("b.bias", (1,))])

        def layers(group):
            return CaffeNccl().start(layout, group, torch.float32, torch.device("cpu")).layers

        assert run_in_process(1, layers) == [[(2, 6), (0, 2)]]

    @pytest.mark.parametrize("world_size", WORLD_SIZES)
    def test_traffic_is_an_all_reduce_a_layer(self, world_size, network, step):
        sizes = [stop - start for start, stop in layer_spans(network) if start < stop]
        assert sizes == [684, 3774, math.prod((257, 263)) + 257]
        rounds = 2 * (world_size - 1)
        num_bytes = sum(4 * size * rounds // world_size for size in sizes)
        for outcome in step(CaffeNccl(), world_size, network):
            assert outcome.aggregate_traffic == (num_bytes, rounds * len(sizes))
            assert outcome.distribute_traffic == (0, 0)

"""FCN-R as published, and the multi-layer perceptron."""

import itertools
import math

import pytest
import torch
from torch import nn

from scaling.workloads.base import DataShape
from scaling.workloads.networks import build_fcn_r, build_fcn_s4, build_mlp, fcn_r, fcn_s, fcn_s4
from scaling.workloads.registry import build_module

MNIST = DataShape((1, 28, 28), 10)


def linears(network):
    return [layer for layer in network.modules() if isinstance(layer, nn.Linear)]


@pytest.fixture(scope="module")
def network():
    torch.manual_seed(0)
    return build_fcn_r(MNIST)


class TestFcnR:
    def test_has_the_published_number_of_parameters(self, network):
        assert sum(p.numel() for p in network.parameters()) == 14_205_962
        assert fcn_r.shape == MNIST
        assert fcn_r.dataset == "mnist"

    def test_layers_are_784_2048_4096_1024_10_with_sigmoids_between(self, network):
        assert [(x.in_features, x.out_features) for x in linears(network)] == [
            (784, 2048), (2048, 4096), (4096, 1024), (1024, 10),
        ]  # fmt: skip
        kinds = [type(layer) for layer in network]
        assert kinds == [nn.Flatten, nn.Linear, *[nn.Sigmoid, nn.Linear] * 3]

    def test_weights_are_xavier_uniform_with_gain_4_but_for_the_last_layer(self, network):
        for layer, gain in zip(linears(network), (4, 4, 4, 1), strict=True):
            bound = gain * math.sqrt(6 / (layer.in_features + layer.out_features))
            largest = layer.weight.abs().max().item()
            assert 0.99 * bound < largest <= bound * (1 + 1e-6)
            assert not layer.bias.any()

    def test_gives_logits_for_images(self, network):
        with torch.no_grad():
            logits = network(torch.rand(2, 1, 28, 28))
        assert logits.shape == (2, 10)
        assert logits.isfinite().all()


class TestFcnS:
    @pytest.mark.parametrize(("model", "num_hidden"), [(fcn_s, 3), (fcn_s4, 4)])
    def test_layers_of_2048_lie_between_26752_inputs_and_as_many_classes(self, model, num_hidden):
        with torch.device("meta"):
            network = build_module(model, model.shape)
        widths = [26752, *[2048] * num_hidden, 26752]
        assert [(x.in_features, x.out_features) for x in linears(network)] == list(itertools.pairwise(widths))
        kinds = [type(layer) for layer in network]
        assert kinds == [nn.Flatten, nn.Linear, *[nn.Sigmoid, nn.Linear] * num_hidden]

    def test_weights_are_those_of_fcn_r(self):
        first, *_, last = linears(build_fcn_s4(DataShape((100,), 50)))
        for layer, gain in ((first, 4), (last, 1)):
            bound = gain * math.sqrt(6 / (layer.in_features + layer.out_features))
            assert 0.99 * bound < layer.weight.abs().max().item() <= bound * (1 + 1e-6)


class TestMlp:
    @pytest.mark.parametrize("hidden", [[], [5], [16, 8, 4]], ids=str)
    @pytest.mark.parametrize("shape", [DataShape((1, 8, 8), 10), DataShape((3,), 2)], ids=str)
    def test_layers_follow_the_shape_and_the_parameter(self, shape, hidden):
        network = build_mlp(shape, hidden)
        widths = [math.prod(shape.input_shape), *hidden, shape.num_classes]
        assert [x.in_features for x in linears(network)] == widths[:-1]
        assert [x.out_features for x in linears(network)] == widths[1:]
        assert sum(isinstance(layer, nn.ReLU) for layer in network) == len(hidden)
        assert network(torch.rand(4, *shape.input_shape)).shape == (4, shape.num_classes)

    def test_last_layer_gives_logits_without_an_activation(self):
        assert isinstance(list(build_mlp(MNIST, [3]))[-1], nn.Linear)

    def test_weights_come_from_the_global_generator(self):
        def weights(seed):
            torch.manual_seed(seed)
            return torch.cat([p.flatten() for p in build_mlp(DataShape((4,), 3), [5]).parameters()])

        assert torch.equal(weights(1), weights(1))
        assert not torch.equal(weights(1), weights(2))

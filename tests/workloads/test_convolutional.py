"""AlexNet-R and AlexNet-S: what they are made of, and how large."""

import pytest
import torch
from torch import nn

from scaling.workloads.base import DataShape
from scaling.workloads.convolutional import alexnet_r, alexnet_s, build_alexnet_r, build_alexnet_s
from scaling.workloads.registry import build_module, create_model


def num_parameters(network):
    return sum(p.numel() for p in network.parameters())


@pytest.mark.parametrize(("ceil_pooling", "expected"), [(False, 85_098), (True, 89_578)])
def test_has_the_published_number_of_parameters(ceil_pooling, expected):
    model = create_model("alexnet-r", {"ceil_pooling": ceil_pooling})
    assert num_parameters(build_module(model, model.shape)) == expected


def test_floor_pooling_is_the_default():
    assert num_parameters(build_alexnet_r(alexnet_r.shape)) == 85_098


def test_layers_are_those_of_the_paper():
    kinds = [type(layer) for layer in build_alexnet_r(alexnet_r.shape)]
    assert kinds == [
        nn.Conv2d, nn.MaxPool2d, nn.ReLU, nn.Conv2d, nn.ReLU, nn.MaxPool2d, nn.Conv2d, nn.ReLU, nn.AvgPool2d,
        nn.Flatten, nn.Linear,
    ]  # fmt: skip


@pytest.mark.parametrize("ceil_pooling", [False, True])
@pytest.mark.parametrize("size", [(32, 32), (31, 40)], ids=str)
def test_forward_and_backward_reach_every_parameter(size, ceil_pooling):
    torch.manual_seed(0)
    network = build_alexnet_r(DataShape((3, *size), 10), ceil_pooling)
    loss = nn.functional.cross_entropy(network(torch.randn(3, 3, *size)), torch.tensor([0, 5, 9]))
    loss.backward()
    assert loss.isfinite()
    assert all(p.grad.isfinite().all() and p.grad.abs().sum() > 0 for p in network.parameters())


@pytest.mark.parametrize(("ceil_pooling", "size"), [(False, 3), (True, 4)])
def test_pooling_leaves_3_or_4_of_32(ceil_pooling, size):
    features = build_alexnet_r(alexnet_r.shape, ceil_pooling)[:-2]
    assert features(torch.randn(1, 3, 32, 32)).shape == (1, 64, size, size)


class TestAlexnetS:
    def test_images_shrink_to_55_27_13_and_6(self):
        with torch.device("meta"):
            network = build_alexnet_s(alexnet_s.shape)
            values, sizes = torch.empty(1, 3, 224, 224), []
            for layer in network:
                values = layer(values)
                if isinstance(layer, nn.Conv2d | nn.MaxPool2d):
                    sizes.append(tuple(values.shape[1:]))
        assert sizes == [
            (96, 55, 55), (96, 27, 27), (256, 27, 27), (256, 13, 13),
            (384, 13, 13), (384, 13, 13), (256, 13, 13), (256, 6, 6),
        ]  # fmt: skip

    def test_relu_stands_behind_every_layer_with_weights_but_the_last(self):
        with torch.device("meta"):
            layers = list(build_alexnet_s(alexnet_s.shape))
        weighted = [index for index, layer in enumerate(layers) if isinstance(layer, nn.Conv2d | nn.Linear)]
        assert len(weighted) == 8
        assert all(isinstance(layers[index + 1], nn.ReLU) for index in weighted[:-1])
        assert weighted[-1] == len(layers) - 1
        assert all(layer.groups == 1 for layer in layers if isinstance(layer, nn.Conv2d))

"""AlexNet-R: what it is made of, and how large."""

import pytest
import torch
from torch import nn

from scaling.workloads.base import DataShape
from scaling.workloads.convolutional import alexnet_r, build_alexnet_r
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

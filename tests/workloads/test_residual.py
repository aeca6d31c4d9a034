"""ResNet-56 and ResNet-50: what they are made of, and how large."""

import pytest
import torch
from torch import nn

from scaling.workloads.base import DataShape
from scaling.workloads.residual import (
    Bottleneck,
    ResidualBlock,
    build_resnet_50,
    build_resnet_56,
    resnet_50,
    resnet_56,
)


@pytest.fixture(scope="module")
def network():
    torch.manual_seed(0)
    return build_resnet_56(resnet_56.shape)


def of_kind(network, kind):
    return [layer for layer in network.modules() if isinstance(layer, kind)]


class TestSize:
    def test_has_853018_parameters_of_which_4064_normalise(self, network):
        assert sum(p.numel() for p in network.parameters()) == 853_018
        normalising = sum(p.numel() for layer in of_kind(network, nn.BatchNorm2d) for p in layer.parameters())
        assert 853_018 - normalising == 848_954

    def test_has_56_layers_with_weights(self, network):
        assert len(of_kind(network, nn.Conv2d)) == 55
        assert len(of_kind(network, nn.Linear)) == 1

    def test_stages_have_nine_blocks_of_16_32_and_64_channels(self, network):
        widths = [block.body[0].out_channels for block in of_kind(network, ResidualBlock)]
        strides = [block.body[0].stride[0] for block in of_kind(network, ResidualBlock)]
        assert widths == [16] * 9 + [32] * 9 + [64] * 9
        assert strides == [1] * 9 + ([2] + [1] * 8) * 2

    def test_convolutions_have_no_bias(self, network):
        assert all(layer.bias is None for layer in of_kind(network, nn.Conv2d))


class TestBlock:
    def test_one_relu_inside_a_block_and_none_after_the_sum(self, network):
        assert len(of_kind(network, nn.ReLU)) == 1 + 27
        block = ResidualBlock(4, 4, 1).eval()
        for parameter in block.parameters():
            nn.init.zeros_(parameter)
        inputs = torch.randn(2, 4, 6, 6)
        assert torch.equal(block(inputs), inputs)  # negative ones too

    def test_shortcut_leaves_out_every_other_row_and_adds_channels_of_zeros(self):
        block = ResidualBlock(4, 8, 2).eval()
        for parameter in block.parameters():
            nn.init.zeros_(parameter)
        inputs = torch.randn(2, 4, 6, 6)
        outputs = block(inputs)
        assert torch.equal(outputs[:, :4], inputs[:, :, ::2, ::2])
        assert not outputs[:, 4:].any()


class TestTraining:
    def test_forward_and_backward_reach_every_parameter(self, network):
        logits = network(torch.randn(4, 3, 32, 32))
        loss = nn.functional.cross_entropy(logits, torch.tensor([0, 5, 9, 1]))
        loss.backward()
        assert logits.shape == (4, 10)
        assert loss.isfinite()
        assert all(p.grad.isfinite().all() and p.grad.abs().sum() > 0 for p in network.parameters())

    def test_weights_come_from_the_global_generator_with_the_variance_of_he(self, network):
        torch.manual_seed(0)
        again = build_resnet_56(resnet_56.shape)
        first, other = (of_kind(one, nn.Conv2d)[-1].weight for one in (network, again))
        assert torch.equal(first, other)
        assert first.std().item() == pytest.approx((2 / (9 * 64)) ** 0.5, rel=0.05)
        assert not of_kind(network, nn.Linear)[0].bias.any()


class TestResnet50:
    @pytest.fixture(scope="class")
    @staticmethod
    def large():
        with torch.device("meta"):
            return build_resnet_50(resnet_50.shape)

    def test_has_50_layers_with_weights_and_four_in_shortcuts(self, large):
        assert len(of_kind(large, nn.Conv2d)) == 49 + 4
        assert len(of_kind(large, nn.BatchNorm2d)) == 49 + 4
        assert len(of_kind(large, nn.Linear)) == 1
        assert all(layer.bias is None for layer in of_kind(large, nn.Conv2d))

    def test_stages_halve_the_image_and_double_the_channels(self, large):
        values, shapes = torch.empty(1, 3, 224, 224, device="meta"), []
        for layer in large:
            values = layer(values)
            if isinstance(layer, nn.MaxPool2d | Bottleneck):
                shapes.append(tuple(values.shape[1:]))
        stages = [(256, 56, 56)] * 3 + [(512, 28, 28)] * 4 + [(1024, 14, 14)] * 6 + [(2048, 7, 7)] * 3
        assert shapes == [(64, 56, 56), *stages]

    def test_block_that_keeps_the_shape_adds_its_input_and_then_takes_relu(self):
        block = Bottleneck(16, 4, 1).eval()
        for parameter in block.parameters():
            nn.init.zeros_(parameter)
        inputs = torch.randn(2, 16, 6, 6)
        assert torch.equal(block(inputs), inputs.relu())

    @pytest.mark.parametrize(("inputs", "stride"), [(8, 1), (16, 2)])
    def test_block_that_changes_the_shape_has_weights_in_its_shortcut(self, inputs, stride):
        block = Bottleneck(inputs, 4, stride)
        assert [type(layer) for layer in block.shortcut] == [nn.Conv2d, nn.BatchNorm2d]
        assert block(torch.randn(2, inputs, 6, 6)).shape == (2, 16, 6 // stride, 6 // stride)

    def test_forward_and_backward_reach_every_parameter(self):
        torch.manual_seed(0)
        network = build_resnet_50(DataShape((3, 32, 32), 5))
        nn.functional.cross_entropy(network(torch.randn(4, 3, 32, 32)), torch.arange(4)).backward()
        assert all(p.grad.isfinite().all() and p.grad.abs().sum() > 0 for p in network.parameters())

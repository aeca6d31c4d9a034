"""The built-in networks: what they are made of, their weights, and that texts see no later token."""

import itertools
import math

import pytest
import torch
from torch import nn

from scaling.errors import StudyError
from scaling.training.replica import FlatReplica
from scaling.workloads import residual
from scaling.workloads.base import DataShape
from scaling.workloads.convolutional import alexnet_r, alexnet_s, build_alexnet_r, build_alexnet_s
from scaling.workloads.networks import build_mlp, fcn_r, fcn_s, fcn_s4
from scaling.workloads.recurrent import LanguageModel, build_lstm
from scaling.workloads.registry import build_module, create_dataset, create_model, resolve_shape
from scaling.workloads.residual import Bottleneck, ResidualBlock, build_resnet_50, build_resnet_56

MNIST = DataShape((1, 28, 28), 10)


def of_kind(network, kind=nn.Linear):
    return [layer for layer in network.modules() if isinstance(layer, kind)]


class TestFcn:
    @pytest.mark.parametrize(("model", "widths"), [
        (fcn_r, [784, 2048, 4096, 1024, 10]),
        (fcn_s, [26752, *[2048] * 3, 26752]),
        (fcn_s4, [26752, *[2048] * 4, 26752]),
    ])  # fmt: skip
    def test_layers_are_those_of_the_papers_with_sigmoids_between(self, model, widths):
        with torch.device("meta"):
            network = build_module(model, model.shape)
        assert [(x.in_features, x.out_features) for x in of_kind(network)] == list(itertools.pairwise(widths))
        kinds = [type(layer) for layer in network]
        assert kinds == [nn.Flatten, nn.Linear, *[nn.Sigmoid, nn.Linear] * (len(widths) - 2)]

    @pytest.mark.parametrize(
        ("build", "shape", "n"), [(fcn_r.build, MNIST, 3), (fcn_s4.build, DataShape((100,), 50), 4)]
    )
    def test_weights_are_xavier_uniform_with_gain_4_but_for_the_last_layer(self, build, shape, n):
        torch.manual_seed(0)
        for layer, gain in zip(of_kind(build(shape)), (*[4] * n, 1), strict=True):
            bound = gain * math.sqrt(6 / (layer.in_features + layer.out_features))
            assert 0.99 * bound < layer.weight.abs().max().item() <= bound * (1 + 1e-6)
            assert not layer.bias.any()


class TestMlp:
    @pytest.mark.parametrize("hidden", [[], [5], [16, 8, 4]], ids=str)
    @pytest.mark.parametrize("shape", [DataShape((1, 8, 8), 10), DataShape((3,), 2)], ids=str)
    def test_layers_follow_the_shape_and_the_parameter(self, shape, hidden):
        network = build_mlp(shape, hidden)
        widths = [math.prod(shape.input_shape), *hidden, shape.num_classes]
        assert [x.in_features for x in of_kind(network)] == widths[:-1]
        assert [x.out_features for x in of_kind(network)] == widths[1:]
        kinds = [nn.Flatten, *[nn.Linear, nn.ReLU] * len(hidden), nn.Linear]
        assert [type(layer) for layer in network] == kinds
        assert network(torch.rand(4, *shape.input_shape)).shape == (4, shape.num_classes)

    def test_weights_come_from_the_global_generator(self):
        def weights(seed):
            torch.manual_seed(seed)
            return torch.cat([p.flatten() for p in build_mlp(DataShape((4,), 3), [5]).parameters()])

        assert torch.equal(weights(1), weights(1))
        assert not torch.equal(weights(1), weights(2))


def num_parameters(network):
    return sum(p.numel() for p in network.parameters())


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


@pytest.mark.parametrize(("ceil_pooling", "parameters", "size"), [(False, 85_098, 3), (True, 89_578, 4)])
def test_pooling_leaves_3_or_4_of_32_and_the_published_number_of_parameters(ceil_pooling, parameters, size):
    model = create_model("alexnet-r", {"ceil_pooling": ceil_pooling})
    network = build_module(model, model.shape)
    assert network[:-2](torch.randn(1, 3, 32, 32)).shape == (1, 64, size, size)
    assert num_parameters(network) == parameters


def test_images_shrink_in_alexnet_s_and_relu_stands_behind_every_layer_with_weights_but_the_last():
    sizes = []
    with torch.device("meta"):
        layers, values = list(build_alexnet_s(alexnet_s.shape)), torch.empty(1, 3, 224, 224)
    for layer in layers:
        values = layer(values)
        if isinstance(layer, nn.Conv2d | nn.MaxPool2d):
            sizes.append(tuple(values.shape[1:]))
    assert sizes == [
        (96, 55, 55), (96, 27, 27), (256, 27, 27), (256, 13, 13),
        (384, 13, 13), (384, 13, 13), (256, 13, 13), (256, 6, 6),
    ]  # fmt: skip
    weighted = [index for index, layer in enumerate(layers) if isinstance(layer, nn.Conv2d | nn.Linear)]
    assert (len(weighted), weighted[-1]) == (8, len(layers) - 1)
    assert all(isinstance(layers[index + 1], nn.ReLU) for index in weighted[:-1])
    assert all(layer.groups == 1 for layer in layers if isinstance(layer, nn.Conv2d))


@pytest.fixture(scope="module")
def network_of_residual():
    torch.manual_seed(0)
    return build_resnet_56(residual.resnet_56.shape)


def test_resnet_56_has_56_layers_with_weights_in_three_stages_of_nine_blocks(network_of_residual):
    assert [layer.bias for layer in of_kind(network_of_residual, nn.Conv2d)] == [None] * 55
    assert len(of_kind(network_of_residual, nn.Linear)) == 1
    normalising = (layer.parameters() for layer in of_kind(network_of_residual, nn.BatchNorm2d))
    assert sum(p.numel() for parameters in normalising for p in parameters) == 4064
    widths = [block.body[0].out_channels for block in of_kind(network_of_residual, ResidualBlock)]
    strides = [block.body[0].stride[0] for block in of_kind(network_of_residual, ResidualBlock)]
    assert (widths, strides) == ([16] * 9 + [32] * 9 + [64] * 9, [1] * 9 + ([2] + [1] * 8) * 2)


class TestBlock:
    def test_one_relu_inside_a_block_and_none_after_the_sum(self, network_of_residual):
        assert len(of_kind(network_of_residual, nn.ReLU)) == 1 + 27
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


def test_weights_come_from_the_global_generator_with_the_variance_of_he(network_of_residual):
    torch.manual_seed(0)
    again = build_resnet_56(residual.resnet_56.shape)
    first, other = (of_kind(one, nn.Conv2d)[-1].weight for one in (network_of_residual, again))
    assert torch.equal(first, other)
    assert first.std().item() == pytest.approx((2 / (9 * 64)) ** 0.5, rel=0.05)
    assert not of_kind(network_of_residual, nn.Linear)[0].bias.any()


class TestResnet50:
    def test_50_layers_have_weights_and_four_shortcuts_and_stages_halve_the_image(self):
        with torch.device("meta"):
            large = build_resnet_50(residual.resnet_50.shape)
        assert (len(of_kind(large, nn.Conv2d)), len(of_kind(large, nn.BatchNorm2d))) == (49 + 4, 49 + 4)
        assert len(of_kind(large, nn.Linear)) == 1
        assert all(layer.bias is None for layer in of_kind(large, nn.Conv2d))
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


@pytest.fixture
def small():
    torch.manual_seed(0)
    return LanguageModel(vocabulary=20, width=4, num_layers=2)


def test_second_bias_of_each_gate_is_zero_and_frozen():
    torch.manual_seed(0)
    network = build_lstm(DataShape((3,), 10, tokens=True))
    frozen = {name: p for name, p in network.named_parameters() if not p.requires_grad}
    assert set(frozen) == {"lstm.bias_hh_l0", "lstm.bias_hh_l1"}
    assert all(p.shape == (4 * 256,) and not p.any() for p in frozen.values())
    assert all(p.any() for name, p in network.named_parameters() if name not in frozen)


def test_replica_trains_all_but_the_frozen(small):
    replica = FlatReplica(small)
    assert replica.layout.num_elements == sum(p.numel() for p in small.parameters()) - 2 * 16
    tokens = torch.randint(20, (3, 6))
    loss = replica.forward(tokens[:, :-1], tokens[:, 1:])
    assert loss.shape == ()
    replica.backward(loss)
    assert all(p.grad is None for name, p in small.named_parameters() if "bias_hh" in name)
    assert replica.gradient.isfinite().all()


def test_layers_follow_the_equations_of_an_lstm(small):
    tokens = torch.randint(20, (3, 5))
    values = small.embedding(tokens)
    for layer in range(2):
        names = (f"{name}_l{layer}" for name in ("weight_ih", "weight_hh", "bias_ih"))
        inputs, recurrent, bias = (getattr(small.lstm, name) for name in names)
        output, cell, outputs = torch.zeros(3, 4), torch.zeros(3, 4), []
        for step in range(5):
            gates = values[:, step] @ inputs.T + output @ recurrent.T + bias
            take, forget, new, give = gates.chunk(4, dim=1)
            cell = forget.sigmoid() * cell + take.sigmoid() * new.tanh()
            output = give.sigmoid() * cell.tanh()
            outputs.append(output)
        values = torch.stack(outputs, dim=1)
    torch.testing.assert_close(small(tokens), small.linear(values))


def made(dataset="synthetic", **parameters):
    model = create_model("gpt", parameters)
    return build_module(model, resolve_shape(model, create_dataset(dataset)))


@pytest.mark.parametrize(("size", "parameters"), [
    # 4 matrices of attention in a block, 8 of its layers, their biases, two norms: 12 w^2 + 13 w
    ({"size": "nano", "vocab": 100, "context": 16}, (100 + 16) * 48 + 3 * (12 * 48**2 + 13 * 48) + 2 * 48),
    ({"size": "medium"}, 354_823_168),  # the published number
])  # fmt: skip
def test_number_of_parameters_follows_from_layers_width_vocabulary_and_context(size, parameters):
    with torch.device("meta"):
        assert num_parameters(made(**size)) == parameters


def test_logits_of_a_token_do_not_depend_on_later_ones(small):
    torch.manual_seed(0)
    for module, within in ((small, 0.0), (made(size="nano", context=8, vocab=20), 1e-5)):
        tokens = torch.randint(20, (2, 8))
        changed = tokens.clone()
        changed[:, 5:] = (changed[:, 5:] + 1) % 20
        logits, others = module(tokens), module(changed)
        assert logits.shape == (2, 8, 20)
        torch.testing.assert_close(logits[:, :5], others[:, :5], rtol=within, atol=within)
        assert not torch.allclose(logits[:, 5:], others[:, 5:])


def test_texts_begin_at_the_loss_of_a_guess(small):
    torch.manual_seed(0)
    for module, vocabulary, within in ((small, 20, 0.1), (made(size="nano"), 256, 0.02)):
        tokens = torch.randint(vocabulary, (64, 9))
        loss = nn.functional.cross_entropy(module(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())
        assert loss.item() == pytest.approx(math.log(vocabulary), rel=within)


def test_vocabulary_has_to_be_that_of_the_text():
    with pytest.raises(StudyError, match=r"50257 classes, the data set has .* 256 classes"):
        made("text")
    with torch.device("meta"):
        assert made("text", size="small", vocab=256, context=32).tokens.weight.shape == (256, 768)

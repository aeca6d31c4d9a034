"""A model in two flat buffers: the same model, the same gradient.

And how it computes: the order of channels, and how many operations.
"""

import functools

import pytest
import torch
from torch import nn

from scaling.process_group import InProcessGroup, run_in_process
from scaling.training.captured import CapturedStep
from scaling.training.compute import model_flops, with_channels_last
from scaling.training.optimizers import SgdSettings
from scaling.training.replica import FlatReplica, add_up, not_finite
from scaling.training.step import TrainingStep
from scaling.workloads.base import cross_entropy
from scaling.workloads.registry import build_module, create_dataset, create_model, resolve_shape
from tests.training import small
from tests.training.small import batch_of, flat, perceptron

LAST = torch.channels_last


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(144, 5))


def images(num_samples: int = 2, side: int = 8) -> torch.Tensor:
    return torch.randn(num_samples, 3, side, side, generator=torch.Generator().manual_seed(1))


def formats(module: nn.Sequential, inputs: torch.Tensor) -> list[bool]:
    """Whether the images that reach each layer and leave the second one lie channels last."""
    seen: list[torch.Tensor] = []
    for layer in (module[0], module[1], module[2]):
        layer.register_forward_pre_hook(lambda _, given: seen.append(given[0]))
    module(inputs)
    return [value.is_contiguous(memory_format=LAST) and not value.is_contiguous() for value in seen]


@pytest.mark.parametrize("is_training", [True, False])
def test_activations_lie_channels_last_and_without_it_they_do_not(is_training):
    assert formats(with_channels_last(network()).train(is_training), images()) == [True, True, True]
    assert formats(network().train(is_training), images()) == [False, False, False]


def test_images_of_one_channel_are_convolved_channels_last_too():
    """They lie in both orders at once: which one a convolution hands on is a matter of strides."""
    convolution = with_channels_last(nn.Conv2d(1, 4, 3))
    output = convolution(torch.zeros(2, 1, 8, 8))
    assert output.is_contiguous(memory_format=LAST)
    assert not output.is_contiguous()


@pytest.mark.parametrize("inputs", [torch.zeros(2, 3), torch.zeros(2, 3, 4, 4, dtype=torch.int64)])
def test_what_is_no_image_passes_as_it_is(inputs):
    seen = []
    module = with_channels_last(nn.Identity())
    module.register_forward_hook(lambda _module, _given, output: seen.append(output))
    module(inputs)
    assert seen[0] is inputs


def test_parameters_and_gradients_stay_views_of_the_flat_buffers():
    replica = FlatReplica(with_channels_last(network()))
    replica.backward(replica.forward(images(), torch.tensor([0, 1])))
    start, end = replica.gradient.data_ptr(), replica.gradient.data_ptr() + 4 * replica.gradient.numel()
    for parameter in replica.trainable:
        assert parameter.is_contiguous()
        assert parameter.grad is not None
        assert parameter.grad.is_contiguous()
        assert start <= parameter.grad.data_ptr() < end


def test_gradient_of_resnet_is_the_same_to_rounding():
    model = create_model("resnet-56", {})
    shape = resolve_shape(model, create_dataset("synthetic", {}))

    def gradient(change) -> torch.Tensor:
        torch.manual_seed(0)
        replica = FlatReplica(change(build_module(model, shape)))
        replica.backward(replica.forward(images(4, 32), torch.arange(4)))
        return replica.gradient

    first, second = gradient(lambda module: module), gradient(with_channels_last)
    assert (first - second).norm() <= 1e-3 * first.norm()
    assert first.norm() > 0


@pytest.mark.gpu
@pytest.mark.parametrize("layered", [False, True])
def test_captured_training_is_that_of_the_contiguous_eager_step(layered, monkeypatch):
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    settings = SgdSettings(learning_rate=0.05, momentum=0.9)
    inputs, targets = images().cuda(), torch.tensor([0, 1], device="cuda")

    def losses(step: TrainingStep) -> list[float]:
        return [step(inputs, targets).item() for _ in range(3)]

    def captured(group: InProcessGroup) -> list[float]:
        make = functools.partial(small.layered, bucket_mb=0.001) if layered else small.eager
        chosen = (with_channels_last(network()).cuda(), "all_reduce" if layered else "none", settings, group)
        return losses(CapturedStep(make(*chosen, capturable=True), inputs, targets, group))

    def eager(group: InProcessGroup) -> list[float]:
        return losses(small.eager(network().cuda(), "none", settings, group))

    assert run_in_process(1, captured)[0] == pytest.approx(run_in_process(1, eager)[0], rel=1e-4)


def count(module, inputs, targets):
    return model_flops(module, cross_entropy, inputs, targets)


def test_linear_layers_take_two_forward_and_four_backward_a_weight_and_sample():
    with torch.device("meta"):
        module = nn.Sequential(nn.Linear(10, 20, bias=False), nn.ReLU(), nn.Linear(20, 5, bias=False))
    inputs, targets = torch.zeros(8, 10), torch.zeros(8, dtype=torch.int64)
    # The first layer's input needs no gradient.
    assert count(module, inputs, targets) == 8 * (4 * 10 * 20 + 6 * 20 * 5)


def test_gpt_takes_six_a_weight_and_token_and_its_attention():
    model = create_model("gpt", {"size": "nano"})
    with torch.device("meta"):
        module = build_module(model, resolve_shape(model, create_dataset("synthetic")))
    tokens = torch.zeros(2, 64, dtype=torch.int64)
    weights = sum(
        one.numel() for name, one in module.named_parameters() if one.dim() == 2 and "positions" not in name
    )
    found = count(module, tokens, tokens)
    assert 6 * weights * 128 < found < 6 * weights * 128 * 1.5


def test_a_model_that_wants_values_has_no_count():
    class Choosing(nn.Module):
        def forward(self, inputs):
            return inputs if float(inputs.sum()) > 0 else -inputs

    assert count(Choosing(), torch.zeros(2, 3), torch.zeros(2, dtype=torch.int64)) is None


def test_operations_grow_with_the_batch():
    with torch.device("meta"):
        module = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten(), nn.Linear(4 * 6 * 6, 2))
    one, four = (count(module, images(size), torch.zeros(size, dtype=torch.int64)) for size in (1, 4))
    assert four == 4 * one


flat_network = functools.partial(perceptron, 6, 5, 3)


BATCH = batch_of(1, 7, 6, 3)


def test_parameters_keep_their_values_and_order():
    replica = FlatReplica(flat_network())
    assert torch.equal(replica.parameters, flat(flat_network()))
    assert replica.layout.names == ("0.weight", "0.bias", "2.weight", "2.bias")
    assert replica.layout.shapes == ((5, 6), (5,), (3, 5), (3,))
    assert replica.layout.offsets == (0, 30, 35, 50)
    # Writing to the flat buffer changes the module, and the other way round.
    with torch.no_grad():
        replica.parameters.fill_(0.5)
        assert all(bool((parameter == 0.5).all()) for parameter in replica.module.parameters())
        replica.module[0].bias.fill_(9)
    assert torch.equal(replica.parameters[30:35], torch.full((5,), 9.0))


def test_gradient_is_autograds_own_bit_for_bit_and_stays_in_the_flat_buffer():
    replica, reference = FlatReplica(flat_network()), flat_network()
    expected_loss = nn.functional.cross_entropy(reference(BATCH[0]), BATCH[1])
    expected = torch.autograd.grad(expected_loss, list(reference.parameters()))
    for _ in range(2):  # what was there before is forgotten
        loss = replica.forward(*BATCH)
        replica.backward(loss)
        assert loss.item() == expected_loss.item()
        assert torch.equal(replica.gradient, torch.cat([one.flatten() for one in expected]))
        replica.gradient.fill_(1e9)
    for parameter, view in zip(replica.trainable, replica.layout.views(replica.gradient), strict=True):
        assert parameter.grad.data_ptr() == view.data_ptr()
        assert parameter.grad.shape == view.shape == parameter.shape


def test_frozen_parameters_are_left_out():
    module = flat_network()
    frozen = module[0].weight.requires_grad_(False).clone()
    replica = FlatReplica(module)
    assert replica.layout.names == ("0.bias", "2.weight", "2.bias")
    with torch.no_grad():
        replica.parameters.zero_()
    assert torch.equal(module[0].weight, frozen)


def test_parameter_used_twice_lies_in_the_buffer_once():
    layer = nn.Linear(6, 6, bias=False)
    replica = FlatReplica(nn.Sequential(layer, layer))
    assert replica.layout.num_elements == 36
    replica.backward(replica.forward(*BATCH))
    assert bool(replica.gradient.abs().sum() > 0)


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_what_is_not_finite_after_a_step_is_named(bad):
    replica = FlatReplica(nn.Linear(3, 2))
    one = torch.ones(())
    assert not_finite(one, replica) == not_finite(None, replica) == []
    assert not_finite(one * bad, replica) == ["loss"]
    replica.trainable[0].grad.view(-1)[0] = bad
    assert not_finite(one, replica) == ["gradients"]
    replica.trainable[0].grad = None
    replica.trainable[1].data[1] = bad
    assert not_finite(one, replica) == ["parameters"]


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_loss_that_was_not_finite_in_one_step_alone_is_named(bad):
    replica, losses = FlatReplica(nn.Linear(3, 2)), None
    for loss in (1.0, bad, 2.0, -bad, 3.0):
        losses = add_up(losses, torch.tensor(loss))
    assert not_finite(losses, replica) == ["loss"]
    assert add_up(add_up(None, torch.tensor(1.0)), torch.tensor(2.0)).item() == 3.0

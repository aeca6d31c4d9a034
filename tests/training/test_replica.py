"""A model in two flat buffers: the same model, the same gradient."""

import copy
import functools

import pytest
import torch
from torch import nn

from scaling.training.replica import FlatReplica, add_up, not_finite
from tests.training.small import batch_of, perceptron

network = functools.partial(perceptron, 6, 5, 3)


@pytest.fixture
def batch():
    return batch_of(1, 7, 6, 3)


def flat(tensors) -> torch.Tensor:
    return torch.cat([tensor.detach().reshape(-1) for tensor in tensors])


def test_parameters_keep_their_values_and_order():
    module = network()
    before = flat(module.parameters()).clone()
    replica = FlatReplica(module)
    assert torch.equal(replica.parameters, before)
    assert replica.layout.names == ("0.weight", "0.bias", "2.weight", "2.bias")
    assert replica.layout.shapes == ((5, 6), (5,), (3, 5), (3,))
    assert replica.layout.offsets == (0, 30, 35, 50)


def test_writing_to_the_flat_buffer_changes_the_module_and_the_other_way_round():
    replica = FlatReplica(network())
    with torch.no_grad():
        replica.parameters.fill_(0.5)
        assert all(bool((parameter == 0.5).all()) for parameter in replica.module.parameters())
        replica.module[0].bias.fill_(9)
    assert torch.equal(replica.parameters[30:35], torch.full((5,), 9.0))


def test_gradient_is_autograds_own_bit_for_bit(batch):
    module = network()
    reference = copy.deepcopy(module)
    replica = FlatReplica(module)
    loss = replica.forward(*batch)
    replica.backward(loss)
    expected_loss = nn.functional.cross_entropy(reference(batch[0]), batch[1])
    expected = torch.autograd.grad(expected_loss, list(reference.parameters()))
    assert loss.item() == expected_loss.item()
    assert torch.equal(replica.gradient, flat(expected))


def test_backward_forgets_the_gradient_before(batch):
    replica = FlatReplica(network())
    replica.backward(replica.forward(*batch))
    first = replica.gradient.clone()
    replica.gradient.fill_(1e9)
    replica.backward(replica.forward(*batch))
    assert torch.equal(replica.gradient, first)


def test_gradients_stay_views_of_the_flat_buffer_after_a_step(batch):
    replica = FlatReplica(network())
    for _ in range(2):
        replica.backward(replica.forward(*batch))
    for parameter, view in zip(replica.trainable, replica.layout.views(replica.gradient), strict=True):
        assert parameter.grad.data_ptr() == view.data_ptr()
        assert parameter.grad.shape == view.shape == parameter.shape


def test_frozen_parameters_are_left_out(batch):
    module = network()
    module[0].weight.requires_grad_(False)
    frozen = module[0].weight.clone()
    replica = FlatReplica(module)
    assert replica.layout.names == ("0.bias", "2.weight", "2.bias")
    with torch.no_grad():
        replica.parameters.zero_()
    assert torch.equal(module[0].weight, frozen)


def test_parameter_used_twice_lies_in_the_buffer_once(batch):
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = nn.Linear(3, 3, bias=False)
            self.second = self.first

        def forward(self, inputs):
            return self.second(self.first(inputs.flatten(1)[:, :3]))

    replica = FlatReplica(Tied())
    assert replica.layout.num_elements == 9
    replica.backward(replica.forward(*batch))
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

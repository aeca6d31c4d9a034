"""A model in two flat buffers: the same model, the same gradient."""

import copy

import pytest
import torch
from torch import nn

from scaling.training.replica import FlatReplica


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 3))


@pytest.fixture
def batch() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    return torch.randn(7, 2, 3, generator=generator), torch.randint(3, (7,), generator=generator)


def flat(tensors) -> torch.Tensor:
    return torch.cat([tensor.detach().reshape(-1) for tensor in tensors])


def test_parameters_keep_their_values_and_order():
    module = network()
    before = flat(module.parameters()).clone()
    replica = FlatReplica(module)
    assert torch.equal(replica.parameters, before)
    assert replica.layout.names == ("1.weight", "1.bias", "3.weight", "3.bias")
    assert replica.layout.shapes == ((5, 6), (5,), (3, 5), (3,))
    assert replica.layout.offsets == (0, 30, 35, 50)


def test_writing_to_the_flat_buffer_changes_the_module(batch):
    replica = FlatReplica(network())
    with torch.no_grad():
        replica.parameters.fill_(0.5)
    assert all(bool((parameter == 0.5).all()) for parameter in replica.module.parameters())
    assert torch.equal(replica.module[3].bias, torch.full((3,), 0.5))


def test_writing_to_the_module_changes_the_flat_buffer():
    replica = FlatReplica(network())
    with torch.no_grad():
        replica.module[1].bias.fill_(9)
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
    for parameter, view in zip(
        replica.module.parameters(), replica.layout.views(replica.gradient), strict=True
    ):
        assert parameter.grad.data_ptr() == view.data_ptr()
        assert parameter.grad.shape == view.shape == parameter.shape


def test_frozen_parameters_are_left_out(batch):
    module = network()
    module[1].weight.requires_grad_(False)
    frozen = module[1].weight.clone()
    replica = FlatReplica(module)
    assert replica.layout.names == ("1.bias", "3.weight", "3.bias")
    with torch.no_grad():
        replica.parameters.zero_()
    assert torch.equal(module[1].weight, frozen)


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

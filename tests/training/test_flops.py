"""Floating-point operations of a step, against counts by hand."""

import pytest
import torch
from torch import nn

from scaling.training.compute import model_flops
from scaling.workloads.base import cross_entropy
from scaling.workloads.registry import build_module, create_dataset, create_model, resolve_shape


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


@pytest.mark.parametrize("batch", [1, 4])
def test_operations_grow_with_the_batch(batch):
    with torch.device("meta"):
        module = nn.Conv2d(3, 4, 3)
        whole = nn.Sequential(module, nn.Flatten(), nn.Linear(4 * 6 * 6, 2))
    one, more = (
        count(whole, torch.zeros(size, 3, 8, 8), torch.zeros(size, dtype=torch.int64)) for size in (1, batch)
    )
    assert more == batch * one

"""The LSTM: one trainable bias a gate, the equations, and no look ahead."""

import pytest
import torch
from torch import nn

from scaling.training.replica import FlatReplica
from scaling.workloads.base import DataShape
from scaling.workloads.recurrent import LanguageModel, build_lstm, lstm


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


def test_with_both_biases_it_has_as_many_parameters_as_torchs():
    with torch.device("meta"):
        network = build_lstm(lstm.shape)
    assert sum(p.numel() for p in network.parameters()) == 6_182_672


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
        inputs, recurrent, bias = (
            getattr(small.lstm, f"{name}_l{layer}") for name in ("weight_ih", "weight_hh", "bias_ih")
        )
        output, cell, outputs = torch.zeros(3, 4), torch.zeros(3, 4), []
        for step in range(5):
            gates = values[:, step] @ inputs.T + output @ recurrent.T + bias
            take, forget, new, give = gates.chunk(4, dim=1)
            cell = forget.sigmoid() * cell + take.sigmoid() * new.tanh()
            output = give.sigmoid() * cell.tanh()
            outputs.append(output)
        values = torch.stack(outputs, dim=1)
    torch.testing.assert_close(small(tokens), small.linear(values))


def test_prediction_does_not_look_ahead(small):
    tokens = torch.randint(20, (2, 6))
    changed = tokens.clone()
    changed[:, 3] = (changed[:, 3] + 1) % 20
    before, after = small(tokens), small(changed)
    assert torch.equal(before[:, :3], after[:, :3])
    assert not torch.equal(before[:, 3:], after[:, 3:])


def test_loss_at_the_start_is_about_that_of_guessing(small):
    tokens = torch.randint(20, (64, 9))
    loss = nn.functional.cross_entropy(small(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())
    assert loss.item() == pytest.approx(torch.tensor(20.0).log().item(), abs=0.3)

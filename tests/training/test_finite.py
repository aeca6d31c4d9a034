"""What is NaN or infinite after a step is named."""

import pytest
import torch
from torch import nn

from scaling.training.replica import FlatReplica, add_up, not_finite


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_what_is_not_finite_is_named(bad):
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

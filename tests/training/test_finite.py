"""What is NaN or infinite after a step is named."""

import pytest
import torch
from torch import nn

from scaling.training.finite import not_finite
from scaling.training.replica import FlatReplica


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

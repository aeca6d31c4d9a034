"""Whether a step still computes with numbers: losses, gradients and parameters that are NaN or infinite.

To be asked outside of measured windows. A gradient that is not finite once leaves parameters that stay so,
and the last step tells of all before it; a loss need not, and is summed over the steps.
"""

from __future__ import annotations

import torch
from torch import Tensor

from scaling.training.replica import Replica


@torch.no_grad()
def add_up(total: Tensor | None, loss: Tensor) -> Tensor:
    """The sum of the losses so far, in place: not finite from the first one on that is not."""
    return loss.clone() if total is None else total.add_(loss)


@torch.no_grad()
def not_finite(loss: Tensor | None, replica: Replica) -> list[str]:
    """Which of "loss", "gradients", "parameters" are not finite on this rank; waits for the device.

    Args:
        loss: the sum over the steps; None before the first.
        replica: after them; a gradient that it no longer has counts as finite.
    """
    gradients = [parameter.grad for parameter in replica.trainable if parameter.grad is not None]
    values: dict[str, list[Tensor]] = {
        "loss": [] if loss is None else [loss],
        "gradients": gradients,
        "parameters": list(replica.trainable),
    }
    return [
        name
        for name, tensors in values.items()
        if not all(bool(tensor.isfinite().all()) for tensor in tensors)
    ]

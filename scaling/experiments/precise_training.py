"""A training step in float64, float32 or float16, so that only the precision differs.

Weights, activations and gradients are of the precision. In float16 the optimizer works on float32 copies of
the weights, and the loss is multiplied by a constant power of two before the backward pass, since small
gradients would be zero; the loss itself is computed in float32.

Reference: P. Micikevicius et al., "Mixed precision training", arXiv 1710.03740.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from scaling.workloads.base import cross_entropy

PRECISIONS = {"float64": torch.float64, "float32": torch.float32, "float16": torch.float16}

LOSS_SCALE = 1024.0


class PreciseTraining:
    """A network in training.

    Args:
        network: on its device; it is changed to the precision.
        precision: one of `PRECISIONS`.
        learning_rate: of Adam, whose other settings are torch's defaults.
    """

    def __init__(self, network: nn.Module, precision: str, learning_rate: float) -> None:
        self.network = network.to(PRECISIONS[precision])
        self._weights = list(network.parameters())
        self._is_half = precision == "float16"
        self._masters = (
            [weight.detach().float().requires_grad_() for weight in self._weights]
            if self._is_half
            else self._weights
        )
        self._optimizer = torch.optim.Adam(self._masters, lr=learning_rate, fused=True)

    def step(self, inputs: Tensor, targets: Tensor) -> Tensor:
        """One optimizer update; returns the loss, a scalar on the device."""
        self.network.zero_grad(set_to_none=True)
        logits = self.network(inputs)
        if not self._is_half:
            loss = cross_entropy(logits, targets)
            loss.backward()  # type: ignore[no-untyped-call]
            self._optimizer.step()
            return loss.detach()
        loss = cross_entropy(logits.float(), targets)
        (loss * LOSS_SCALE).backward()  # type: ignore[no-untyped-call]
        self._update_masters()
        return loss.detach()

    @torch.no_grad()
    def _update_masters(self) -> None:
        for weight, master in zip(self._weights, self._masters, strict=True):
            assert weight.grad is not None
            master.grad = weight.grad.float() / LOSS_SCALE
        self._optimizer.step()
        for weight, master in zip(self._weights, self._masters, strict=True):
            weight.copy_(master)


@torch.inference_mode()
def num_right(network: nn.Module, inputs: Tensor, targets: Tensor) -> Tensor:
    """How many answers are right: an int64 scalar on the device."""
    right: Tensor = (network(inputs).argmax(1) == targets).sum()
    return right

"""One rank's copy of a model, with parameters and gradients each in one flat buffer.

Flat buffers are what aggregators and update sites work on: one tensor to send, one to sum, one to step. The
module's parameters and their gradients are views into them, so nothing is packed or unpacked in a step. The
control arm takes the same path.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from scaling.bucket import BucketLayout


class Replica:
    """A model whose trainable parameters share one flat buffer, and their gradients another.

    Args:
        module: the model, on its device; its parameters are moved into the flat buffer.

    Attributes:
        module: the same module, its parameters now views.
        layout: names, shapes and offsets of the parameters.
        parameters: [num_elements] flat parameters.
        gradient: [num_elements] flat gradient, filled by backward.
    """

    def __init__(self, module: nn.Module) -> None:
        self.module = module
        trainable = [(name, p) for name, p in module.named_parameters() if p.requires_grad]
        self.layout = BucketLayout.of([(name, tuple(p.shape)) for name, p in trainable])
        self._trainable = [parameter for _, parameter in trainable]
        first = self._trainable[0]
        self.place_parameters(torch.empty(self.layout.num_elements, dtype=first.dtype, device=first.device))
        self.place_gradient(torch.zeros_like(self.parameters))

    def place_parameters(self, flat: Tensor) -> None:
        """Moves the parameters into `flat`: [num_elements], of their type and device."""
        self.parameters = flat
        with torch.no_grad():
            for parameter, values in zip(self._trainable, self.layout.views(flat), strict=True):
                values.copy_(parameter)
                parameter.data = values

    def place_gradient(self, flat: Tensor) -> None:
        """Has backward write the gradient into `flat`: [num_elements], of the parameters' type and device."""
        self.gradient = flat
        for parameter, gradient in zip(self._trainable, self.layout.views(flat), strict=True):
            parameter.grad = gradient

    def forward(self, inputs: Tensor, targets: Tensor) -> Tensor:
        """Mean cross-entropy over the batch, a scalar with its graph."""
        return nn.functional.cross_entropy(self.module(inputs), targets)

    def backward(self, loss: Tensor) -> None:
        """Fills `gradient` with the gradient of `loss`; what was in it is gone."""
        self.gradient.zero_()
        loss.backward()  # type: ignore[no-untyped-call]

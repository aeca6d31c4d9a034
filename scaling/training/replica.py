"""One rank's copy of a model; `FlatReplica` has parameters and gradients each in one flat buffer.

Flat buffers are what aggregators and update sites work on: one tensor to send, one to sum, one to step. The
module's parameters and their gradients are views into them, so nothing is packed or unpacked in a step. The
control arm takes the same path.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from scaling.bucket import BucketLayout
from scaling.workloads.base import Loss, cross_entropy


class Replica:
    """A model on its device, whose tensors lie where torch has put them.

    Args:
        module: the model.
        loss: what is minimized.

    Attributes:
        module, loss: the same.
        trainable: its parameters that have a gradient, in the module's order.
        layout: their names, shapes and offsets, as one bucket.
    """

    def __init__(self, module: nn.Module, loss: Loss = cross_entropy) -> None:
        self.module, self.loss = module, loss
        named = [(name, p) for name, p in module.named_parameters() if p.requires_grad]
        self.layout = BucketLayout.of([(name, tuple(p.shape)) for name, p in named])
        self.trainable = [parameter for _, parameter in named]

    def forward(self, inputs: Tensor, targets: Tensor) -> Tensor:
        """The loss, a scalar with its graph."""
        return self.loss(self.module(inputs), targets)

    def backward(self, loss: Tensor) -> None:
        """Gives every parameter the gradient of `loss`; what was there is gone."""
        for parameter in self.trainable:
            parameter.grad = None
        loss.backward()  # type: ignore[no-untyped-call]


class FlatReplica(Replica):
    """A model whose trainable parameters share one flat buffer, and their gradients another.

    Args:
        module: the model, on its device; its parameters are moved into the flat buffer.
        loss: what is minimized.

    Attributes:
        parameters: [num_elements] flat parameters.
        gradient: [num_elements] flat gradient, filled by backward.
    """

    def __init__(self, module: nn.Module, loss: Loss = cross_entropy) -> None:
        super().__init__(module, loss)
        first = self.trainable[0]
        self.place_parameters(torch.empty(self.layout.num_elements, dtype=first.dtype, device=first.device))
        self.place_gradient(torch.zeros_like(self.parameters))

    def place_parameters(self, flat: Tensor) -> None:
        """Moves the parameters into `flat`: [num_elements], of their type and device."""
        self.parameters = flat
        with torch.no_grad():
            for parameter, values in zip(self.trainable, self.layout.views(flat), strict=True):
                values.copy_(parameter)
                parameter.data = values

    def place_gradient(self, flat: Tensor) -> None:
        """Has backward write the gradient into `flat`: [num_elements], of the parameters' type and device."""
        self.gradient = flat
        for parameter, gradient in zip(self.trainable, self.layout.views(flat), strict=True):
            parameter.grad = gradient

    def backward(self, loss: Tensor) -> None:
        """Fills `gradient` with the gradient of `loss`; what was in it is gone."""
        self.gradient.zero_()
        loss.backward()  # type: ignore[no-untyped-call]

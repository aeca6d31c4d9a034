"""Convolutional networks with activations in channels-last order: the channels of a pixel are side by side.

1. The module's input, [N, C, H, W], is copied into that order in every forward pass: of training, of a
   captured step and of evaluation.
2. Convolutions, normalisations and pointwise operations hand that order on, and so do their gradients.

Parameters and gradients stay views of flat buffers, in the usual order: a convolution reorders its weight
itself, in every pass, which is small compared with the activations.

Reference: "Channels Last Memory Format in PyTorch",
docs.pytorch.org/tutorials/intermediate/memory_format_tutorial.html.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn


def with_channels_last(module: nn.Module) -> nn.Module:
    """The same module, which from now on takes its images, [N, C, H, W], in channels-last order.

    Args:
        module: changed: it gets a hook on its inputs. Its parameters and their order in memory stay.
    """
    module.register_forward_pre_hook(_reordered)
    return module


def _reordered(_: nn.Module, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple(_channels_last(value) for value in inputs)


def _channels_last(value: Any) -> Any:
    if not isinstance(value, Tensor) or value.dim() != 4 or not value.is_floating_point():
        return value
    # Not `contiguous`: images of one channel are in both orders, and would keep the strides of the usual one.
    return value.to(memory_format=torch.channels_last)

"""What is changed about the activations of a network: checkpointing, and the channels-last order.

Checkpointing: a layer keeps its input alone, and is computed again in the backward pass. Reference: T. Chen
et al., "Training deep nets with sublinear memory cost", arXiv 1604.06174; torch.utils.checkpoint.

Channels last: in convolutional networks the channels of a pixel are side by side.

1. The module's input, [N, C, H, W], is copied into that order in every forward pass: of training, of a
   captured step and of evaluation.
2. Convolutions, normalisations and pointwise operations hand that order on, and so do their gradients.

Parameters and gradients stay views of flat buffers, in the usual order: a convolution reorders its weight
itself, in every pass, which is small compared with the activations.

Reference: "Channels Last Memory Format in PyTorch",
docs.pytorch.org/tutorials/intermediate/memory_format_tutorial.html.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint


def checkpointed_layers(module: nn.Module) -> list[nn.Module]:
    """The layers that are computed again: blocks of several layers in the outermost lists and sequences."""
    if isinstance(module, nn.ModuleList | nn.Sequential):
        return [layer for layer in module if any(True for _ in layer.children())]
    return [layer for child in module.children() for layer in checkpointed_layers(child)]


def with_checkpointing(module: nn.Module) -> nn.Module:
    """The same module, whose layers are computed again in the backward pass; its parameters stay as they are.

    Args:
        module: changed; without dropout, whose random state is not put back.
    """
    for layer in checkpointed_layers(module):
        # The random state is left alone: it cannot be read while a CUDA graph is captured.
        layer.forward = functools.partial(
            checkpoint, layer.forward, use_reentrant=False, preserve_rng_state=False
        )
    return module


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

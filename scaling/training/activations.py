"""Activation checkpointing: a layer keeps its input alone, and is computed again in the backward pass.

Reference: T. Chen et al., "Training deep nets with sublinear memory cost", arXiv 1604.06174;
torch.utils.checkpoint.
"""

from __future__ import annotations

import functools

from torch import nn
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

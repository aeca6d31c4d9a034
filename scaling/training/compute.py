"""How a replica computes its gradient: precision, micro-batches, checkpointing, the order of channels.

Parameters, gradients and the optimizer's state are float32 in every precision: master weights. Parameters
stay in the usual order with channels last: a convolution reorders its weight itself, in every pass.

References: P. Micikevicius et al., "Mixed precision training", arXiv 1710.03740; T. Chen et al., "Training
deep nets with sublinear memory cost", arXiv 1604.06174; torch's documentation of torch.amp,
torch.utils.checkpoint, and "Channels Last Memory Format in PyTorch".
"""

from __future__ import annotations

import functools
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from scaling.workloads.base import Loss

AUTOCAST = {"bf16": torch.bfloat16, "fp16": torch.float16}
"""Precision -> what autocast computes in; the others are torch's own float32 and TF32."""


@dataclass(frozen=True)
class Compute:
    """`captured`: in a CUDA graph, in which autocast may not keep casts from pass to pass."""

    autocast: torch.dtype | None = None
    accumulate: int = 1
    captured: bool = False

    def casting(self, device_type: str) -> AbstractContextManager[object]:
        if self.autocast is None:
            return nullcontext()
        return torch.autocast(device_type, self.autocast, cache_enabled=not self.captured)

    @property
    def scales_loss(self) -> bool:
        """Whether small gradients would be lost in it: fp16 has 5 bits of exponent."""
        return self.autocast is torch.float16


FLOAT32 = Compute()


def model_flops(module: nn.Module, loss: Loss, inputs: Tensor, targets: Tensor) -> int | None:
    """Of a forward and a backward pass on torch's meta device; None where it needs values."""
    from torch.utils.flop_counter import FlopCounterMode

    try:
        with FlopCounterMode(display=False) as counter:
            meta_inputs, meta_targets = (torch.empty_like(one, device="meta") for one in (inputs, targets))
            loss(module(meta_inputs), meta_targets).backward()  # type: ignore[no-untyped-call]
    except Exception:  # noqa: BLE001 (of a user's model, which may want values)
        return None
    return int(counter.get_total_flops()) or None


def checkpointed_layers(module: nn.Module) -> list[nn.Module]:
    """The layers that are computed again: blocks of several layers in the outermost lists and sequences."""
    if isinstance(module, nn.ModuleList | nn.Sequential):
        return [layer for layer in module if any(True for _ in layer.children())]
    return [layer for child in module.children() for layer in checkpointed_layers(child)]


def with_checkpointing(module: nn.Module) -> nn.Module:
    """The same module. It has no dropout, whose random state is not put back."""
    for layer in checkpointed_layers(module):
        # The random state is left alone: it cannot be read while a CUDA graph is captured.
        layer.forward = functools.partial(
            checkpoint, layer.forward, use_reentrant=False, preserve_rng_state=False
        )
    return module


def with_channels_last(module: nn.Module) -> nn.Module:
    """The same module, which from now on takes its images, [N, C, H, W], in channels-last order."""
    module.register_forward_pre_hook(lambda _, inputs: tuple(map(_channels_last, inputs)))
    return module


def _channels_last(value: Any) -> Any:
    if not isinstance(value, Tensor) or value.dim() != 4 or not value.is_floating_point():
        return value
    # Not `contiguous`: images of one channel are in both orders, and would keep the strides of the usual one.
    return value.to(memory_format=torch.channels_last)

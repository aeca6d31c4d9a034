"""Floating-point operations of a step, as torch counts them: two for each product and its addition.

Counted are matrix products, convolutions and attention of one forward and one backward pass, from their
shapes alone: the model's own operations, without what activation checkpointing computes again.

Reference: torch.utils.flop_counter; A. Chowdhery et al., "PaLM: scaling language modeling with Pathways",
arXiv 2204.02311, appendix B (model FLOPs).
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from scaling.workloads.base import Loss


def model_flops(module: nn.Module, loss: Loss, inputs: Tensor, targets: Tensor) -> int | None:
    """Of a forward and a backward pass over that batch.

    Args:
        module: on torch's meta device, where nothing is computed.
        inputs, targets: of a batch; their shapes and dtypes alone are used.

    Returns:
        None where the module cannot be run without values.
    """
    from torch.utils.flop_counter import FlopCounterMode

    try:
        with FlopCounterMode(display=False) as counter:
            meta_inputs, meta_targets = (
                torch.empty_like(tensor, device="meta") for tensor in (inputs, targets)
            )
            loss(module(meta_inputs), meta_targets).backward()  # type: ignore[no-untyped-call]
    except Exception:  # noqa: BLE001 (of a user's model, which may want values)
        return None
    return int(counter.get_total_flops()) or None

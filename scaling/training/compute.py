"""How a replica computes its gradient: in which precision, and in how many micro-batches.

1. Parameters, their gradients and the optimizer's state are float32 in every precision: master weights.
2. Under bf16 and fp16 torch.autocast computes matrix products and convolutions in 16 bits, and what needs
   the range, such as the loss, in 32.
3. A batch is computed in `accumulate` micro-batches, one after the other, whose gradients add up. They are
   exchanged once, under or after the last one's backward pass.

Reference: P. Micikevicius et al., "Mixed precision training", arXiv 1710.03740; torch's documentation of
torch.amp.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from scaling.workloads.base import Loss

AUTOCAST = {"bf16": torch.bfloat16, "fp16": torch.float16}
"""Precision -> what autocast computes in; the others are torch's own float32 and TF32."""


@dataclass(frozen=True)
class Compute:
    """How forward and backward passes are computed.

    Attributes:
        captured: in a CUDA graph, in which autocast may not keep casts from pass to pass.
    """

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
"""The whole batch at once, in the model's own dtypes."""


def model_flops(module: nn.Module, loss: Loss, inputs: Tensor, targets: Tensor) -> int | None:
    """Of a forward and a backward pass over that batch.

    Args:
        module: on torch's meta device, where nothing is computed.

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

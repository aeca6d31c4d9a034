"""Top-k with error feedback (`scaling.codecs.top_k`) by a compressed all-gather.

Steps, bytes and error property: `scaling.aggregators.gathered`, with s = 8 k bytes. A residual, and with
`momentum_correction` a velocity; the law of residuals then holds with the velocity for the gradient.
References: the codec's module.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from scaling.aggregators.gathered import Gathered, GatheredState
from scaling.aggregators.own_momentum import check_momentum
from scaling.codecs.top_k import TopKCodec


@final
@dataclass(frozen=True)
class TopK(Gathered):
    """The largest values with their places, and error feedback.

    Attributes:
        density: the share of the bucket's elements that is sent.
        error_feedback: keep what is not sent for later steps; without it the training suffers.
        momentum_correction: Deep Gradient Compression's momentum; the optimizer's must then be 0. 0: none.
    """

    name = "top_k"

    density: float = 0.01
    error_feedback: bool = True
    momentum_correction: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_momentum(self.name, "momentum_correction", self.momentum_correction, may_be_zero=True)

    def codec(self) -> TopKCodec:
        """Of what goes to all."""
        return TopKCodec(self.density)

    def own_momentum(self) -> float:
        """As `momentum_correction` says."""
        return self.momentum_correction

    def feeds_back(self) -> bool:
        """As `error_feedback` says."""
        return self.error_feedback

    def error_bound(self, gradient: Tensor, world_size: int) -> Tensor | None:
        """Each value, which may not be sent, as a part of the mean; not known with momentum."""
        return None if self.momentum_correction else gradient.abs().div_(world_size)

    def wire_shape(self, num_elements: int) -> tuple[int, ...]:
        """Values and places."""
        return 2, self.codec().num_sent(num_elements)

    def bytes_moved(self, world_size: int) -> tuple[float, float]:
        """The residual, magnitudes, and some passes to choose; little comes back."""
        return 12.0, 0.5

    def encode(self, state: GatheredState, gradient: Tensor, wire: Tensor) -> None:
        """Sends the largest, and keeps the others."""
        values = self._values(state, gradient)
        places = self.codec().encode(values, wire)
        if state.residual.numel():
            state.residual.index_fill_(0, places, 0.0)
        if state.velocity.numel():
            state.velocity.index_fill_(0, places, 0.0)

    def _values(self, state: GatheredState, gradient: Tensor) -> Tensor:
        """[num_elements] float32: the gradient, or the velocity that it adds to; with the residual, in it."""
        if state.velocity.numel():
            gradient = state.velocity.mul_(self.own_momentum()).add_(gradient)
        if state.residual.numel():
            return state.residual.add_(gradient)
        return gradient.to(torch.float32)

    def decode(self, state: GatheredState) -> None:
        """Values at their places, which are watched: what is not finite is among the largest."""
        total = torch.zeros(state.layout.num_elements, device=state.result.device)
        for wire in state.incoming:
            self.codec().add_decoded(wire, total)
            values, places = self.codec().parts(wire)
            state.watch.note_at(places, values)
        torch.div(total, state.group.world_size, out=state.result)

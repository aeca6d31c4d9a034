"""Top-k with error feedback (`scaling.codecs.top_k`) by a compressed all-gather.

Steps, bytes and error property: `scaling.aggregators.gathered`, with s = 8 k bytes. A residual, and with
`momentum_correction` a velocity; the law of residuals then holds with the velocity for the gradient.
References: the codec's module.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, final

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
    encode_bytes_moved: ClassVar[float] = 12.0  # the residual, magnitudes, and some passes to choose
    decode_bytes_moved: ClassVar[float] = 0.5

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

    def wire_shape(self, num_elements: int) -> tuple[int, ...]:
        """Values and places."""
        return 2, self.codec().num_sent(num_elements)

    def encode(self, state: GatheredState, wire: Tensor) -> None:
        """Sends the largest, and keeps the others."""
        places = self.codec().encode(state.values, wire)
        if state.residual.numel():
            state.residual.copy_(state.values).index_fill_(0, places, 0.0)
        if state.velocity.numel():
            state.velocity.index_fill_(0, places, 0.0)

    def add_decoded(self, state: GatheredState, wire: Tensor) -> None:
        """Values at their places."""
        self.codec().add_decoded(wire, state.total)

    def _watch(self, state: GatheredState) -> None:
        """By the values that were sent: those that are not finite are the largest."""
        for rank in range(state.group.world_size):
            values, places = self.codec().parts(state.incoming[rank])
            state.watch.note_at(places, values)

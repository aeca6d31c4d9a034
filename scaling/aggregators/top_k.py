"""Top-k: the k values of largest magnitude with their places, and error feedback.

With v = gradient + residual, over the whole bucket:
1. choose the k = ceil(density N) elements of largest |v|;
2. on the wire go their values and their places, 32 bits each;
3. decoding gives the values at their places and 0 elsewhere;
4. new residual = v, with 0 where it was sent.

Deep Gradient Compression's momentum correction (`momentum_correction` m > 0) accumulates velocity instead:
u = m u + gradient, v = v + u; after step 2 both u and v are set to 0 where they were sent, so that old
momentum does not push further. The optimizer then needs a momentum of 0.

Steps, bytes per rank: those of the exchange (`scaling.aggregators.gathered`): places differ between ranks, so
all are gathered. Wire size of N elements: 8 k bytes. Error property: decoded + new residual = v, and
|residual|^2 <= (1 - k / N) |v|^2; with
`momentum_correction` the law of residuals holds with the velocity for the gradient.

Reference: S. U. Stich, J.-B. Cordonnier, M. Jaggi, "Sparsified SGD with Memory", NeurIPS 2018; Y. Lin, S.
Han, H. Mao, Y. Wang, W. J. Dally, "Deep Gradient Compression", ICLR 2018. Where we differ: k is exact, where
DGC finds a threshold from a sample; over the bucket, not by tensor; DGC's warm-up of the density and clipping
are left out.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, final

import torch
from torch import Tensor

from scaling.aggregators.gathered import Gathered, GatheredState
from scaling.aggregators.state import check_momentum
from scaling.bucket import BucketLayout
from scaling.codecs.base import WORD_BYTES, Codec
from scaling.errors import StudyError


@dataclass(frozen=True)
class TopKCodec(Codec):
    """The largest values and their places; `density` is the share of the elements that is sent."""

    name: ClassVar[str] = "top_k"

    density: float

    def __post_init__(self) -> None:
        if not 0 < self.density <= 1:
            raise StudyError(
                f"codec 'top_k': density: allowed is more than 0 and at most 1, got {self.density}"
            )

    def num_sent(self, num_elements: int) -> int:
        return min(num_elements, math.ceil(self.density * num_elements))

    def bucket_bytes(self, layout: BucketLayout) -> int:
        return 2 * WORD_BYTES * self.num_sent(layout.num_elements)

    def encode(self, values: Tensor, wire: Tensor) -> Tensor:
        """Writes values [n] float32, of which NaN counts as the largest, and places to `wire` [2, k] int32,
        as bits; returns the places [k] int64."""
        places = torch.topk(values.abs(), wire.shape[1], sorted=False).indices
        wire[0].view(torch.float32).copy_(values[places])
        wire[1].copy_(places)
        return places

    def add_decoded(self, wire: Tensor, total: Tensor) -> None:
        values, places = self.parts(wire)
        total.index_add_(0, places, values)

    def parts(self, wire: Tensor) -> tuple[Tensor, Tensor]:
        """Values [k] float32 and places [k] int32."""
        return wire[0].view(torch.float32), wire[1]


@final
@dataclass(frozen=True)
class TopK(Gathered):
    """Only the largest values, with their indices, are sent; error feedback holds the rest.

    `error_feedback`: keep what is not sent for later steps; without it the training suffers.
    `momentum_correction`: Deep Gradient Compression's momentum; the optimizer's must then be 0. 0: none."""

    name = "top_k"

    density: float = 0.01
    error_feedback: bool = True
    momentum_correction: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_momentum(self.name, "momentum_correction", self.momentum_correction, may_be_zero=True)

    def codec(self) -> TopKCodec:
        return TopKCodec(self.density)

    def own_momentum(self) -> float:
        return self.momentum_correction

    def feeds_back(self) -> bool:
        return self.error_feedback

    def error_bound(self, gradient: Tensor, world_size: int) -> Tensor | None:
        """Each value, which may not be sent, as a part of the mean; not known with momentum."""
        return None if self.momentum_correction else gradient.abs().div_(world_size)

    def wire_shape(self, num_elements: int) -> tuple[int, ...]:
        return 2, self.codec().num_sent(num_elements)

    def bytes_moved(self, world_size: int) -> tuple[float, float]:
        return 12.0, 0.5

    def encode(self, state: GatheredState, gradient: Tensor, wire: Tensor) -> None:
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

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
|residual|^2 <= (1 - k / N) |v|^2.

Reference: S. U. Stich, J.-B. Cordonnier, M. Jaggi, "Sparsified SGD with Memory", NeurIPS 2018; Y. Lin, S.
Han, H. Mao, Y. Wang, W. J. Dally, "Deep Gradient Compression", ICLR 2018. Where we differ: k is exact, where
DGC finds a threshold from a sample; over the bucket, not by tensor; DGC's warm-up of the density and clipping
are left out.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from scaling.bucket import BucketLayout
from scaling.codecs.base import WORD_BYTES, Codec
from scaling.errors import StudyError


@dataclass(frozen=True)
class TopKCodec(Codec):
    """The largest values and their places.

    Attributes:
        density: the share of the elements that is sent, more than 0 and at most 1.
    """

    name: ClassVar[str] = "top_k"

    density: float

    def __post_init__(self) -> None:
        if not 0 < self.density <= 1:
            raise StudyError(
                f"codec 'top_k': density: allowed is more than 0 and at most 1, got {self.density}"
            )

    def num_sent(self, num_elements: int) -> int:
        """k."""
        return min(num_elements, math.ceil(self.density * num_elements))

    def bucket_bytes(self, layout: BucketLayout) -> int:
        """Values and places."""
        return 2 * WORD_BYTES * self.num_sent(layout.num_elements)

    def encode(self, values: Tensor, wire: Tensor) -> Tensor:
        """Writes to `wire` [2, k] int32, as bits, values and places; returns the places [k] int64.

        Args:
            values: [n] float32; NaN counts as the largest.
            wire: of `num_sent(n)` columns.
        """
        places = torch.topk(values.abs(), wire.shape[1], sorted=False).indices
        wire[0].view(torch.float32).copy_(values[places])
        wire[1].copy_(places)
        return places

    def add_decoded(self, wire: Tensor, total: Tensor) -> None:
        """Adds what a wire stands for to `total` [n] float32."""
        values, places = self.parts(wire)
        total.index_add_(0, places, values)

    def parts(self, wire: Tensor) -> tuple[Tensor, Tensor]:
        """Values [k] float32 and places [k] int32."""
        return wire[0].view(torch.float32), wire[1]

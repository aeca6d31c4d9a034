"""Uniform random numbers that need no host: for stochastic rounding inside a CUDA graph.

Every element has a fixed random word; each step multiplies all of them by one odd word and adds another,
modulo 2**32 (multiply-shift hashing), and takes the upper 24 bits. The two words of a step come from a linear
congruential generator on the device, so a checkpoint holds those two numbers and nothing else.

Reference: M. Dietzfelbinger, T. Hagerup, J. Katajainen, M. Penttonen, "A reliable randomized algorithm for
the closest-pair problem", 1997 (multiply-shift); W. Press et al., "Numerical Recipes" (the generator's
constants).
"""

from __future__ import annotations

import torch
from torch import Tensor

_MULTIPLIER, _INCREMENT = 1664525, 1013904223
_UPPER_BITS = 24
_INT32 = torch.iinfo(torch.int32)


class Noise:
    """Uniform numbers in [0, 1) for `num_elements`, new ones at each call. `words`: [num_elements] int32,
    fixed; `drawn`: [2] int32, what decides the next numbers: the state to save."""

    def __init__(self, num_elements: int, seed: int, device: torch.device) -> None:
        generator = torch.Generator().manual_seed(seed)

        def words(count: int) -> Tensor:
            drawn = torch.randint(
                _INT32.min, _INT32.max, (count,), generator=generator, dtype=torch.int64
            )  # int32's own range cannot be drawn from
            return drawn.to(torch.int32).to(device)

        self.words = words(num_elements)
        self.drawn = words(2)

    def advance(self) -> None:
        self.drawn.mul_(_MULTIPLIER).add_(_INCREMENT)

    def uniform(self) -> Tensor:
        """[num_elements] float32, new."""
        self.advance()
        odd, offset = self.drawn[0] | 1, self.drawn[1]
        mixed = torch.mul(self.words, odd).add_(offset)
        upper = mixed.bitwise_right_shift_(32 - _UPPER_BITS).bitwise_and_((1 << _UPPER_BITS) - 1)
        return upper.to(torch.float32).mul_(2.0**-_UPPER_BITS)

"""Codes of 1, 2, 4 or 8 bits, several to a byte.

Byte b of B holds the codes of the elements b, b + B, b + 2B, ..., lowest bits first, so that neighbours in
memory go into neighbouring bytes and every operation runs over contiguous rows.
"""

from __future__ import annotations

import torch
from torch import Tensor

BITS_PER_BYTE = 8


def pack(codes: Tensor, bits: int) -> Tensor:
    """Codes [..., n] uint8 or bool, each below 2**bits -> bytes [..., n bits / 8], which is whole, uint8."""
    codes = codes.view(torch.uint8) if codes.dtype == torch.bool else codes
    per_byte = BITS_PER_BYTE // bits
    if per_byte == 1:
        return codes
    parts = codes.reshape(*codes.shape[:-1], per_byte, codes.shape[-1] // per_byte)
    # Distinct bits: the sum is their union.
    return (parts << _shifts(bits, codes.device)).sum(-2, dtype=torch.uint8)


def unpack(packed: Tensor, bits: int) -> Tensor:
    """The codes [..., n] uint8 that `pack` took."""
    per_byte = BITS_PER_BYTE // bits
    if per_byte == 1:
        return packed
    parts = (packed.unsqueeze(-2) >> _shifts(bits, packed.device)).bitwise_and_((1 << bits) - 1)
    return parts.reshape(*packed.shape[:-1], per_byte * packed.shape[-1])


def _shifts(bits: int, device: torch.device) -> Tensor:
    return torch.arange(0, BITS_PER_BYTE, bits, dtype=torch.uint8, device=device).unsqueeze(-1)

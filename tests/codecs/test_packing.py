"""Codes of a few bits in bytes: nothing is lost, and sizes are what they should be."""

import pytest
import torch

from scaling.codecs.chunks import pack, unpack


@pytest.mark.parametrize("bits", [1, 2, 4, 8])
@pytest.mark.parametrize("shape", [(0, 32), (1, 32), (3, 64), (2, 5, 96)])
def test_unpack_gives_what_pack_took_in_bits_eighths_of_the_bytes(bits, shape):
    codes = torch.randint(0, 2**bits, shape, dtype=torch.uint8, generator=torch.Generator().manual_seed(bits))
    packed = pack(codes, bits)
    assert packed.dtype == torch.uint8
    assert packed.shape == (*shape[:-1], shape[-1] * bits // 8)
    assert torch.equal(unpack(packed, bits), codes)


def test_booleans_are_codes_of_one_bit_and_byte_b_holds_every_bth_element():
    codes = torch.zeros(1, 32, dtype=torch.bool)
    codes[0, [0, 4, 5]] = True  # byte 0 of 4 holds elements 0, 4, 8, ...; byte 1 holds 1, 5, 9, ...
    assert pack(codes, 1).tolist() == [[0b11, 0b10, 0, 0]]

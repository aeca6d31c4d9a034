"""The size of an encoded matrix by formula: what codecs of one and two bits are tested against."""

import math

BITS_PER_WORD = 32


def wire_words(rows: int, columns: int, bits: int = 1) -> int:
    """32-bit words that an encoded matrix takes: 2 + ceil(rows bits / 32) a column."""
    return columns * (2 + math.ceil(rows * bits / BITS_PER_WORD))

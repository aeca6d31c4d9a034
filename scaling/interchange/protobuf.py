"""The few bits of the protocol-buffers wire format that a Chakra trace needs (protobuf.dev, "Encoding")."""

from __future__ import annotations

from collections.abc import Iterator

VARINT, LENGTH = 0, 2


def varint(number: int) -> bytes:
    """Seven bits a byte, the lowest first; the top bit says that more follow. For numbers of at least 0."""
    parts = []
    while True:
        number, low = number >> 7, number & 0x7F
        parts.append(low | (0x80 if number else 0))
        if not number:
            return bytes(parts)


def number_field(field: int, number: int) -> bytes:
    """An integer, bool or enum of at least 0."""
    return varint(field << 3 | VARINT) + varint(number)


def bytes_field(field: int, content: bytes) -> bytes:
    """A string, a message or packed numbers."""
    return varint(field << 3 | LENGTH) + varint(len(content)) + content


def text_field(field: int, text: str) -> bytes:
    """A string in UTF-8."""
    return bytes_field(field, text.encode())


def read_varint(content: bytes, at: int) -> tuple[int, int]:
    """The number at that position, and the position behind it."""
    number, shift = 0, 0
    while True:
        byte = content[at]
        number |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return number, at


def fields(content: bytes) -> Iterator[tuple[int, int | bytes]]:
    """(field number, value) of a message that has numbers, strings and messages alone."""
    at = 0
    while at < len(content):
        key, at = read_varint(content, at)
        value, at = read_varint(content, at)
        if key & 7 == VARINT:
            yield key >> 3, value
        else:
            yield key >> 3, content[at : at + value]
            at += value

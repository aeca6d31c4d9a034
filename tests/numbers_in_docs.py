"""What tests hold of the docs' sentences: their numbers and the order of these. The wording is free."""

import re

_NUMBER = re.compile(r"(?<![\w.-])\d[\d,]*(?:\.\d+)?%?(?![\w-])")


def numbers_of(text: str) -> list[str]:
    """The numbers of a text, as they are written; those within names, as in ResNet-56, are left out."""
    return [number.rstrip(",") for number in _NUMBER.findall(text)]


def holds_numbers(text: str, sentence: str) -> bool:
    """Whether the numbers of a sentence stand in a text one after the other, with no others between them."""
    expected, there = numbers_of(sentence), numbers_of(text)
    assert expected, f"no number in {sentence!r}"
    return any(there[at : at + len(expected)] == expected for at in range(len(there)))

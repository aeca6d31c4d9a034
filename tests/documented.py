"""Examples of the documents, for tests that run them as they stand there."""

import textwrap
from pathlib import Path

ROOT = Path(__file__).parents[1]


def example(page, word):
    """The one indented block of a page in docs with that word."""
    blocks = (ROOT / "docs" / page).read_text().split("\n\n")
    (block,) = [block for block in blocks if block.startswith("    ") and word in block]
    return textwrap.dedent(block)


def replaced(text, **values):
    """What a user changes in it: words, of which each must be there."""
    for old, new in values.items():
        assert old in text, f"{old!r} is not in the example"
        text = text.replace(old, str(new))
    return text

"""A report in one screen of a terminal: the answer, its table, what limits, how sure, what next."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Sequence
from itertools import zip_longest

from scaling.files.texts import NO_BREAK, folded
from scaling.report.answer import Answer
from scaling.report.tables import Table

WIDTH, MOST_LINES = 80, 30
GAP = 2
LONGEST_WORD, NARROWEST = 16, 7
"""Of a column: longer words are cut where that makes room, and more where it must."""

LAST_DETAILS = 2  # how sure it is, and what next
FEWEST_ROWS = 6  # so many rows of a table stand before details do


def screen(answer: Answer, *, command: str, page: str) -> list[str]:
    """At most MOST_LINES lines of at most WIDTH characters; a command that is longer goes over several."""
    last = ["", f"All tables: {command}", f"Page: {page}"]
    first = _folded(answer.sentence, answer.command)
    details = [_folded(text, answer.command) for text in answer.lines[bool(answer.sentence) :]]
    rows = table_lines(answer.table) if answer.table else []
    room = MOST_LINES - height([*first, *last]) - bool(details) - bool(rows)
    needed = sum(map(height, rows[: 1 + FEWEST_ROWS])) + (len(rows) > 1 + FEWEST_ROWS)
    least = sum(map(height, details[-LAST_DETAILS:])) + (len(details) > LAST_DETAILS)
    table = _fitting(rows, max(room - sum(map(height, details)), min(needed, room - least)), "rows")
    shown = _fitting(details, room - sum(map(height, table)), "details")
    parts = [first, [line for row in table for line in row], [line for text in shown for line in text]]
    lines = [line for part in parts if part for line in [*part, ""]][:-1]
    return [*lines, *last]


def folded_answer(answer: Answer) -> list[str]:
    return [line for text in answer.lines for line in _folded(text, answer.command)]


def height(lines: Sequence[str]) -> int:
    """The lines of a terminal that these take."""
    return sum(max(1, -(-len(line) // WIDTH)) for line in lines)


def _folded(text: str, command: str) -> list[str]:
    """A command stays on a line of its own, to be pasted."""
    unbroken = text.replace(command, command.replace(" ", NO_BREAK)) if command else text
    return folded("", unbroken, indent=2).splitlines()


def _fitting(blocks: Sequence[list[str]], room: int, what: str) -> list[list[str]]:
    """The blocks that have room, and how many have none; the last details always have."""
    if sum(map(height, blocks)) <= room:
        return list(blocks)
    ends = list(blocks[-LAST_DETAILS:]) if what == "details" and blocks[-1][0].startswith("Next") else []
    while ends and sum(map(height, ends)) >= room:
        ends.pop(0)
    left, shown = room - 1 - sum(map(height, ends)), []
    for block in blocks[: len(blocks) - len(ends)]:
        if height(block) > left:
            break
        shown.append(block)
        left -= height(block)
    num_more = len(blocks) - len(shown) - len(ends)
    return [*shown, [f"({num_more} more {what[: None if num_more > 1 else -1]})"], *ends]


def table_lines(table: Table) -> list[list[str]]:
    """The heading and each row, in lines of at most WIDTH characters; the widest columns are folded."""
    texts = [list(table.headings), *table.rows]
    columns = [*zip(*texts, strict=True)]
    widths = [max(map(len, column)) for column in columns]
    room = WIDTH - GAP * (len(widths) - 1)
    words = [max(len(word) for text in column for word in text.split() or [""]) for column in columns]
    for least in ([min(word, LONGEST_WORD) for word in words], [NARROWEST] * len(widths)):
        while sum(widths) > room and (spare := max(map(int.__sub__, widths, least))) > 0:
            widths[[width - word for width, word in zip(widths, least, strict=True)].index(spare)] -= 1
    aligned = [str.ljust if place in table.words else str.rjust for place in range(len(columns))]
    lines = []
    for row in texts:
        cells = [textwrap.wrap(text, width) or [""] for text, width in zip(row, widths, strict=True)]
        lines.append([_line(parts, widths, aligned) for parts in zip_longest(*cells, fillvalue="")])
    return lines


def _line(parts: Sequence[str], widths: Sequence[int], aligned: Sequence[Callable[[str, int], str]]) -> str:
    texts = [align(part, width) for part, width, align in zip(parts, widths, aligned, strict=True)]
    return (" " * GAP).join(texts).rstrip()

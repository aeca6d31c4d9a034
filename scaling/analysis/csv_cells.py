"""Cells of CSV files that a spreadsheet opens: a text that it would take for a formula is kept a text."""

from __future__ import annotations

from typing import Any

from topologies.texts import clean

FORMULA_STARTS = ("=", "+", "-", "@", "\t")


def safe_cell(value: Any) -> Any:
    """A value as a cell; a text that begins like a formula gets an apostrophe in front.

    Labels of models, data sets and aggregators are other people's, where a folder was received. A text that
    is a number is left as it is.

    Source: OWASP, "CSV Injection".
    """
    if not isinstance(value, str):
        return value
    text = clean(value)
    return f"'{text}" if text.lstrip(" ").startswith(FORMULA_STARTS) and not _is_number(text) else text


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True

"""Cells of CSV files for spreadsheets: a text that looks like a formula stays a text."""

from __future__ import annotations

from typing import Any

from scaling.files.texts import clean

FORMULA_STARTS = ("=", "+", "-", "@", "\t")


def safe_cell(value: Any) -> Any:
    """A value as a CSV cell; text that begins like a formula gets a leading apostrophe.

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

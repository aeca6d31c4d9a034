"""Warnings in words: of a cell, and of a group of cells together."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pandas as pd

from scaling.analysis.columns import OLDER_CODE, SEPARATOR, workers_of
from scaling.analysis.findings import Finding
from scaling.analysis.groups import CellGroup, without_older_code
from scaling.axes import workers
from scaling.report.formats import listed
from scaling.report.text import text_of


def warning_text(warning: Finding) -> str:
    """`title: detail`."""
    return f"{text_of(warning, 'title')}: {text_of(warning)}"


def with_texts(table: pd.DataFrame) -> pd.DataFrame:
    """A summary with its findings in words, as summary.csv has them."""
    shown: dict[str, Callable[[Any], str]] = {
        "warnings": lambda warnings: SEPARATOR.join(map(warning_text, warnings)),
        "exposed_check": text_of,
    }
    texts = {name: table[name].map(show, na_action="ignore") for name, show in shown.items()}
    return table.assign(**{name: column.astype("string") for name, column in texts.items()})


def warnings_of(group: CellGroup, most: int | None = None) -> list[str]:
    kinds: dict[str, dict[str, list[str]]] = {}
    older: dict[str, dict[str, list[int]]] = {}
    for row in group.rows:
        for warning in row["warnings"] or ():
            if warning.kind == OLDER_CODE:
                sizes = older.setdefault(text_of(warning, "cells"), {})
                sizes.setdefault(without_older_code(group.name(row)), []).append(row["world_size"])
                continue
            names = kinds.setdefault(text_of(warning, "title"), {}).setdefault(text_of(warning), [])
            names.append(f"{group.name(row)} on {workers_of(row)}")
    of_code = [f"{_with_sizes(sizes, group.unit)}: {text}" for text, sizes in older.items()]
    return [*of_code, *(f"{title}: {_joined(details, most)}" for title, details in kinds.items())]


def _with_sizes(sizes: Mapping[str, Sequence[int]], unit: str) -> str:
    """`cntk (2 and 4 GPUs), one_bit (1 GPU)`."""
    texts = []
    for name, numbers in sizes.items():
        *fewer, most = sorted(set(numbers))
        texts.append(f"{name} ({listed([*map(str, fewer), workers(most, unit)])})")
    return ", ".join(texts)


def _joined(details: Mapping[str, Sequence[str]], most: int | None) -> str:
    texts = [f"{detail} ({', '.join(names)})" for detail, names in details.items()]
    if most is not None and len(texts) > most + 1:
        texts[most:] = [f"{len(texts) - most} more in summary.csv"]
    return "; ".join(texts)

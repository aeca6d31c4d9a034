"""What an analysis found, as data; only `scaling.report.text` turns it into text."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Finding:
    kind: str  # a short stable name; the template of that name says it in words
    cells: tuple[str, ...] = ()  # ids of the cells that it speaks of; () for one about the whole study
    # what is said, by name: numbers in SI units, strings, and lists and mappings of these
    values: Mapping[str, Any] = field(default_factory=dict)

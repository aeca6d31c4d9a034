"""Plain values as JSON between processes: unlike a pickle, a message can call nothing where it arrives."""

from __future__ import annotations

import json
from typing import Any

TUPLE = "()"  # the one key of an object that stands for a tuple


def written(value: Any) -> str:
    """The JSON text of plain values, and tuples of them. Raises TypeError: it is something else."""
    return json.dumps(_marked(value))


def read(text: str | bytes) -> Any:
    """The value, tuples as tuples. Raises ValueError: it is no JSON."""
    return json.loads(text, object_hook=lambda found: tuple(found[TUPLE]) if set(found) == {TUPLE} else found)


def _marked(value: Any) -> Any:
    if isinstance(value, tuple):
        return {TUPLE: _marked(list(value))}
    if isinstance(value, list):
        return [_marked(item) for item in value]
    return {key: _marked(item) for key, item in value.items()} if isinstance(value, dict) else value

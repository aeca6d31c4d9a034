"""How long the workers of a launch wait for each other at the start: a setting, read from the environment."""

from __future__ import annotations

from collections.abc import Mapping

JOIN_TIMEOUT_VARIABLE = "SCALING_JOIN_TIMEOUT_S"

JOIN_TIMEOUT_S = 300.0
"""Without the variable: nodes of a batch job may come minutes apart."""


def join_timeout_s(environ: Mapping[str, str]) -> float:
    """SCALING_JOIN_TIMEOUT_S, or the default.

    Raises:
        ValueError: it is no positive number.
    """
    text = environ.get(JOIN_TIMEOUT_VARIABLE, "") or str(JOIN_TIMEOUT_S)
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < float("inf"):
        raise ValueError(f"{JOIN_TIMEOUT_VARIABLE} is {text!r}; it must be a number of seconds above 0")
    return value

"""The names of the phases; without torch, so that the report can show what the recorder recorded."""

from __future__ import annotations

PHASES = (
    "input",
    "h2d",
    "forward",
    "backward",
    "encode",
    "d2h",
    "communicate",
    "reduce",
    "decode",
    "clip",
    "update",
    "h2d_result",
    "wait",
)
"""All phases, in the order in which a step passes them and in which they are shown."""

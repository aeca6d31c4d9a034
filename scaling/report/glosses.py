"""Words of the page, each in a sentence: the study's aggregators, and settings that it compares."""

from __future__ import annotations

import re
from collections.abc import Iterable

from scaling.aggregator_names import REGISTRY
from scaling.analysis.columns import Row, aggregator_name, has_no_model

SETTINGS = {
    "peer_access": "Peer access: GPUs copy to each other directly; without it every copy goes through the "
    "host's memory.",
    "step": "Eager step: the exchange follows the backward pass. Overlapped: it runs during the backward "
    "pass. Captured: the whole step is one CUDA graph.",
}
"""Column -> what its values mean; said where a study has several of them."""


def aggregators_of(rows: Iterable[Row]) -> dict[str, str]:
    """Name -> description of each aggregator of the summary, "" where it has none."""
    compared = (row for row in rows if not has_no_model(row) and row["arm"] is None)
    names = dict.fromkeys(aggregator_name(row["aggregator"]) for row in compared)
    return {name: REGISTRY.description(name) for name in names}


def name_in(label: str) -> str:
    """The aggregator's name in a table's row: `ring(directions=2)`, `cntk, older code`."""
    found = re.match(r"\w*", label)
    return found[0] if found else ""


def settings_of(rows: Iterable[Row]) -> list[str]:
    """What the settings mean in which the cells differ."""
    values = [{column: row[column] for column in SETTINGS} for row in rows if row["kind"] != "device"]
    return [
        text
        for column, text in SETTINGS.items()
        if len({row[column] for row in values if row[column] is not None}) > 1
    ]

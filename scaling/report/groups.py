"""Which cells are compared with each other: those that differ in aggregator and world size alone."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from scaling.report.columns import Row, fixed_batch

_IN_EVERY_TITLE = ("kind", "model", "dataset", "scaling", "device")
_WHERE_THEY_DIFFER = {
    "step": "{} step",
    "threads": "{} threads a worker",
    "peer_access": "peer access {}",
    "precision": "{}",
    "learning_rate": "learning rate {:g}",
    "momentum": "momentum {:g}",
    "weight_decay": "weight decay {:g}",
    "nesterov": "nesterov {}",
    "seed": "seed {}",
}

MAX_SLUG_LENGTH = 120
"""Longer ones are cut: a model's label may hold any parameters, and file systems allow 255 bytes."""


@dataclass(frozen=True)
class Group:
    """Comparable cells.

    Attributes:
        kind: iteration or convergence.
        title: what they have in common, for people.
        slug: the same for file names; unique among the groups of a kind.
        rows: in the table's order.
    """

    kind: str
    title: str
    slug: str
    rows: list[Row]

    @property
    def world_sizes(self) -> list[int]:
        """Those of its rows, ascending."""
        return sorted({row["world_size"] for row in self.rows})


def group_rows(rows: Sequence[Row]) -> list[Group]:
    """All groups of a table, in its order."""
    members: dict[tuple[Any, ...], list[Row]] = {}
    for row in rows:
        members.setdefault(_key(row), []).append(row)
    groups: list[Group] = []
    for own in members.values():
        extras = _extras(own[0], rows)
        base = slug = _slug(own[0], extras)
        taken = {group.slug for group in groups if group.kind == own[0]["kind"]}
        number = 2
        while slug in taken:
            slug, number = f"{base}-{number}", number + 1
        groups.append(Group(own[0]["kind"], _title(own[0], extras), slug, own))
    return groups


def _key(row: Row) -> tuple[Any, ...]:
    names = (*_IN_EVERY_TITLE, *_WHERE_THEY_DIFFER)
    return (*(row[name] for name in names), fixed_batch(row))


def _extras(row: Row, rows: Sequence[Row]) -> list[str]:
    """The further axes on which groups of this kind, model and dataset differ."""
    alike = [
        other for other in rows if all(other[name] == row[name] for name in ("kind", "model", "dataset"))
    ]
    differing = [name for name in _WHERE_THEY_DIFFER if len({other[name] for other in alike}) > 1]
    return [_WHERE_THEY_DIFFER[name].format(_shown(row[name])) for name in differing if row[name] is not None]


def _shown(value: Any) -> Any:
    return ("off", "on")[value] if isinstance(value, bool) else value


def _title(row: Row, extras: Sequence[str]) -> str:
    batch = (
        f"{fixed_batch(row)} a worker" if row["scaling"] == "weak" else f"global batch {row['global_batch']}"
    )
    parts = [
        f"{row['model']} on {row['dataset']}",
        f"{row['scaling']} scaling",
        batch,
        row["device"],
        *extras,
    ]
    return ", ".join(parts)


def _slug(row: Row, extras: Sequence[str]) -> str:
    words = [row["model"], row["dataset"], row["scaling"], str(fixed_batch(row)), row["device"], *extras]
    return re.sub(r"[^a-z0-9.]+", "-", "-".join(words).lower()).strip("-.")[:MAX_SLUG_LENGTH]

"""Which cells are compared with each other: those that differ in aggregator, world size, bucket size and
input placement. A/A replicates are excluded: they only measure noise.
"""

from __future__ import annotations

import math
import re
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from operator import itemgetter
from typing import Any

from scaling.analysis.columns import (
    Row,
    by_key,
    has_no_model,
    is_aa_replicate,
    is_of_older_code,
    is_unchanged,
    pick,
    unit_of_workers,
    with_local_updates,
)
from scaling.axes import Axis, Role, Shared, fixed_batch, with_columns

MAX_SLUG_LENGTH = 120  # a model's label may hold any parameters, and file systems allow 255 bytes


OLDER = "older code"  # in the name of a cell that was measured before a change of its code


@dataclass(frozen=True)
class CellGroup:
    kind: str  # iteration or convergence
    # what they have in common: model, dataset, scaling, batch (that does not change with the world size),
    # device, and `further`, the other axes in which groups of this model differ, by name
    given: dict[str, Any]
    slug: str  # the same for file names; unique among the groups of a kind
    rows: list[Row]  # in the table's order, without A/A replicates
    replicates: list[Row]  # the second cells of its A/A pairs
    _differing: dict[str, bool] = field(default_factory=dict, compare=False, repr=False)

    @property
    def key(self) -> str:
        return f"{self.kind}-{self.slug}"

    @property
    def world_sizes(self) -> list[int]:
        return sorted({row["world_size"] for row in self.rows})

    @property
    def throughput(self) -> tuple[str, str]:
        """The column of its throughput, and the unit: tokens where all measured rows have them."""
        measured = [row for row in self.rows if row["samples_per_s"] is not None]
        if measured and all(row["tokens_per_s"] is not None for row in measured):
            return "tokens_per_s", "tokens/s"
        return "samples_per_s", "samples/s"

    @property
    def unit(self) -> str:
        units = {unit_of_workers(row) for row in self.rows}
        return units.pop() if len(units) == 1 else "worker"

    def differs(self, axis: str) -> bool:
        if axis not in self._differing:
            self._differing[axis] = len({row[axis] for row in self.rows if row[axis] is not None}) > 1
        return self._differing[axis]

    def name(self, row: Row) -> str:
        """A row's aggregator, with the settings that tell it apart; of an attached script its arm."""
        if row["arm"] is not None:
            return "clock (mean of all steps)" if row["arm"] == "clock" else str(row["arm"])
        parts = [with_local_updates(row)]
        if row["bucket_mb"] is not None and row["step"] == "captured":  # without buckets it is another step
            parts.append(f"layer by layer, {row['bucket_mb']:g} MiB")
        elif row["bucket_mb"] is not None and self.differs("bucket_mb"):
            parts.append(f"{row['bucket_mb']:g} MiB")
        elif row["bucket_sizes_mb"] is not None:
            parts.append(f"{row['bucket_sizes_mb']} MiB")
        if self.differs("input_placement") or self.differs("loader_workers"):
            by_workers = self.differs("loader_workers") and row["loader_workers"] is not None
            parts.append(row["input_placement"] + f" x {row['loader_workers']}" * by_workers)
        if len(self._wires[row["aggregator"], row["world_size"]]) > 1:
            parts.append(str(row["wire"]))
        if is_of_older_code(row):
            parts.append(OLDER)
        return ", ".join(parts)

    @cached_property
    def _wires(self) -> dict[tuple[str, int], set[Any]]:
        """Aggregator and world size -> the formats on the wire."""
        labels = by_key(self.rows, lambda row: (row["aggregator"], row["world_size"]))
        return {label: {row["wire"] for row in rows} for label, rows in labels.items()}


def without_older_code(name: str) -> str:
    """The name that the cell has once it is measured again."""
    return name.removesuffix(f", {OLDER}")


_NAMED = Shared.WORKLOAD | Shared.GROUP


def group_rows(rows: Sequence[Row]) -> list[CellGroup]:
    """All groups of a table, in its order; cells without a model are excluded."""
    members = by_key((row for row in rows if not has_no_model(row)), group_key)
    slugs = set[tuple[str, str]]()
    differing = {
        model: {axis.key for axis in _axes(same[0]) if len({row[axis.key] for row in same}) > 1}
        for model, same in by_key(rows, _of_model).items()
    }
    groups: list[CellGroup] = []
    for everyone in members.values():
        primary = [row for row in everyone if not is_aa_replicate(row)]
        if not primary:
            continue
        further = _further(primary[0], differing[_of_model(primary[0])])
        base = slug = _slug(primary[0], further)
        number = 2
        while (primary[0]["kind"], slug) in slugs:
            slug, number = f"{base}-{number}", number + 1
        slugs.add((primary[0]["kind"], slug))
        replicates = [row for row in everyone if is_aa_replicate(row)]
        groups.append(CellGroup(primary[0]["kind"], _given(primary, further), slug, primary, replicates))
    return groups


def in_order_of(cell_ids: Sequence[str], groups: Sequence[CellGroup]) -> list[CellGroup]:
    """The groups that hold one of some cells first, in the cells' order, and then the others in theirs."""
    place, last = {cell_id: at for at, cell_id in enumerate(cell_ids)}, len(cell_ids)
    return sorted(groups, key=lambda group: min(place.get(row["cell_id"], last) for row in group.rows))


def group_key(row: Row) -> tuple[Any, ...]:
    return (*[row[axis.key] for axis in _axes(row)], fixed_batch(row))


def _axes(row: Row) -> list[Axis]:
    """The variables that the rows of a group share; all seeds of a training are in one group."""
    return _SHARED[row["kind"] == "convergence"]


_SHARED = {
    trained: [axis for axis in with_columns(Shared.GROUP) if not (trained and axis.role & Role.REPETITION)]
    for trained in (False, True)
}


_of_model = itemgetter("kind", "model", "dataset")


def _further(row: Row, differing: Container[str]) -> list[tuple[Axis, Any]]:
    pairs = [(axis, axis.default_shown if row[axis.key] is None else row[axis.key]) for axis in _axes(row)]
    return [
        (axis, value)
        for axis, value in pairs
        if axis.key in differing and value is not None and not axis.role & Role.GIVEN
    ]


def _given(rows: Sequence[Row], further: Sequence[tuple[Axis, Any]]) -> dict[str, Any]:
    values = {axis.name: value for axis, value in further}
    placements = {row["input_placement"] for row in rows}
    if len(placements) == 1 and placements != {"device"}:
        values["input_placement"] = rows[0]["input_placement"]
    return {**given_of(rows[0]), "further": values}


Differing = Mapping[tuple[Any, ...], Container[str]]  # kind, model, data set -> columns that differ


def differing_settings(rows: Iterable[Row]) -> Differing:
    """Of a study's cells those of settings that `settings_to_name` may name."""
    return {
        model: {axis.key for axis in with_columns(_NAMED) if len(_values(axis, same)) > 1}
        for model, same in by_key(rows, _of_model).items()
    }


def settings_to_name(family: Sequence[Row], differing: Differing) -> dict[str, Any]:
    """What a title says of a family besides `given_of`: settings that all its cells share and are not the
    default, or in which other cells of this kind, model and data set differ; of what may be chosen, both."""
    of_model = differing[_of_model(family[0])]
    named: dict[str, Any] = {}
    for axis in with_columns(_NAMED):
        is_workload = bool(axis.shared & Shared.WORKLOAD)
        if axis.role & Role.GIVEN or not (is_workload or axis.role & Role.CHOSEN):
            continue
        own = _values(axis, family)
        is_unusual, differs = own != {axis.default_shown}, axis.key in of_model
        is_told = (is_unusual or differs) if is_workload else (is_unusual and differs)
        if len(own) == 1 and own != {None} and is_told:
            named[axis.name] = own.pop()
    return named


def _values(axis: Axis, rows: Sequence[Row]) -> set[Any]:
    return {axis.default_shown if row[axis.key] is None else row[axis.key] for row in rows}


def given_of(row: Row) -> dict[str, Any]:
    """The settings that every title of timed cells names."""
    return {**pick(row, "model", "dataset", "scaling", "device"), "batch": fixed_batch(row)}


def _slug(row: Row, further: Sequence[tuple[Axis, Any]]) -> str:
    labels = [axis.text(value) for axis, value in further]
    words = [row["model"], row["dataset"], row["scaling"], str(fixed_batch(row)), row["device"], *labels]
    return re.sub(r"[^a-z0-9.]+", "-", "-".join(words).lower()).strip("-.")[:MAX_SLUG_LENGTH]


def main_variant(group: CellGroup, label: str) -> list[Row]:
    """The rows of one aggregator with one bucket size, wire format and input placement, one a world size: of
    several placements the first, then the fastest at the largest world size. Of a script: unchanged, on one
    worker, and without exchange."""
    rows = [row for row in group.rows if row["aggregator"] == label]
    rows = [row for row in rows if is_unchanged(row) or row["arm"] in ("one_worker", "no_exchange")] or rows
    placements = dict.fromkeys(map(_placement, rows))
    preferred = min(placements, key=lambda placement: placement[0] != "device")
    rows = [row for row in rows if _placement(row) == preferred]
    largest = max(row["world_size"] for row in rows)
    fastest = min(
        (row for row in rows if row["world_size"] == largest),
        key=lambda row: math.inf if row["iteration_s"] is None else row["iteration_s"],
    )
    names = ("bucket_mb", "bucket_sizes_mb", "wire")
    return [
        row
        for row in rows
        if all(row[name] == fastest[name] or (row["world_size"] == 1 and row[name] is None) for name in names)
    ]


_placement = itemgetter("input_placement", "loader_workers")

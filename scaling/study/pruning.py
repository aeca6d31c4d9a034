"""Which cells of a study can still win, by their predictions, and which fit into a time.

A cell is dominated if the low end of its predicted interval is slower, a sample, than the high end of another
cell of the workload. Control arms (`none`, `no_op`) stay: the others are judged by them. So does what could
not be predicted. Lossy aggregators are judged by time alone. A given time is for control arms of one worker,
then for cells that can win, fastest first, what was not predicted, and further control arms.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import yaml

from scaling.axes import AXES, Role, Shared, fixed_batch, key_of, with_columns
from scaling.errors import StudyError
from scaling.files.texts import folded
from scaling.study.cell import Cell, ResolvedStudy
from scaling.study.kinds.base import START_UP_S
from scaling.study.kinds.iteration import USUAL_ITERATIONS, IterationPart
from scaling.study.launches import Settings
from scaling.study.parts import NamedComponent, Training
from scaling.study.schema import Study
from scaling.study.variants import CLIPPING, DEFAULTS, OF_DDP

SET_UP_S = 0.5  # of a cell, before its first step


@dataclass(frozen=True)
class CellChoice:
    cell: Cell
    keep: bool
    reason: str
    seconds: float  # what measuring it is predicted to take, without the start of its launch

    def as_dict(self) -> dict[str, Any]:
        """For JSON; the predictions behind it are simulated."""
        return {
            "cell_id": self.cell.id,
            "cell": self.cell.describe(),
            "measure": self.keep,
            "reason": self.reason,
            "seconds": self.seconds,
            "simulated": True,
        }


def parse_budget(text: str) -> float:
    """`10m`, `90s` or `1.5h` in seconds. Raises StudyError: it is something else."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([smh])", text)
    if not match:
        raise StudyError(f"--budget {text!r}: give a number and a unit, as in 10m, 90s or 1.5h")
    return float(match[1]) * {"s": 1.0, "m": 60.0, "h": 3600.0}[match[2]]


def judge(
    cells: Sequence[Cell],
    rows: Sequence[Mapping[str, Any]],
    repeats: Mapping[str, int],
    budget_s: float | None = None,
    *,
    skip_dominated: bool = True,
) -> list[CellChoice]:
    """A verdict on each cell by its row of predictions, within `budget_s` of measuring (None: no limit)."""
    predicted = {row["cell_id"]: row for row in rows if row.get("iteration_s")}
    verdicts = [_domination(cell, cells, predicted, repeats) for cell in cells]
    if not skip_dominated:
        verdicts = [
            verdict if verdict.keep else replace(verdict, keep=True, reason="can still win")
            for verdict in verdicts
        ]
    return verdicts if budget_s is None else _within(verdicts, predicted, repeats, budget_s)


def _domination(
    cell: Cell, cells: Sequence[Cell], known: Mapping[str, Mapping[str, Any]], repeats: Mapping[str, int]
) -> CellChoice:
    row = known.get(cell.id)
    seconds = repeats[cell.id] * _measuring_s(cell, row)
    if row is None:
        return CellChoice(cell, True, "not predicted", seconds)
    if not cell.exchanges:
        return CellChoice(cell, True, "others are judged by it", seconds)
    key = _rivals_key(cell)
    rivals = [one for one in cells if one.exchanges and one.id in known and _rivals_key(one) == key]
    best = min(rivals, key=lambda other: _sample_s(known[other.id], other, "high"))
    low_s, high_s = _sample_s(row, cell, "low"), _sample_s(known[best.id], best, "high")
    if low_s > high_s:
        ratio = low_s / high_s
        return CellChoice(
            cell,
            False,
            f"dominated: at best {ratio:.3g} times the time a sample that {best.aggregator_label} on "
            f"{best.world_size}, {best.step}, takes at worst (simulated)",
            seconds,
        )
    return CellChoice(cell, True, "can still win", seconds)


def _within(
    verdicts: Sequence[CellChoice],
    known: Mapping[str, Mapping[str, Any]],
    repeats: Mapping[str, int],
    budget_s: float,
) -> list[CellChoice]:
    """The same without what does not fit into the time."""

    def rank(verdict: CellChoice) -> tuple[int, float]:
        row = known.get(verdict.cell.id)
        low_s = _sample_s(row, verdict.cell, "low") if row else 0.0
        if not verdict.cell.exchanges:
            return 0 if verdict.cell.world_size == 1 else 3, low_s
        return 1 if row else 2, low_s

    left_s, started, fits = budget_s, set[tuple[Settings, int]](), set[str]()
    for verdict in sorted((candidate for candidate in verdicts if candidate.keep), key=rank):
        settings = Settings.of(verdict.cell)
        launches = {(settings, repeat) for repeat in range(repeats[verdict.cell.id])} - started
        seconds = verdict.seconds + len(launches) * START_UP_S[verdict.cell.device]
        if seconds <= left_s:
            left_s -= seconds
            started |= launches
            fits.add(verdict.cell.id)
    return [
        verdict
        if not verdict.keep or verdict.cell.id in fits
        else CellChoice(verdict.cell, False, f"no time left of {budget_s:.0f} s", verdict.seconds)
        for verdict in verdicts
    ]


def _rivals_key(cell: Cell) -> tuple[Any, ...]:
    return (*key_of(with_columns(Shared.RIVALS), vars(cell)), fixed_batch(vars(cell)))


def _sample_s(row: Mapping[str, Any], cell: Cell, end: str) -> float:
    return float(row[f"iteration_s_{end}"]) / cell.global_batch


def _measuring_s(cell: Cell, row: Mapping[str, Any] | None) -> float:
    step_s = float(row["iteration_s"]) if row else 0.1
    iterations = min(cell.iterations or USUAL_ITERATIONS, USUAL_ITERATIONS)
    steps = iterations + (cell.warmup or 0) + (cell.profiled_iterations or 0)
    seconds = max(steps * step_s, cell.min_seconds or 0.0)
    if cell.max_seconds is not None:
        seconds = min(seconds, 1.5 * cell.max_seconds)
    return seconds + SET_UP_S


def describe(verdicts: Sequence[CellChoice]) -> str:
    """What is kept and what is left, with the reasons, for people; as wide as a terminal."""
    kept = [verdict for verdict in verdicts if verdict.keep]
    left_out = [verdict for verdict in verdicts if not verdict.keep]
    lines = [f"measure {len(kept)} of {len(verdicts)} cells, about {sum(o.seconds for o in kept):.0f} s:"]
    lines += map(_line, kept)
    lines += [f"leave {len(left_out)}:", *map(_line, left_out)] if left_out else []
    return "\n".join(lines)


def _line(verdict: CellChoice) -> str:
    return folded(f"  {verdict.cell.id}  ", f"{verdict.cell.describe()}: {verdict.reason}")


def study_of(study: Study, verdicts: Sequence[CellChoice], resolved: ResolvedStudy) -> str:
    """A study file of the kept cells, a part for all that differ in their aggregator; their ids stay."""
    kept = [verdict.cell for verdict in verdicts if verdict.keep]
    parts: list[Any] = []
    for number, part in enumerate(study.parts):
        if not isinstance(part, IterationPart):
            parts.append(part)
            continue
        grouped: dict[tuple[Any, ...], list[Cell]] = {}
        for cell in kept:
            if resolved.part_of[cell.id] == number:
                key = (*key_of(_OF_A_PART, vars(cell)), resolved.repeats[cell.id])
                grouped.setdefault(key, []).append(cell)
        parts += [part_of_cells(part, same, resolved.repeats[same[0].id]) for same in grouped.values()]
    pruned = study.model_copy(update={"parts": tuple(parts)})
    return yaml.safe_dump(pruned.model_dump(mode="json"), sort_keys=False)


def study_of_cell(study: Study, cell: Cell, repeats: int) -> str:
    """A study file of one cell, as the study's first timed part. Raises StudyError: no part is."""
    part = next((part for part in study.parts if isinstance(part, IterationPart)), None)
    if part is None:
        raise StudyError("no part of the study times steps: there is nothing to measure next")
    spec = NamedComponent(name=cell.aggregator, parameters=dict(cell.aggregator_parameters))
    timed = part.model_copy(update={"aggregators": [spec], "scaling": cell.scaling})
    alone = part_of_cells(timed, [cell], repeats)
    next_study = study.model_copy(update={"name": f"{study.name}-next", "parts": (alone,)})
    return yaml.safe_dump(next_study.model_dump(mode="json"), sort_keys=False)


_OF_A_PART = [axis for axis in AXES if axis.key and axis.name not in ("aggregator", "aa_replicate")]
"""What all cells of a written part share: they differ in their aggregator alone."""


def part_of_cells(part: IterationPart, cells: Sequence[Cell], repeats: int) -> IterationPart:
    """A part with these cells, which differ in their aggregator alone; the rest is as in `part`."""
    cell = cells[0]
    batch = "global_batch" if cell.scaling == "strong" else "local_batch"
    model = {"name": cell.model, **cell.model_parameters}
    dataset = {"name": cell.dataset, **cell.dataset_parameters}
    used = {*DEFAULTS[cell.optimizer], *CLIPPING}
    training = {name: getattr(cell, name) for name in Training.model_fields if name in used}
    workload = {"model": model, "dataset": dataset, batch: getattr(cell, batch), **training}
    wanted = {(spec.name, json.dumps(spec.parameters, sort_keys=True)): spec for spec in part.aggregators}
    specs = [
        spec
        for (name, _), spec in wanted.items()
        if any(cell.aggregator == name and _has(cell, spec.parameters) for cell in cells)
    ]
    keys = type(part).model_fields.keys() - Training.model_fields.keys()
    values = {axis.name: axis.value(vars(cell)) for axis in _OF_A_PART if not axis.role & Role.GIVEN}
    changed = {
        **{name: value for name, value in values.items() if name in keys and value is not None},
        **dict.fromkeys(["tf32", *Training.model_fields]),
        **{name: getattr(cell, name) for name in OF_DDP},
        "bucket_mb": cell.bucket_mb if cell.bucket_sizes_mb is None else [list(cell.bucket_sizes_mb)],
        "workloads": [workload],
        "aggregators": [{"name": spec.name, **spec.parameters} for spec in specs],
        "world_sizes": cell.world_size,
        "noise_pair": False,
        "repeats": repeats,
    }
    return part.model_validate({**part.model_dump(), **changed})


def _has(cell: Cell, parameters: Mapping[str, Any]) -> bool:
    return all(cell.aggregator_parameters.get(name) == value for name, value in parameters.items())

"""Claims of others as data, each checked by cells of results folders or by a simulation.

A check is a value with the range that the claim gives it. Checks that share what they assume stand together:
a simulation assumes its machine file, and `assuming` names what else. All checks that assume nothing hold:
the claim holds. Else all of one assumption do: it holds under that. Else it does not hold here. A claim
without checks is not testable, and says why.
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

from pydantic import Field, ValidationError, model_validator

from scaling.aggregators.registry import create
from scaling.bucket import BucketLayout
from scaling.collectives.plan import simulate_plan
from scaling.errors import StudyError
from scaling.files.documents import from_yaml, read_text
from scaling.study.parts import Component, Number, PositiveInt, Strict
from scaling.study.predicting import layouts_of_model
from topologies.schema import load

LEGEND = (
    "For whoever wonders what a paper found: does it hold on the machines measured here?\n\n"
    "Made by `scaling claims`; [how, and how to add a paper](../how-to/check-claims.md). Behind a number "
    "stands what the claim allows, as we read its words; one that is not as claimed has a ✗. Before numbers "
    "stands what they assume: a machine file is a simulation on it."
)

Verdict = Literal["holds", "holds under an assumption", "does not hold here", "not testable"]


class Cells(Strict):
    """A number of the one cell of a results folder that fits; of several the least or greatest."""

    folder: str  # path from the claims' file
    where: dict[str, Any] = {}  # column of summary.csv -> its value
    column: str = "iteration_s"
    take: Literal["least", "greatest"] | None = None


class Simulated(Strict):
    """Seconds of a step on a machine file: its workers' computation, then aggregation and update."""

    machine: str
    aggregator: Component
    workers: PositiveInt
    model: str = ""  # its gradient; "": one tensor of `elements`
    dataset: str = ""
    elements: PositiveInt = 1
    computation_s: Annotated[Number, Field(ge=0)] = 0.0  # of the whole batch on one worker
    stages: PositiveInt | None = None  # only the first ones of the aggregation


class Check(Strict):
    """A value and its range. With `over` it is `of` over that; as a gain what `of` saves of it."""

    of: Cells | Simulated
    over: Cells | Simulated | None = None
    gain: bool = False
    each: str = ""  # column, as `seed`: one value for each of its values that both folders' cells have
    least: Number | None = None
    most: Number | None = None
    assuming: str = ""
    text: str = ""  # what the value is, before it

    @model_validator(mode="after")
    def _can_fail(self) -> Check:
        if self.least is None and self.most is None:
            raise ValueError("needs least or most: without a bound it always holds")
        if self.gain and self.over is None:
            raise ValueError("gain is what `of` saves of `over`: name that too")
        if self.each and not (isinstance(self.of, Cells) and isinstance(self.over, Cells)):
            raise ValueError("each pairs cells of `of` with those of `over`: both must be cells of a folder")
        return self


class Claim(Strict):
    """What a source says. `because`: why it is so here, or why it is not testable."""

    id: str
    section: str = ""
    claim: str
    checks: list[Check] = []
    because: str


class ClaimsFile(Strict):
    """A source with its claims; `let` holds values that several of them use, as YAML anchors."""

    source: str
    claims: list[Claim]
    let: Any = None


@dataclass(frozen=True)
class Checked:
    claim: Claim
    verdict: Verdict
    assumption: str  # under which it holds; "" of the other verdicts
    found: Mapping[str, Sequence[tuple[str, bool]]]  # assumption -> each check's text and whether it holds


def read_claims(path: Path) -> ClaimsFile:
    """Raises StudyError: the file is none of claims; names the key."""
    try:
        return ClaimsFile.model_validate(from_yaml(read_text(path)))
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"]))
        raise StudyError(
            f"{path}: {place}: {first['msg']}; the form is in docs/how-to/check-claims.md"
        ) from error


def checked(claim: Claim, folder: Path) -> Checked:
    """A claim's verdict, with folders relative to `folder`. Raises StudyError: a check names no one cell."""
    found: dict[str, list[tuple[str, bool]]] = {}
    for check in claim.checks:
        values, of_each = _values(check, folder)
        low, high = min(values), max(values)
        holds = (check.least is None or check.least <= low) and (check.most is None or high <= check.most)
        shown = " to ".join(dict.fromkeys((_shown(low, check), _shown(high, check))))
        text = f"{check.text} {shown} ({_range(check)}{_taken(check)}{of_each})".strip()
        machines = [at.machine for at in (check.of, check.over) if isinstance(at, Simulated)]
        assumption = ", ".join([*([check.assuming] if check.assuming else []), *dict.fromkeys(machines)])
        found.setdefault(assumption, []).append((text, holds))
    holding = [name for name, values in found.items() if all(holds for _, holds in values)]
    if not found:
        return Checked(claim, "not testable", "", found)
    if "" in holding:
        return Checked(claim, "holds", "", found)
    if holding:
        return Checked(claim, "holds under an assumption", "; or ".join(holding), found)
    return Checked(claim, "does not hold here", "", found)


def _shown(value: float, check: Check) -> str:
    if check.gain:
        return f"{value:.1%}"
    bounds = [bound for bound in (check.least, check.most) if bound not in (None, value)]
    as_bound = any(f"{value:.3g}" == f"{bound:.3g}" for bound in bounds)
    return f"{value:.4g}" if as_bound else f"{value:.3g}"


def _range(check: Check) -> str:
    least, most = (bound if bound is None else _shown(bound, check) for bound in (check.least, check.most))
    if least is None or most is None:
        return f"at least {least}" if most is None else f"at most {most}"
    return f"{least} to {most}"


def _taken(check: Check) -> str:
    """Which of several cells the value is of."""
    taken = dict.fromkeys(at.take for at in (check.of, check.over) if isinstance(at, Cells) and at.take)
    return f"; of several cells the {' over the '.join(map(str, taken))}" if taken else ""


def _values(check: Check, folder: Path) -> tuple[list[float], str]:
    """The check's values, and of what they are where there is one for each of several pairs of cells."""
    if not (check.each and isinstance(check.of, Cells) and isinstance(check.over, Cells)):
        return [_value(check, folder)], ""
    of, over = ({row.get(check.each) for row in _fitting(at, folder)} for at in (check.of, check.over))
    both = sorted(filter(None, of & over), key=lambda value: (len(value), value))
    if not both:
        raise StudyError(f"{check.of.folder}: no {check.each} has cells of both `of` and `over`")

    def only(at: Cells, value: str) -> Cells:
        return at.model_copy(update={"where": {**at.where, check.each: value}})

    pairs = [{"of": only(check.of, value), "over": only(check.over, value)} for value in both]
    values = [_value(check.model_copy(update=pair), folder) for pair in pairs]
    return values, f"; {check.each} {', '.join(both)}"


def _value(check: Check, folder: Path) -> float:
    value, *over = (
        simulated_s(at) if isinstance(at, Simulated) else _of_cell(at, folder)
        for at in (check.of, check.over)
        if at is not None
    )
    if over:
        value = value / over[0] if over[0] else math.inf
    return 1 - value if check.gain else value


def _fitting(cells: Cells, folder: Path) -> list[dict[str, str]]:
    rows = csv.DictReader(io.StringIO(read_text(folder / cells.folder / "summary.csv")))
    return [row for row in rows if all(_is(row.get(name), value) for name, value in cells.where.items())]


def _of_cell(cells: Cells, folder: Path) -> float:
    fitting = _fitting(cells, folder)
    name = f"{cells.folder}: {cells.column} where {cells.where}"
    lacking = [row["cell_id"] for row in fitting if not row.get(cells.column)]
    if not fitting or lacking:
        which = f"cells {', '.join(lacking)} have none" if lacking else "no cell fits"
        raise StudyError(f"{name}: {which}; `where` names columns of summary.csv and their values")
    if len(fitting) > 1 and cells.take is None:
        unlike = [column for column in fitting[0] if len({row[column] for row in fitting}) > 1]
        raise StudyError(
            f"{name}: {len(fitting)} cells fit ({', '.join(row['cell_id'] for row in fitting)}). Name one by "
            f"what they differ in ({', '.join(unlike[:6])}), or say `take: least` or `take: greatest`"
        )
    try:
        values = [float(row[cells.column]) for row in fitting]
    except ValueError as error:
        raise StudyError(f"{cells.folder}: column {cells.column} has no numbers") from error
    return max(values) if cells.take == "greatest" else min(values)


def _is(field: str | None, value: Any) -> bool:
    if isinstance(value, list):
        return any(_is(field, one) for one in value)
    try:
        return float(field or "nan") == float(value)
    except (TypeError, ValueError):
        return field == str(value)


def simulated_s(at: Simulated) -> float:
    topology = load(at.machine)
    layout = BucketLayout.of([("all", (at.elements,))])
    if at.model:
        named = {"model": at.model, "model_parameters": {}, "dataset": at.dataset, "dataset_parameters": {}}
        (layout,) = layouts_of_model(named).values()
    stages = create(at.aggregator.name, at.aggregator.parameters).stages(layout, at.workers)
    cores = sum(device.cores or 0 for device in topology.machine.of_kind("cpu"))
    threads = max(1, cores // at.workers)
    exchange = simulate_plan(stages[: at.stages], topology, at.workers, threads=threads)
    return at.computation_s / at.workers + exchange.seconds


def check_all(files: Mapping[Path, ClaimsFile]) -> dict[Path, list[Checked]]:
    return {path: [checked(claim, path.parent) for claim in file.claims] for path, file in files.items()}


def markdown(files: Mapping[Path, ClaimsFile], found: Mapping[Path, Sequence[Checked]]) -> str:
    """A page: how many claims hold, and a table a source."""
    all_found = [one.verdict for claims in found.values() for one in claims]
    counts = ", ".join(f"{all_found.count(verdict)} {verdict}" for verdict in get_args(Verdict))
    lines = ["# What others said, and what is true here", "", f"{len(all_found)} claims: {counts}."]
    lines += ["", LEGEND, ""]
    for path, file in files.items():
        lines += [f"## {file.source}", "", "| claim | verdict | here | because |", "|---|---|---|---|"]
        lines += [*(_row(one) for one in found[path]), ""]
    return "\n".join(lines)


def _row(one: Checked) -> str:
    section = f" ({one.claim.section})" if one.claim.section else ""
    verdict = f"**{one.verdict}**" + (f": {one.assumption}" if one.assumption else "")
    here = "; ".join(
        f"{f'{name}: ' if name else ''}{', '.join(text + ('' if holds else ' ✗') for text, holds in values)}"
        for name, values in one.found.items()
    )
    return f"| {one.claim.claim}{section} | {verdict} | {here or 'none'} | {one.claim.because} |"

"""What `explain` and `recommend` found, in a terminal of 80 columns and for JSON."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from scaling.analysis.candidates import Candidate
from scaling.analysis.columns import Row, by_key, is_control_arm, is_unchanged, workers_of
from scaling.analysis.critical_batch import LearningPlan
from scaling.analysis.explain import EXPLAINED_KINDS, RULES, is_limit
from scaling.analysis.findings import Finding
from scaling.analysis.groups import CellGroup, group_rows
from scaling.analysis.recommend import Recommendation
from scaling.analysis.steps_by_batch import Fitted
from scaling.axes import workers
from scaling.errors import ScalingError
from scaling.report.formats import milliseconds, percent
from scaling.report.terminal import filled
from scaling.report.text import line_of, next_experiment, text_of, title_of, unit_of

MOST_SHOWN = 2  # findings a cell in the overview
SHORT = 60  # characters of an experiment that may be said again, and stands in a cell's first sentence
MOST_NAMED = 3  # cells that are named where a sentence is about several
NO_STEPS = (
    "not known: no steps were timed here, and the trainings show nothing by themselves. A part of kind "
    "`iteration` in a study file times steps."
)

Findings = Mapping[str, Sequence[Finding]]


def overview(rows: Sequence[Row], findings: Findings, of_script: Sequence[str] = ()) -> Iterator[str]:
    """For every group, the cells of its largest world size: what limits them most, and what to try. Of a
    script of the user's `of_script` comes first, and its other arms are no choices."""
    yield from (filled(line) for line in of_script)
    yield from [""] * bool(of_script)
    rows = [row for row in rows if is_unchanged(row)]
    said: set[str] = set()
    members = [
        (group, [row for row in group.rows if row["iteration_s"] is not None or findings[row["cell_id"]]])
        for group in _groups(rows)
    ]
    if not any(explained for _, explained in members):
        yield filled(NO_STEPS)
    for group, explained in members:
        if not explained:
            continue
        largest = max(row["world_size"] for row in explained)
        shown = [row for row in explained if row["world_size"] == largest and not is_control_arm(row)]
        yield filled(f"{title_of(group.given)}, on {workers(largest, group.unit)}")
        ordered = sorted(shown or explained[-1:], key=lambda row: row["iteration_s"] or 0.0)
        for same in _with_one_cause(ordered, findings):
            yield filled(_named([f"{group.name(row)}{_time(row)}" for row in same]), indent=2)
            for finding, *others in zip(*[_foremost(findings[row["cell_id"]]) for row in same], strict=True):
                then = next_experiment(finding) or ""
                is_again = len(then) > SHORT and then in said
                said.add(then)
                text = text_of(finding) if is_again else line_of(finding)
                yield filled(f"{text}{_of_others(others)}", indent=4)
        yield ""


def _named(names: Sequence[str]) -> str:
    """The first names, each once with its number of cells, and how many more there are."""
    counts = list(Counter(names).items())
    shown = [name if count == 1 else f"{name} ({count} cells)" for name, count in counts[:MOST_NAMED]]
    num_more = sum(count for _, count in counts[MOST_NAMED:])
    return ", ".join(shown) + (f" and {num_more} more" if num_more else "")


def _with_one_cause(rows: Sequence[Row], findings: Findings) -> list[list[Row]]:
    """The rows, those together of which the same is said first, in the order of their first."""

    def causes(row: Row) -> tuple[object, ...]:
        foremost = _foremost(findings[row["cell_id"]])
        return tuple(
            (one.kind, one.values.get("rank"), one.values.get("phase"), next_experiment(one))
            for one in foremost
        )

    return list(by_key(rows, causes).values())


def _of_others(findings: Sequence[Finding]) -> str:
    """The same share of a step in the other cells with this cause."""
    shares = sorted(finding.values["share"] for finding in findings)
    if not shares or shares[-1] <= 0:
        return ""
    low, high = percent(shares[0], 0), percent(shares[-1], 0)
    others = "the other cell" if len(shares) == 1 else "the other cells"
    return f" ({others}: {low if low == high else f'{low} to {high}'})"


def _foremost(findings: Sequence[Finding]) -> Sequence[Finding]:
    """The first, and the second if it is about nearly as much of the step."""
    return [
        finding
        for finding in findings[:MOST_SHOWN]
        if finding is findings[0]
        or (is_limit(finding) and finding.values["share"] >= findings[0].values["share"] / 2)
    ]


def details(rows: Sequence[Row], findings: Findings, chosen: Sequence[Row]) -> Iterator[str]:
    groups = _groups(rows)
    for row in chosen:
        group = next(candidate for candidate in groups if row in candidate.rows)
        name = f"{group.name(row)} on {workers_of(row)}{_time(row)}"
        for place, finding in enumerate(findings[row["cell_id"]]):
            sentence, share = text_of(finding), finding.values["share"]
            part, then = f"{percent(share, 0)} of the step", next_experiment(finding) or ""
            is_said = share <= 0 or not is_limit(finding) or part in sentence
            said = f"{sentence}{'' if is_said else f' [{part}]'}"
            if not place and 0 < len(then) <= SHORT:
                said, then = f"{said}; {then}", ""
            yield filled(f"- {said}", indent=2) if place else filled(f"{name}; {said}.")
            if then:
                yield filled(f"next: {then}", indent=4)
        if not findings[row["cell_id"]]:
            yield filled(f"{name}; nothing found.")
        yield filled(f"in: {title_of(group.given)}; cell {row['cell_id']}", indent=2)
        yield ""


def as_dict(finding: Finding) -> dict[str, Any]:
    (columns,) = [rule.columns for rule in RULES if rule.name == finding.kind]
    return {
        "rule": finding.kind,
        "is_limit": is_limit(finding),
        "sentence": text_of(finding),
        "next_experiment": next_experiment(finding),
        "share": finding.values["share"],
        "values": {name: value for name, value in finding.values.items() if name != "share"},
        "columns": list(columns),
    }


def choose(rows: Sequence[Row], wanted: str) -> list[Row]:
    """The cells that a user means: by an id's beginning, by aggregator, or as `ring@4`; else ScalingError."""
    named = {
        row["cell_id"]: (group.name(row), row["aggregator"]) for group in _groups(rows) for row in group.rows
    }
    label, _, size = wanted.rpartition("@") if "@" in wanted else (wanted, "", "")
    chosen = [row for row in rows if row["cell_id"] in named and row["cell_id"].startswith(wanted)]
    if not chosen:
        labelled = [row for row in rows if label in named.get(row["cell_id"], ())]
        chosen = [row for row in labelled if size in ("", str(row["world_size"]))]
    if not chosen:
        of_groups = [row for row in rows if row["cell_id"] in named]
        known = dict.fromkeys(f"{row['aggregator']}@{row['world_size']}" for row in of_groups)
        raise ScalingError(
            f"no cell {wanted!r}; name one by its id in summary.csv, or as one of {', '.join(known)}"
        )
    return chosen


def _groups(rows: Sequence[Row]) -> list[CellGroup]:
    return [group for group in group_rows(rows) if group.kind in EXPLAINED_KINDS]


def _time(row: Row) -> str:
    if row["iteration_s"] is None:
        return "" if row["repeats"] else f" ({row['state']})"
    return f": {milliseconds(row['iteration_s'])} ms a step"


BY_SETTING = (
    "target_missed",
    "no_efficiency",
    "efficiency_below",
    "efficiency_perhaps_below",
    "memory_above",
)
"""Reasons that hold for one setting of an aggregator, and not for another: the whole setting is named."""


def lines_of(recommendation: Recommendation) -> Iterator[str]:
    """The recommendation, and of each reason the cells that were left out for it."""
    yield filled(text_of(recommendation.finding))
    if recommendation.trade_off is not None:
        yield filled(text_of(recommendation.trade_off), indent=2)
    for remark in recommendation.remarks:
        yield filled(text_of(remark), indent=2)
    for reason, same in by_key(recommendation.excluded, lambda one: text_of(one.reason)).items():
        names = dict.fromkeys(one.name if one.reason.kind in BY_SETTING else one.aggregator for one in same)
        yield filled(f"left out: {', '.join(names)} ({reason})", indent=2)
    yield ""


def recommendation_as_dict(recommendation: Recommendation) -> dict[str, Any]:
    as_they_are = ("objective", "state", "more_repeats", "is_noisy")
    return {
        **{name: getattr(recommendation, name) for name in as_they_are},
        "workload": title_of(recommendation.workload),
        "choice": _choice(recommendation.choice),
        "runner_up": _choice(recommendation.runner_up),
        "rivals": [_choice(rival.candidate) for rival in recommendation.rivals],
        "ruled_out": [candidate.name for candidate in recommendation.ruled_out],
        "trade_off": recommendation.trade_off and recommendation.trade_off.values["points"],
        "remarks": [text_of(remark) for remark in recommendation.remarks],
        "workers": recommendation.workers,
        "aggregator": recommendation.aggregator,
        "doubts": [line_of(doubt) for doubt in recommendation.doubts],
        "limit": line_of(recommendation.limit) if recommendation.limit else None,
        "if_wrong": text_of(recommendation.cost) if recommendation.cost else "",
        "excluded": [
            {"name": candidate.name, "reason": text_of(candidate.reason)}
            for candidate in recommendation.excluded
        ],
        "sentence": text_of(recommendation.finding),
    }


def _choice(choice: Candidate | None) -> dict[str, Any] | None:
    if choice is None:
        return None
    of_cell = {name: choice.row[name] for name in ("cell_id", "aggregator", "world_size")}
    measured = {name: getattr(choice, name) for name in ("value", "low", "high", "method")}
    more = {"unit": unit_of(choice.values()), "launches": choice.num_launches}
    return {"name": choice.name, **of_cell, **measured, **more}


def plan_lines(plan: LearningPlan, quantity: str) -> str:
    return "".join(f"{filled(text_of(finding))}\n" for finding in plan.findings(quantity))


def plan_as_dict(plan: LearningPlan, quantity: str) -> dict[str, Any]:
    """What was found, in words and values, and every setting; open ends of intervals are null."""
    found = list(plan.findings(quantity))
    said: dict[str, Any] = {"sentences": [text_of(finding) for finding in found]}
    said |= {finding.kind: dict(finding.values) for finding in found}
    return _closed({**said, "settings": [one.values() for one in plan.settings]})


def _closed(value: Any) -> Any:
    if isinstance(value, Fitted):
        value = value._asdict()
    if isinstance(value, dict):
        return {name: _closed(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [_closed(one) for one in value]
    return None if value == math.inf else value

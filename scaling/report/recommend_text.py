"""What `recommend` found, in a terminal of 80 columns and for JSON."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from scaling.analysis.candidates import Candidate
from scaling.analysis.critical_batch import Estimate, LearningPlan
from scaling.analysis.recommend import Recommendation
from scaling.report.terminal import filled
from scaling.report.text import line_of, text_of
from scaling.report.titles import title_of, unit_of

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
    names: dict[str, dict[str, None]] = {}
    for candidate in recommendation.excluded:
        name = candidate.name if candidate.reason.kind in BY_SETTING else candidate.aggregator
        names.setdefault(text_of(candidate.reason), {})[name] = None
    for reason, those in names.items():
        yield filled(f"left out: {', '.join(those)} ({reason})", indent=2)
    yield ""


def as_dict(recommendation: Recommendation) -> dict[str, Any]:
    return {
        "objective": recommendation.objective,
        "workload": title_of(recommendation.workload),
        "state": recommendation.state,
        "choice": _choice(recommendation.choice),
        "runner_up": _choice(recommendation.runner_up),
        "rivals": [_choice(rival.candidate) for rival in recommendation.rivals],
        "ruled_out": [candidate.name for candidate in recommendation.ruled_out],
        "trade_off": recommendation.trade_off and recommendation.trade_off.values["points"],
        "remarks": [text_of(remark) for remark in recommendation.remarks],
        "workers": recommendation.workers and asdict(recommendation.workers),
        "aggregator": recommendation.aggregator and asdict(recommendation.aggregator),
        "more_repeats": recommendation.more_repeats,
        "is_noisy": recommendation.is_noisy,
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
    return {
        "name": choice.name,
        "cell_id": choice.row["cell_id"],
        "aggregator": choice.row["aggregator"],
        "world_size": choice.row["world_size"],
        "value": choice.value,
        "low": choice.low,
        "high": choice.high,
        "unit": unit_of(choice.values()),
        "method": choice.method,
        "launches": choice.num_launches,
    }


def plan_lines(plan: LearningPlan) -> str:
    return "".join(f"{filled(text_of(finding))}\n" for finding in plan.findings())


def plan_as_dict(plan: LearningPlan) -> dict[str, Any]:
    """What was found, in words and values, and every setting; open ends of intervals are null."""
    found = list(plan.findings())
    said: dict[str, Any] = {"sentences": [text_of(finding) for finding in found]}
    said |= {finding.kind: dict(finding.values) for finding in found}
    return _closed({**said, "settings": [one.values() for one in plan.settings]})


def _closed(value: Any) -> Any:
    if isinstance(value, Estimate):
        value = value._asdict()
    if isinstance(value, dict):
        return {name: _closed(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [_closed(one) for one in value]
    return None if value == math.inf else value

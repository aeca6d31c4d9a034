"""The answer of a study in words: the last lines of `run`, the first ones of `recommend` and of the page."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from scaling.analysis.findings import Finding
from scaling.report.text import text_of
from scaling.report.titles import short_names, title_parts

MOST_LINES = 5


@dataclass(frozen=True)
class Fact:
    """One part of an answer: of what it speaks, what is said in a few words, and why."""

    label: str
    value: str
    detail: str = ""


def facts_of(verdict: Finding) -> list[Fact]:
    """The parts of an answer below its headline: aggregator, limit where one is known, how sure it is."""
    parts = [Fact("Aggregator", text_of(verdict, "aggregator"), text_of(verdict, "aggregator_why"))]
    if limit := text_of(verdict, "limit"):
        parts.append(Fact("Limit", limit))
    return [*parts, Fact(text_of(verdict, "sure"), text_of(verdict, "sure_why"))]


def verdict_lines(verdicts: Sequence[Finding]) -> list[str]:
    """At most MOST_LINES: of one answer all its parts, of several the headline of each."""
    if len(verdicts) == 1:
        return list(_all_of(verdicts[0]))
    names = names_of(verdicts)
    lines = [f"{name}: {text_of(verdict, 'brief')}" for name, verdict in zip(names, verdicts, strict=True)]
    if len(lines) > MOST_LINES:
        num_more = len(lines) - MOST_LINES + 1
        lines[MOST_LINES - 1 :] = [f"{num_more} more answers: see the report."]
    return lines


def names_of(verdicts: Sequence[Finding]) -> list[str]:
    """The workloads, each by what distinguishes it from the others."""
    names = short_names([title_parts(verdict.values["workload"]) for verdict in verdicts])
    return [", ".join(parts) for parts in names]


def _all_of(verdict: Finding) -> Iterator[str]:
    yield text_of(verdict)
    for fact in facts_of(verdict):
        yield f"{fact.label}: {fact.value}{f' ({fact.detail})' if fact.detail else ''}."
    if experiment := text_of(verdict, "next"):
        yield f"Next: {experiment}."

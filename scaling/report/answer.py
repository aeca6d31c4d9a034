"""A study's answer: a sentence, a table of a row a workload, and what limits, how sure, what next.

Terminal, page and Markdown begin with it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from scaling.analysis.findings import Finding
from scaling.report.formats import MISSING, of_speedup, ratio, spread
from scaling.report.tables import Column, Table, table_of
from scaling.report.text import text_of
from scaling.report.verdict_text import names_of, verdict_lines

LIMITS = {
    "busy_host": "busy host",
    "codec": "encoding",
    "exposed_communication": "exchange",
    "feeding": "input",
    "host_sums": "host copies",
    "launches": "kernel launches",
    "not_hidden": "exchange",
    "open_time": "other",
    "oversubscribed": "too few cores",
    "periodic": "periodic stalls",
    "tiny_buckets": "small buckets",
    "update": "optimizer",
}
"""Kind of a limit -> what it is called in a table; others are called by their kind."""


@dataclass(frozen=True)
class Answer:
    """What a study answers.

    Attributes:
        sentence: the answer; "" where there is none.
        table: None where a sentence is all.
        details: without which it would mislead; then of the first workload what limits, how sure, what next.
        command: of the last of the details, to be pasted; "" where there is none.
        cells: ids of those that the sentence is about.
    """

    sentence: str = ""
    table: Table | None = None
    details: list[str] = field(default_factory=list)
    command: str = ""
    cells: Sequence[str] = ()

    @property
    def lines(self) -> list[str]:
        """The sentence and the details, the last one with the command."""
        lines = [*filter(None, [self.sentence]), *self.details]
        return [*lines[:-1], f"{lines[-1]} {self.command}"] if self.command else lines


def answer_of(verdicts: Sequence[Finding], command: str = "", cautions: Sequence[str] = ()) -> Answer:
    """The answer of what was timed or trained.

    Args:
        verdicts: at least one, the first one first.
        command: of its next experiment.
        cautions: without which the answer would mislead.
    """
    sentence, *details = verdict_lines(verdicts, command)
    if command:
        details[-1] = details[-1].removesuffix(f" {command}")
    return Answer(sentence, workers_table(verdicts), [*cautions, *details], command, verdicts[0].cells)


def workers_table(verdicts: Sequence[Finding]) -> Table:
    """How many workers each workload takes, how fast it is then, and what limits it."""
    units = {verdict.values["unit"] for verdict in verdicts}
    columns: list[Column[tuple[str, Finding]]] = [
        Column("workload", lambda one: one[0]),
        Column(
            f"{units.pop() if len(units) == 1 else 'worker'}s", lambda one: str(one[1].values["world_size"])
        ),
        Column("time", lambda one: text_of(one[1], "time").partition(" a step")[0]),
        Column("±", lambda one: _spread(one[1])),
        Column("speedup", lambda one: ratio(one[1].values["speedup"]) + of_speedup(one[1].values)),
        Column("aggregator", lambda one: _aggregator(one[1])),
        Column("limit", lambda one: limit_word(one[1])),
    ]
    names = [
        name.replace(" strong scaling,", "").replace("global batch", "batch") for name in names_of(verdicts)
    ]
    rows = [*zip(names, verdicts, strict=True)]
    table = table_of(
        "The fastest of each workload",
        "Time of a step, or of a training to its target; ±: half of its 95% interval (several launches).",
        columns,
        rows,
        cells=[list(verdict.cells) for verdict in verdicts],
    )
    return without_empty_columns(table)


def _spread(verdict: Finding) -> str:
    """One launch shows no more than the spread of its own steps."""
    values = verdict.values
    return MISSING if values["confidence"] == "one_launch" else spread(values["half_width_ratio"]) or MISSING


def _aggregator(verdict: Finding) -> str:
    values = verdict.values
    if values["world_size"] == 1:
        return MISSING
    num_more = len(values["ties"])
    return f"{text_of(verdict, 'choice')}{f' or {num_more} more' if num_more else ''}"


def limit_word(verdict: Finding) -> str:
    """What limits in a word or two; a dash where that is not known."""
    values = verdict.values
    if values["is_too_noisy"]:
        return "unknown (noise)"
    if losses := values["losses"]:
        if not losses["is_resolved"]:
            return "unknown (noise)"
        return "exchange" if (losses["rest_s"] or 0.0) < losses["exchange_s"] else "computation"
    if values["limit"] is None:
        return MISSING
    return LIMITS.get(values["limit"].kind, values["limit"].kind.replace("_", " "))


def without_empty_columns(table: Table) -> Table:
    """The table without the columns in which no row has a value."""
    kept = [
        place
        for place in range(len(table.headings))
        if place == 0 or any(row[place] not in (MISSING, "") for row in table.rows)
    ]
    return replace(
        table,
        headings=[table.headings[place] for place in kept],
        rows=[[row[place] for place in kept] for row in table.rows],
    )

"""What a report says, before it becomes a page or Markdown."""

from __future__ import annotations

import re
import shlex
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pandas as pd

from scaling.aggregator_names import REGISTRY
from scaling.analysis.columns import SEPARATOR, Row, aggregator_name, by_key, has_no_model, to_rows
from scaling.analysis.explain_view import Known
from scaling.analysis.findings import Finding
from scaling.analysis.groups import group_rows
from scaling.analysis.progress import WallTime
from scaling.analysis.questions import answers as question_answers
from scaling.analysis.questions import question_of
from scaling.analysis.study_scatter import StudyScatter, study_scatter
from scaling.analysis.summary import MeasuredStudy, notes_of, num_cores
from scaling.analysis.summary_findings import summary_findings
from scaling.analysis.verdict import verdicts
from scaling.axes import ATTACHED
from scaling.report.answer import Answer, answer_of, question_answer
from scaling.report.blocks import Block, blocks_of
from scaling.report.formats import MISSING
from scaling.report.page_tables import page_tables
from scaling.report.tables import SavedFigure, Section, Table, arrange
from scaling.report.text import Sentence, sentences_of, text_of
from scaling.report.verdict_text import asked, command_of
from scaling.store import ResultsFolder

SETTINGS = {
    "peer_access": "Peer access: GPUs copy to each other directly; without it every copy goes through the "
    "host's memory.",
    "step": "Eager step: the exchange follows the backward pass. Overlapped: it runs during the backward "
    "pass. Captured: the whole step is one CUDA graph.",
}
"""Column -> what its values mean; said where a study has several of them."""


def name_in(label: str) -> str:
    """The aggregator's name in a table's row: `ring(directions=2)`, `cntk, older code`."""
    return re.split(r"\W", label, maxsplit=1)[0]


CAUTIONS = ("nothing_done", "more_threads_than_cores", "several_hosts", "launch_set_aside", "unfinished")
"""Kinds of findings that stand at the top of the page, whatever the answer is."""

IN_ANSWERS = ("final_accuracy", "seed_noise", "seed_noise_unknown", "transfer_rates")
"""Kinds of findings that say at length what an answer and its table say."""

ASKED = {
    "speedup": "how many workers",
    "aggregator": "which aggregator",
    "compression": "does compression pay",
    "memory": "memory and time",
    "time_to_target": "time to an accuracy",
    "devices": "which device",
    "transfer": "how fast transfers are",
    "buckets": "which size of buckets",
}
"""Question of a study -> what it studies, in the page's title."""


@dataclass(frozen=True)
class Content:
    name: str  # the study's
    folder: str  # the results folder's path, as commands name it
    findings: list[Sentence]  # what was found, the most important first
    verdicts: Sequence[Finding]  # the answers by workload, the first one the page's
    answer: Answer  # what terminal, page and Markdown begin with
    blocks: list[Block]  # what belongs to each workload; the first one is that of the first answer
    sections: list[Section]  # all figures and tables; of the page those that belong to no workload
    wall_time: str | None  # how the time divided; None where that was not recorded
    script_answer: list[str]  # what `scaling attach` found about a script; empty for other studies
    notes: list[str]  # notes, cell_notes: of the study, and of its cells
    cell_notes: list[str]
    failed: list[Row]  # rows of failed cells
    states: dict[str, int]  # state -> cells, of those that are not failed
    num_cells: int  # of the study
    environment: list[tuple[str, str]] | None  # (dotted path, text); None where it was not recorded
    machine: str = ""  # its GPUs, or its processor; "" where that was not recorded
    # name -> description of those in the study, "" where one has none
    aggregators: Mapping[str, str] = field(default_factory=dict)
    settings: Sequence[str] = ()  # what the settings mean in which its cells differ
    # the table that `scaling import-table` made the folder of; "" where the folder is measured
    imported: str = ""
    can_run: bool = True  # `scaling run` takes its study.yaml
    question: str = "speedup"  # what the study asks (`scaling.analysis.questions`)

    @property
    def title(self) -> str:
        asked, what = self.answer.sentence.partition("?")[0], ASKED[self.question]
        if self.question == "devices" and self.answer.sentence.count("?") == 1:
            what = f"{asked[0].lower()}{asked[1:]}"
        elif self.verdicts and all([*one.values["world_sizes"]] == [1] for one in self.verdicts):
            what = "time of a step"
        return self.name if self.script_answer else f"{self.name}: {what}"


@dataclass(frozen=True)
class Extras:
    """What a report has besides the summary's own."""

    # tables, findings: of cells without a model, and of predictions; they stand behind the summary's
    tables: list[Table] = field(default_factory=list)
    findings: list[Sentence] = field(default_factory=list)
    # (section, what is said there: what is left out, and why)
    remarks: list[tuple[str, str]] = field(default_factory=list)
    verdicts: Sequence[Finding] = ()  # the answers (`scaling.analysis.verdict`)
    # of the first one's next experiment, or of trainings with seeds; "" where there is none
    command: str = ""
    scatter: StudyScatter = field(default_factory=lambda: study_scatter({}))  # of the cells over launches
    headline: str = ""  # the answer of a study without verdicts, in a sentence
    lossy: Collection[str] = ()  # ids of the cells with a lossy exchange
    answers: Sequence[Finding] = ()  # to the study's question (`scaling.analysis.questions`)
    table: Table | None = None  # of an answer that is a headline; None where the headline is all


def content_of(
    study: Mapping[str, Any],
    environment: Mapping[str, Any] | None,
    table: pd.DataFrame,
    figures: Sequence[SavedFigure],
    times: WallTime | None = None,
    extras: Extras | None = None,
    folder: Path | str = "DIR",
) -> Content:
    """Everything that a report says of a study, of what `summary_table` made and of what was drawn."""
    rows, extras = to_rows(table), extras or Extras()
    notes, script_answer = notes_of(study)
    compared = (row for row in rows if not has_no_model(row) and row["arm"] is None)
    names = dict.fromkeys(aggregator_name(row["aggregator"]) for row in compared)
    values = {name: {row[name] for row in rows if row["kind"] != "device"} for name in SETTINGS}
    groups = group_rows(rows)
    findings = summary_findings(table, extras.scatter, num_cores(environment), extras.lossy)
    tables = [table for group in groups for table in page_tables(group, groups)]
    cautions = [finding for finding in findings if finding.kind in CAUTIONS]
    sentences = [*sentences_of(findings), *extras.findings]
    answer, question = _found(extras, sentences), question_of(study, rows)
    if extras.answers and extras.answers[0].kind == "answer_compression":
        question = "compression"
    if extras.verdicts:
        answer = answer_of(extras.verdicts, extras.command, cautions, extras.answers)
    return Content(
        name=str(study.get("name", "study")),
        folder=shlex.quote(str(folder)),
        findings=sentences,
        verdicts=extras.verdicts,
        answer=answer,
        blocks=blocks_of(
            groups,
            figures,
            [*tables, *extras.tables],
            [
                *(replace(one, cells=one.cells[:1]) for one in extras.answers if extras.verdicts),
                *extras.verdicts,
            ],
            has_answer_table=not extras.verdicts and bool(extras.answers or extras.table),
        ),
        sections=arrange(figures, [*tables, *extras.tables], extras.remarks),
        wall_time=text_of(times.finding) if times else None,
        script_answer=script_answer,
        notes=notes,
        cell_notes=_notes(rows),
        failed=[row for row in rows if row["state"] == "failed"],
        states={one: sum(row["state"] == one for row in rows) for one in ("planned", "running", "done")},
        num_cells=len(rows),
        environment=None if environment is None else flatten(environment),
        machine=machine_of(environment, rows),
        aggregators={name: REGISTRY.description(name) for name in names},
        settings=[what for name, what in SETTINGS.items() if len(values[name] - {None}) > 1],
        imported=str((environment or {}).get("imported", "")),
        question=question,
        can_run=ATTACHED not in [part.get("kind") for part in study.get("parts", ())],
    )


def study_answer(folder: ResultsFolder, study: MeasuredStudy, known: Known) -> Answer | None:
    question = question_of(folder.study(), known.rows)
    found = asked(verdicts(study.table, study.cells, known=known), question)
    if not found:
        return None
    findings = summary_findings(study.table, known.scatter, known.num_cores, known.lossy)
    cautions = [finding for finding in findings if finding.kind in CAUTIONS]
    answers = question_answers(question, study.table, study.cells)
    return answer_of(found, command_of(found, [], folder), cautions, answers)


def _found(extras: Extras, sentences: Sequence[Sentence]) -> Answer:
    """The answer of a study without verdicts: trainings, device studies, transfers."""
    asked = question_answer(extras.answers) if extras.answers else Answer(extras.headline, extras.table)
    if not asked.sentence:
        first, *others = [one.text for one in sentences] or [""]
        return Answer(first, extras.table, explained=others)
    said = [one.text for one in sentences if one.kind not in IN_ANSWERS]
    question, mark, _ = asked.sentence.partition("?")  # what answers it at length is no detail
    explained = [text for text in said if not mark or text.partition("?")[0] != question]
    details = ["Limit and speed of a step: unknown (none was timed)."] if extras.answers else []
    if extras.command:
        details.append("Next: train with three seeds, to see how much is chance:")
    return replace(asked, details=details, command=extras.command, explained=explained)


def machine_of(environment: Mapping[str, Any] | None, rows: Sequence[Row]) -> str:
    """`4 x NVIDIA H200`, `1 of 4 x ...` where cells use one, or the processor; "" if not known."""
    gpus = (environment or {}).get("gpus") or []
    names = [str(gpu["name"]) for gpu in gpus if isinstance(gpu, Mapping) and "name" in gpu]
    used = max((row["world_size"] for row in rows if row["device"] == "cuda"), default=0)
    if names and (used or not rows):
        part = f"{used} of " if 0 < used < len(names) else ""
        return part + ", ".join(f"{names.count(name)} x {name}" for name in dict.fromkeys(names))
    cpu, cores = (environment or {}).get("cpu"), num_cores(environment)
    model = cpu.get("model") if isinstance(cpu, Mapping) else None
    return ", ".join(filter(None, [str(model or ""), f"{cores} CPU cores" if cores else ""]))


def flatten(value: Any, path: str = "") -> list[tuple[str, str]]:
    """Nested mappings and lists -> (dotted path, text) rows; a list of plain values stays one row."""
    if isinstance(value, Mapping):
        items = [(str(key), item) for key, item in value.items()]
    elif isinstance(value, list) and any(isinstance(item, (Mapping, list)) for item in value):
        items = [(str(index), item) for index, item in enumerate(value)]
    else:
        values = value if isinstance(value, list) else [value]
        return [(path, ", ".join(MISSING if item is None else str(item) for item in values) or MISSING)]
    return [row for key, item in items for row in flatten(item, f"{path}.{key}" if path else key)]


def _notes(rows: Sequence[Row]) -> list[str]:
    """The cells' notes, each once, with the cells that it belongs to."""
    noted = [(note, row) for row in rows for note in filter(None, (row["notes"] or "").split(SEPARATOR))]
    texts = []
    for note, same in by_key(noted, lambda pair: pair[0]).items():
        names = dict.fromkeys(f"{row['aggregator'] or row['kind']} x {row['world_size']}" for _, row in same)
        texts.append(f"{note} ({', '.join(names)})")
    return texts

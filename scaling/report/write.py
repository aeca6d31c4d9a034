"""Writes all that is made from a results folder."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from scaling.analysis.budgets import step_table
from scaling.analysis.columns import Row, to_rows
from scaling.analysis.critical_batch import learning_plans
from scaling.analysis.environments import environment_of
from scaling.analysis.explain_view import Known
from scaling.analysis.groups import group_rows
from scaling.analysis.learning import epoch_table
from scaling.analysis.links import CellLinks, link_table, links_of
from scaling.analysis.progress import WallTime, wall_time
from scaling.analysis.questions import answers as question_answers
from scaling.analysis.questions import question_of
from scaling.analysis.samples import CellResult, read_cells
from scaling.analysis.seed_noise import lossy_ids, seed_noise, seed_noise_finding
from scaling.analysis.summary import build_table, num_cores, study_name, table_csv
from scaling.analysis.summary_findings import unfinished_trainings
from scaling.analysis.transfers import (
    TransferResult,
    machine_text,
    read_transfers,
    transfer_findings,
    transfer_rows,
    transfers_csv,
)
from scaling.analysis.verdict import verdicts
from scaling.report.content import Content, Extras, content_of
from scaling.report.device import (
    DeviceResults,
    device_answer_table,
    device_headline,
    device_sentences,
    device_tables,
    read_devices,
    with_devices,
)
from scaling.report.device.axes import axis_sentences, axis_tables, over_axes
from scaling.report.figures.base import FigureInput
from scaling.report.figures.draw import Formats, draw_figures
from scaling.report.figures.maps import link_remarks
from scaling.report.html import render_markdown, render_page
from scaling.report.lossy_tables import fidelity_tables, noise_table, seed_noise_tables, sheet_tables
from scaling.report.predictions import predicted_csv, prediction_findings, prediction_tables, read_predictions
from scaling.report.status import lost_text, without_record
from scaling.report.text import Sentence, sentences_of, text_of, title_of, with_texts
from scaling.report.transfer_tables import answer_table, page_tables
from scaling.report.verdict_text import asked, command_of, path_in_commands
from scaling.store import ResultsFolder, Snapshot
from topologies.errors import TopologyError
from topologies.file_text import validated
from topologies.model import Topology

STEP_DIGITS = 9  # significant ones in budget.csv, nanoseconds of a step, and in convergence.csv
MANY_CELLS, MOST_DRAWN = 300, 40
"""A study of more cells than the first has figures of the second number, group by group."""


@dataclass(frozen=True)
class WrittenReport:
    page: Path
    table: pd.DataFrame
    transfers: list[TransferResult]
    times: WallTime | None
    content: Content
    experiments: list[DeviceResults]

    @property
    def answer(self) -> list[str]:
        return self.content.answer.lines

    @property
    def chosen(self) -> list[str]:
        return [verdict.cells[0] for verdict in self.content.verdicts]

    def markdown(self) -> str:
        return render_markdown(self.content)

    def as_dict(self) -> dict[str, Any]:
        return {
            "report": str(self.page),
            "answer": self.answer,
            "wall_time": self.times.as_dict() if self.times else None,
            "cells": to_rows(with_texts(self.table)),
            "transfers": transfer_rows(self.transfers),
        }


def write_all(
    folder: ResultsFolder, formats: Formats, before_page: Callable[[], None] = lambda: None
) -> WrittenReport:
    folder = Snapshot.of(folder.require())
    cells, experiments = read_cells(folder), read_devices(folder)
    table = with_devices(build_table(study_name(folder), cells), experiments)
    folder.write_text("summary.csv", table_csv(with_texts(table)))
    folder.write_text("budget.csv", table_csv(step_table(cells), digits=STEP_DIGITS))
    if any(cell.trainings or cell.begun for cell in cells):
        folder.write_text("convergence.csv", table_csv(epoch_table(cells), digits=STEP_DIGITS))
    by_id, rows = {cell.cell_id: cell for cell in cells}, to_rows(table)
    links, remarks = _write_links(folder, rows, by_id)
    transfers, predicted = read_transfers(folder), read_predictions(folder, rows)
    if transfers:
        folder.write_text("transfers.csv", transfers_csv(study_name(folder), transfers))
    if transfers and (machine := machine_text(transfers)) is not None:
        folder.write_text("probed.yaml", machine)
    if predicted:
        folder.write_text("predicted.csv", predicted_csv(predicted))
    # A folder without an environment gets a page that says so; a damaged one is an error.
    environment = environment_of(folder)
    question = question_of(folder.study(), rows)
    known = Known.of(rows, cells, num_cores(environment))
    answers = asked(verdicts(table, cells, known=known), question)
    to_question = question_answers(question, table, cells)
    best = {answer.cells[0] for answer in (*answers, *to_question)}
    drawn, left_out = drawn_rows(known.rows, everything=formats.everything)
    data = FigureInput(drawn, by_id, links, transfers, predicted, experiments, best, question)
    figures, failures = draw_figures(folder, data, formats)
    groups = group_rows(rows)
    noise = seed_noise(groups, by_id)
    plans = learning_plans(rows, by_id)
    rates, found = [*transfer_findings(transfers)], [seed_noise_finding(recipe) for recipe in noise]
    seeds = found if [one.kind for one in found] == ["seed_noise"] else []
    over_axis = [*over_axes(rows, known.scatter)]
    extras = Extras(
        tables=[
            *seed_noise_tables(noise),
            *page_tables(transfers),
            *device_tables(experiments),
            *axis_tables(over_axis),
            *prediction_tables(predicted),
            *fidelity_tables(groups, by_id),
            *sheet_tables(folder.sheets()),
        ],
        findings=[
            *(Sentence(f"{lost_text(*lost)}.") for lost in without_record(folder).items()),
            *sentences_of(unfinished_trainings(groups, by_id)),
            *sentences_of(found),
            *sentences_of(one for plan in plans if plan.fit for one in plan.findings()),
            *sentences_of(rates),
            *map(Sentence, (*device_sentences(experiments), *axis_sentences(over_axis))),
            *sentences_of(prediction_findings(predicted)),
        ],
        remarks=[*remarks, *(("more", text) for text in (*failures, *left_out))],
        verdicts=answers,
        command=command_of(answers, found, folder),
        scatter=known.scatter,
        lossy=lossy_ids(cells),
        answers=to_question,
        table=answer_table(transfers) or noise_table(noise) or device_answer_table(experiments),
        headline=device_headline(experiments)
        or " ".join(text_of(one, "headline") for one in (rates or seeds)),
    )
    before_page()
    times = wall_time(folder.launch_times(), folder.launch_times("command-"))
    content = content_of(folder.study(), environment, table, figures, times, extras, path_in_commands(folder))
    page = folder.write_text("report.html", render_page(content))
    return WrittenReport(page, table, transfers, times, content, experiments)


def drawn_rows(rows: Sequence[Row], *, everything: bool) -> tuple[list[Row], list[str]]:
    """The rows of which figures are drawn: of a large study the first groups, with a remark on the others."""
    groups = [] if everything or len(rows) <= MANY_CELLS else group_rows(rows)
    left_out, room = list[str](), MOST_DRAWN
    for group in groups:
        if len(group.rows) > room:
            left_out += [row["cell_id"] for row in (*group.rows, *group.replicates)]
        room -= min(room, len(group.rows))
    if not left_out:
        return list(rows), []
    known = set(left_out)
    remark = (
        f"Figures of {len(left_out)} of {len(rows)} cells are not drawn, since the study has more than "
        f"{MANY_CELLS}: `scaling report DIR --all` draws them."
    )
    return [row for row in rows if row["cell_id"] not in known], [remark]


def _write_links(
    folder: ResultsFolder, rows: Sequence[Row], cells: Mapping[str, CellResult]
) -> tuple[dict[str, list[CellLinks]], list[tuple[str, str]]]:
    """Writes links.csv, where there is anything to tell; returns the links by group, and what is left out."""
    topology, links, left_out = read_topology(folder), {}, {}
    for group in group_rows(rows):
        if group.kind == "iteration":
            links[group.slug], left_out[title_of(group.given)] = links_of(group, cells, topology)
    if any(links.values()):
        linked = [cell for cells_of_group in links.values() for cell in cells_of_group]
        folder.write_text("links.csv", table_csv(link_table(linked), digits=STEP_DIGITS))
    return links, [("links", remark) for remark in link_remarks(links, left_out)]


def read_topology(folder: ResultsFolder) -> Topology | None:
    """The machine that the study ran on; None where it was not recorded, or not in a form that is known."""
    text = folder.topology_text()
    if text is None:
        return None
    try:
        return validated(text, f"{folder.path}/topology.yaml")
    except TopologyError:
        return None

"""`scaling explain` and `recommend`: what limits a cell, with the next experiment; which setting to use."""

from __future__ import annotations

import json
import math
from contextlib import suppress
from dataclasses import asdict
from typing import Annotated

import typer
from typer import Option

from scaling.cli.options import AsJson, CellArgument, Folder
from scaling.errors import ScalingError


def explain(directory: Folder, cell: CellArgument = None, as_json: AsJson = False) -> None:
    """Say what limits the cells of a study, each with an experiment to try.

    Rules and thresholds: docs/how-to/read-a-report.md. --json adds the numbers behind each sentence and the
    columns of summary.csv that it uses.
    """
    from scaling.analysis.columns import to_rows
    from scaling.analysis.explain import explained
    from scaling.analysis.explain_view import Known
    from scaling.analysis.summary import notes_of, read_study
    from scaling.report.advice_text import as_dict, choose, details, overview
    from scaling.report.content import study_answer
    from scaling.report.terminal import folded_answer
    from scaling.store import Snapshot

    folder = Snapshot(directory)
    study = read_study(folder)
    rows = to_rows(study.table)
    known = Known.of(rows, study.cells, study.num_cores)
    findings = explained(known)
    if not findings:
        raise ScalingError(
            f"{directory} has no timing and no training to explain; `scaling report {directory}` shows it"
        )
    chosen = rows if cell is None else choose(rows, cell)
    if as_json:
        entries = [
            {
                "cell_id": row["cell_id"],
                "aggregator": row["aggregator"],
                "world_size": row["world_size"],
                "findings": [as_dict(finding) for finding in findings[row["cell_id"]]],
            }
            for row in chosen
            if row["cell_id"] in findings
        ]
        typer.echo(json.dumps(entries, indent=1, default=asdict))
        return
    _, of_script = notes_of(folder.study())
    if cell is None and not of_script and (answer := study_answer(folder, study, known)):
        typer.echo("\n".join([*folded_answer(answer), "", "What limits each setting:"]))
    lines = overview(rows, findings, of_script) if cell is None else details(rows, findings, chosen)
    typer.echo("\n".join(lines).rstrip())
    if cell is None:
        typer.echo(f"all of a cell: `scaling explain {directory} AGGREGATOR@WORKERS`", err=True)


def recommend(
    directory: Folder,
    objective: Annotated[
        str,
        Option(
            help="time, time-to-accuracy (of settings that were trained), time-to-target, "
            "gpu-hours-to-target, energy-to-target (of all that were timed, by steps fitted to trainings), "
            "'efficiency >= 0.8' (shortest time at that efficiency), gpu-hours, energy or memory."
        ),
    ] = "time",
    max_memory: Annotated[
        str | None,
        Option(metavar="SIZE", help="Leave out settings that need more on a GPU, such as 40GB or 40GiB."),
    ] = None,
    topology: Annotated[
        str,
        Option(metavar="NAME", help="To a target: also predicted steps on this machine, as of `predict`."),
    ] = "",
    world_sizes: Annotated[
        str, Option(metavar="SIZES", help="With --topology: numbers of workers to predict, as 8,16.")
    ] = "",
    as_json: AsJson = False,
) -> None:
    """Recommend a setting for each workload, or say what would decide; exit code 3 if undecided.

    Never recommends a lossy aggregator without a measured accuracy, or a control arm.
    """
    from pydantic import ByteSize, TypeAdapter, ValidationError

    from scaling.analysis.columns import to_rows
    from scaling.analysis.critical_batch import learning_plans
    from scaling.analysis.explain_view import Known
    from scaling.analysis.objectives import TARGETS
    from scaling.analysis.recommend import recommend as find
    from scaling.analysis.summary import read_study
    from scaling.cli.predict import steps_on
    from scaling.report.advice_text import lines_of, plan_as_dict, plan_lines, recommendation_as_dict
    from scaling.report.content import study_answer
    from scaling.report.terminal import folded_answer
    from scaling.store import Snapshot

    most_bytes = None
    if max_memory is not None:
        with suppress(ValidationError):
            most_bytes = int(TypeAdapter(ByteSize).validate_python(max_memory))
        if most_bytes is None or most_bytes <= 0:
            raise ScalingError(
                f"--max-memory: {max_memory!r} is no size; write a number and a unit, such as 40GB or 40GiB"
            )
    quantity = TARGETS.get(objective.replace("_", "-"))
    if bool(topology) != bool(world_sizes) or (topology and not quantity):
        raise ScalingError(
            "--topology NAME and --world-sizes SIZES belong together, and to --objective "
            f"{', '.join(TARGETS)}"
        )
    folder = Snapshot(directory)
    study = read_study(folder)
    known = Known.of(to_rows(study.table), study.cells, study.num_cores)
    if quantity:
        steps = steps_on(directory, topology, world_sizes) if topology else []
        plans = learning_plans(known.rows, known.cells, most_bytes or math.inf, steps)
        if not plans:
            raise ScalingError(
                f"{directory} has no training with a target: {objective} takes a part of kind convergence "
                "with target_accuracy or target_bits_per_byte, at three batches, and one of kind iteration"
            )
        if as_json:
            typer.echo(json.dumps([plan_as_dict(plan, quantity) for plan in plans], indent=1))
        else:
            typer.echo("\n".join(plan_lines(plan, quantity) for plan in plans))
        if not all(plan.least(quantity) for plan in plans):
            raise typer.Exit(3)
        return
    answers = find(study.table, study.cells, objective, study.num_cores, most_bytes, known)
    if not answers:
        raise ScalingError(
            f"{directory} has no cell that tells of {objective}: time, efficiency, gpu-hours, energy and "
            "memory need a part of kind iteration, time-to-accuracy one of kind convergence with "
            f"target_accuracy; `scaling report {directory}` shows what it has"
        )
    if as_json:
        typer.echo(json.dumps([recommendation_as_dict(answer) for answer in answers], indent=1))
    else:
        if objective == "time" and most_bytes is None and (first := study_answer(folder, study, known)):
            typer.echo("\n".join([*folded_answer(first), ""]))
        for answer in answers:
            typer.echo("\n".join(lines_of(answer)))
    if any(answer.state == "undecided" for answer in answers):
        raise typer.Exit(3)

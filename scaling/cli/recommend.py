"""`scaling recommend`: which setting to use."""

from __future__ import annotations

import json
import math
from contextlib import suppress
from typing import Annotated

import typer
from typer import Option

from scaling.cli.options import AsJson, Folder


def recommend(
    directory: Folder,
    objective: Annotated[
        str,
        Option(
            help="time, time-to-accuracy (of settings that were trained), time-to-target (of all that were "
            "timed, by steps fitted to trainings), 'efficiency >= 0.8' (shortest time at that efficiency), "
            "gpu-hours, energy or memory."
        ),
    ] = "time",
    max_memory: Annotated[
        str | None,
        Option(metavar="SIZE", help="Leave out settings that need more on a GPU, such as 40GB or 40GiB."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Recommend a setting for each workload, or say what would decide; exit code 3 if undecided.

    Never recommends a lossy aggregator without a measured accuracy, or a control arm.
    """
    from pydantic import ByteSize, TypeAdapter, ValidationError

    from scaling.analysis.columns import to_rows
    from scaling.analysis.critical_batch import learning_plans
    from scaling.analysis.explain_view import Known
    from scaling.analysis.objectives import TARGET
    from scaling.analysis.recommend import recommend as find
    from scaling.analysis.summary import read_study
    from scaling.errors import ScalingError
    from scaling.report.content import study_answer
    from scaling.report.recommend_text import as_dict, lines_of, plan_as_dict, plan_lines
    from scaling.report.screen import folded_answer
    from scaling.store import Snapshot

    most_bytes = None
    if max_memory is not None:
        with suppress(ValidationError):
            most_bytes = int(TypeAdapter(ByteSize).validate_python(max_memory))
        if most_bytes is None or most_bytes <= 0:
            raise ScalingError(
                f"--max-memory: {max_memory!r} is no size; write a number and a unit, such as 40GB or 40GiB"
            )
    folder = Snapshot(directory)
    study = read_study(folder)
    known = Known.of(to_rows(study.table), study.cells, study.num_cores)
    if objective.replace("_", "-") == TARGET:
        plans = learning_plans(known.rows, known.cells, most_bytes or math.inf)
        if not plans:
            raise ScalingError(
                f"{directory} has no training with a target: {TARGET} takes a part of kind convergence with "
                "target_accuracy or target_bits_per_byte, at three batches, and one of kind iteration"
            )
        said = [plan_as_dict(plan) for plan in plans] if as_json else []
        typer.echo(json.dumps(said, indent=1) if as_json else "\n".join(map(plan_lines, plans)))
        if not any(plan.settings for plan in plans):
            raise typer.Exit(3)
        return
    recommendations = find(study.table, study.cells, objective, study.num_cores, most_bytes, known)
    if not recommendations:
        raise ScalingError(
            f"{directory} has no cell that tells of {objective}: time, efficiency, gpu-hours, energy and "
            "memory need a part of kind iteration, time-to-accuracy one of kind convergence with "
            "target_accuracy; "
            f"`scaling report {directory}` shows what it has"
        )
    if as_json:
        typer.echo(json.dumps([as_dict(recommendation) for recommendation in recommendations], indent=1))
    else:
        if objective == "time" and most_bytes is None and (answer := study_answer(folder, study, known)):
            typer.echo("\n".join([*folded_answer(answer), ""]))
        for recommendation in recommendations:
            typer.echo("\n".join(lines_of(recommendation)))
    if any(recommendation.state == "undecided" for recommendation in recommendations):
        raise typer.Exit(3)

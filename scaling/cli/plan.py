"""`scaling plan`: the cells, launches and time of a study, without running it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer
from typer import Option

from scaling.cli.options import AsJson, Out, Overrides, StudyArgument, resolved_study


def plan(
    study: StudyArgument,
    overrides: Overrides = None,
    out: Out = None,
    skip_dominated: Annotated[
        bool, Option("--skip-dominated", help="Predict which cells can be the fastest, and skip the rest.")
    ] = False,
    budget: Annotated[
        str | None, Option(metavar="TIME", help="Keep only what fits into this time: 10m, 90s, 2h.")
    ] = None,
    results: Annotated[
        list[Path] | None, Option("--from", metavar="DIR", help="Results folder to predict from.")
    ] = None,
    topology_name: Annotated[
        str | None, Option("--topology", metavar="NAME", help="Machine to predict for (default: this one).")
    ] = None,
    write: Annotated[
        Path | None, Option(metavar="FILE", help="Write a study of the cells to measure.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Print the cells and launches of a study and an estimate of the time; runs nothing."""
    from scaling.study.planning import describe_plan, plan_as_dict

    if skip_dominated or budget:
        from scaling.cli.predict import plan_by_predictions

        plan_by_predictions(
            study,
            overrides,
            results or ([out] if out else []),
            topology_name,
            budget,
            write,
            skip_dominated=skip_dominated,
            as_json=as_json,
        )
        return
    resolved = resolved_study(study, overrides)
    folder = out or Path("results") / resolved.name
    typer.echo(
        json.dumps(plan_as_dict(resolved, folder), indent=1) if as_json else describe_plan(resolved, folder)
    )

"""`scaling list`: what can be named in a study or on the command line."""

from __future__ import annotations

import json
import sys
from itertools import takewhile
from typing import Annotated, Any

import typer
from typer import Argument

from scaling.cli.options import AsJson
from scaling.errors import StudyError
from scaling.files.texts import folded


def studies() -> list[dict[str, Any]]:
    """The shipped studies; the description is the comment of each below the line for editors."""
    from scaling.study.overrides import shipped_studies

    comments = {
        name: takewhile(lambda line: line.startswith("#"), text.splitlines()[1:])
        for name, text in shipped_studies().items()
    }
    return [
        {"name": name, "description": " ".join(line.lstrip("# ") for line in lines)}
        for name, lines in comments.items()
    ]


def aggregators() -> list[dict[str, Any]]:
    """All aggregators, with capabilities and parameters."""
    import dataclasses

    from scaling.aggregators.registry import REGISTRY

    told = ("lossy", "exchanges", "update_site", "min_world_size", "library")
    return [
        {
            "name": name,
            "description": _first_line(cls.__doc__),
            **{field: getattr(cls, field) for field in told},
            "parameters": {field.name: field.default for field in dataclasses.fields(cls)},
        }
        for name, cls in ((name, REGISTRY.load(name)) for name in REGISTRY.targets())
    ]


def models() -> list[dict[str, Any]]:
    """All models, with the number of trainable parameters (for their own data set where they adapt to it)."""
    import torch

    from scaling.workloads.registry import MODELS, build_module, create_dataset, create_model, resolve_shape

    entries = []
    for name in MODELS.targets():
        model = create_model(name)
        with torch.device("meta"):
            module = build_module(model, resolve_shape(model, create_dataset(model.dataset)))
        count = sum(parameter.numel() for parameter in module.parameters() if parameter.requires_grad)
        entries.append(
            {
                "name": name,
                "description": f"{count:,} parameters, for {model.dataset}; {model.source}",
                "num_parameters": count,
                "dataset": model.dataset,
                "source": model.source,
                "parameters": model.parameters,
            }
        )
    return entries


def datasets() -> list[dict[str, Any]]:
    """All data sets."""
    from scaling.workloads.registry import DATASETS

    return [
        {
            "name": name,
            "description": f"{_first_line(cls.__doc__)} {cls.source}",
            "real": cls.real,
            "source": cls.source,
        }
        for name, cls in ((name, DATASETS.load(name)) for name in DATASETS.targets())
    ]


def topologies() -> list[dict[str, Any]]:
    """All machines and clusters that are shipped."""
    from topologies.schema import load, shipped

    return [
        {"name": name, "description": one.description, "num_nodes": one.num_nodes, "num_gpus": one.num_gpus}
        for name, one in ((name, load(name)) for name in shipped())
    ]


def experiments() -> list[dict[str, Any]]:
    """All experiments of `kind: device`, with their parameters."""
    from scaling.device_studies.base import create, parameters_of
    from scaling.device_studies.declaration import EXPERIMENTS

    return [
        {
            "name": name,
            "description": _first_line(sys.modules[type(experiment).__module__].__doc__),
            "parameters": parameters_of(experiment),
        }
        for name, experiment in ((name, create(name)) for name in EXPERIMENTS.targets())
    ]


LISTS = {
    "studies": studies,
    "experiments": experiments,
    "aggregators": aggregators,
    "models": models,
    "datasets": datasets,
    "topologies": topologies,
}


def _first_line(docstring: str | None) -> str:
    return (docstring or "").strip().partition("\n")[0]


def list_(
    kind: Annotated[
        str | None,
        Argument(
            metavar="KIND",
            help="studies, experiments, aggregators, models, datasets or topologies; or schema: the JSON "
            "schema of a study file, for editors.",
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """List the names that a study or a command can use."""
    if kind is None:
        kinds = [{"name": name, "description": _first_line(made.__doc__)} for name, made in LISTS.items()]
        _show(kinds, as_json=as_json)
        return
    if kind == "schema":
        from scaling.study.schema import editor_schema

        typer.echo(json.dumps(editor_schema(), indent=1))
        return
    if kind not in LISTS:
        raise StudyError(f"cannot list {kind!r}; allowed: {', '.join(LISTS)}, schema")
    _show(LISTS[kind](), as_json=as_json)


def _show(entries: list[dict[str, Any]], *, as_json: bool) -> None:
    if as_json:
        typer.echo(json.dumps(entries, indent=1))
        return
    width = max(len(entry["name"]) for entry in entries)
    for entry in entries:
        typer.echo(folded(f"{entry['name']:{width}}  ", entry["description"]))

"""Reads study files by name or path, and applies `key=value` from the command line."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from importlib import resources
from pathlib import Path
from typing import Any

from scaling.errors import StudyError
from scaling.files.documents import MAX_YAML_BYTES, DocumentError, from_yaml, read_text
from scaling.registry import trust
from scaling.study.schema import Study, parse_study


def shipped_studies() -> dict[str, str]:
    """Name -> text of every study that comes with the package."""
    folder = resources.files("scaling.study") / "studies"
    files = sorted(
        (item for item in folder.iterdir() if item.name.endswith(".yaml")), key=lambda item: item.name
    )
    return {item.name.removesuffix(".yaml"): item.read_text(encoding="utf-8") for item in files}


def load_study(name: str, overrides: Sequence[str] = ()) -> Study:
    """A study by name or file, with overrides, validated; the code that it names may be imported, so never
    the study.yaml of somebody's results. StudyError: there is none, or something in it is wrong."""
    raw = _parse(study_text(name), name)
    for override in overrides:
        _apply(raw, override)
    study = parse_study(raw, name)
    trust(texts(raw))
    return study


def texts(raw: Any) -> Iterator[str]:
    """Every text value of a study or a cell, at any depth: names may stand in parameters too."""
    if isinstance(raw, str):
        yield raw
    elif isinstance(raw, dict | list):
        for value in raw.values() if isinstance(raw, dict) else raw:
            yield from texts(value)


def study_text(name: str) -> str:
    """The text of the study of that name or file. Raises StudyError: there is none."""
    path = Path(name)
    if path.suffix in (".yaml", ".yml") or os.path.isfile(path):  # which takes any text, however long
        try:
            return read_text(path, MAX_YAML_BYTES)
        except FileNotFoundError:
            raise StudyError(f"study file {name}: cannot be read: No such file or directory") from None
        except DocumentError as error:
            raise StudyError(f"study file {name}: {error}") from None
    shipped = shipped_studies()
    if name not in shipped:
        raise StudyError(
            f"no study {name!r}: give a YAML file, or one of the shipped studies: {', '.join(shipped)}"
        )
    return shipped[name]


def study_file(name: str) -> Path:
    """The file of the study of that name, with its whole path. Raises StudyError: there is none."""
    study_text(name)
    if name.endswith((".yaml", ".yml")) or os.path.isfile(name):
        return Path(name).absolute()
    return Path(str(resources.files("scaling.study") / "studies" / f"{name}.yaml"))


def _parse(text: str, name: str) -> Any:
    try:
        return from_yaml(text)
    except DocumentError as error:
        raise StudyError(f"{name}: {error}") from None


def _apply(raw: Any, override: str) -> None:
    """Sets one `dotted.key=value`; a top-level key also replaces those of parts; `kind` may choose parts."""
    key, separator, text = override.partition("=")
    if not separator or not key:
        raise StudyError(f"override {override!r} is not of the form key=value")
    value = _parse(text, f"override {override!r}")
    if not isinstance(raw, dict):
        return  # parse_study says what is wrong with the file
    path = key.split(".")
    if key == "kind" and isinstance(raw.get("parts"), list):
        raw["parts"] = [part for part in raw["parts"] if _kind_of(part, raw) == value]
        if not raw["parts"]:
            raise StudyError(f"override {override!r}: the study has no part of that kind")
        return
    if len(path) == 1:
        raw[key] = value
        for part in raw["parts"] if isinstance(raw.get("parts"), list) else []:
            if isinstance(part, dict):
                part.pop(key, None)  # inherited from the top where the part's kind knows it
                _drop_from_workloads(part, key)
        _drop_from_workloads(raw, key)
        return
    _set(raw, path, value, override)


def _kind_of(part: Any, raw: dict[str, Any]) -> Any:
    return part.get("kind", raw.get("kind", "iteration")) if isinstance(part, dict) else None


def _drop_from_workloads(part: dict[str, Any], key: str) -> None:
    """A workload's own value would win over its part's."""
    workloads = part.get("workloads")
    for workload in workloads if isinstance(workloads, list) else []:
        if isinstance(workload, dict):
            choices = workload.get("first_available", [workload])
            for choice in choices if isinstance(choices, list) else []:
                if isinstance(choice, dict):
                    choice.pop(key, None)


def _set(target: Any, path: list[str], value: Any, override: str) -> None:
    for depth, step in enumerate(path):
        where = ".".join(path[:depth]) or "the study"
        last = depth == len(path) - 1
        key: str | int = step
        if isinstance(target, list):
            if not step.isdigit() or int(step) >= len(target):
                raise StudyError(
                    f"override {override!r}: {where} is a list of {len(target)}; use an index from 0 to "
                    f"{len(target) - 1}, not {step!r}"
                )
            key = int(step)
        elif not isinstance(target, dict):
            raise StudyError(f"override {override!r}: {where} is {target!r}, which has no {step!r}")
        elif not last and step not in target:
            raise StudyError(f"override {override!r}: {where} has no {step!r}; it has {', '.join(target)}")
        if last:
            target[key] = value
        else:
            target = target[key]

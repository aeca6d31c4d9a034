"""Reads the text of a machine file; an error names file and key, what was given and what is allowed."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from scaling.files.documents import DocumentError, from_yaml, line_of
from topologies.errors import TopologyError
from topologies.file_format import NESTED, DerivedFile, MachineFile

AnyFile = TypeVar("AnyFile", bound=BaseModel)

MOST_PROBLEMS = 10
"""That a message names."""


def parse(text: str, source: str) -> MachineFile | DerivedFile:
    """Reads and validates the form of a machine file.

    Args:
        text: YAML.
        source: file or name, for messages.

    Raises:
        TopologyError: naming every key that is wrong.
    """
    try:
        raw = from_yaml(text)
    except DocumentError as error:
        raise TopologyError(f"{source}: {error}") from None
    if not isinstance(raw, Mapping):
        raise TopologyError(f"{source}: a machine file is a mapping of keys, as in `name: my-machine`")
    if "machine" in raw:
        return _validated(DerivedFile, raw, source, text)
    return _validated(MachineFile, raw, source, text)


def machine_file(raw: Mapping[str, Any], source: str) -> MachineFile:
    """A machine file from its content.

    Raises:
        TopologyError: naming every key that is wrong.
    """
    return _validated(MachineFile, raw, source)


def _validated(cls: type[AnyFile], raw: Mapping[str, Any], source: str, text: str = "") -> AnyFile:
    try:
        return cls.model_validate(raw)
    except ValidationError as error:
        problems: list[dict[str, Any]] = [dict(problem) for problem in error.errors(include_url=False)]
        explained = dict.fromkeys(
            (line_of(text, list(problem["loc"])), _explain(problem, cls)) for problem in problems
        )
        lines = [f"{source}: {what}{'' if line is None else f' (line {line})'}" for line, what in explained]
        if len(lines) > MOST_PROBLEMS:
            lines[MOST_PROBLEMS:] = [f"{source}: {len(lines) - MOST_PROBLEMS} more are wrong"]
        raise TopologyError("\n".join(lines)) from None


def unknown(what: str, name: object, allowed: Iterable[str]) -> str:
    """`unknown key 'nmae'; did you mean 'name'? (allowed: ...)`."""
    known = list(allowed)
    near = difflib.get_close_matches(str(name), known, n=1)
    hint = f"; did you mean {near[0]!r}?" if near else ""
    return f"unknown {what} {name!r}{hint} (allowed: {', '.join(known) or 'none'})"


def _explain(problem: dict[str, Any], cls: type[BaseModel]) -> str:
    location = problem["loc"]
    key = ".".join(str(part) for part in location if part not in ("literal['all','none']", "[key]"))
    if problem["type"] == "extra_forbidden":
        name = str(location[-1])
        if len(location) == 1 and name in DerivedFile.model_fields:
            return f"key {name!r} belongs to a file that names a 'machine'; leave it out, or name one"
        fields = (cls if len(location) == 1 else NESTED[str(location[0])]).model_fields
        where = f" under {key.rpartition('.')[0]!r}" if len(location) > 1 else ""
        return unknown("key", name, fields) + where
    if problem["type"] == "missing":
        hint = "; say where its figures come from" if location[-1] == "source" else ""
        return f"key {key!r} is missing{hint}"
    if location and location[0] == "peer_access":
        return (
            f"peer_access is {problem['input']!r}; allowed: all, none, or lists of GPUs: [[gpu0, gpu1], ...]"
        )
    message = problem["msg"].removeprefix("Value error, ")
    given = f" is {problem['input']!r}" if not isinstance(problem["input"], Mapping | list) else ""
    return f"{key}{given}: {message[0].lower()}{message[1:]}"

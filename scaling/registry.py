"""Finds a component by name, a built-in, another package's or `module:attribute`; checks its parameters."""

from __future__ import annotations

import ast
import dataclasses
import difflib
import importlib
import sys
from collections.abc import Iterable, Mapping
from functools import lru_cache
from importlib.metadata import entry_points
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TypeVar

from pydantic import TypeAdapter, ValidationError

from scaling.errors import StudyError

Component = TypeVar("Component")

_OWN_CODE: set[str] = set()


def trust(names: Iterable[str]) -> None:
    """Lets this process import these `module:attribute` names; no others are imported. For readers of what a
    person wrote: a study file, a command line. Of results and topologies, which are data, none is."""
    _OWN_CODE.update(name for name in names if ":" in name)


class Registry:
    """The components of one kind. `kind`: what they are called in messages ("aggregator"); `group`: the
    entry-point group in which other packages offer more; `built_in`: name -> "module:attribute"."""

    def __init__(self, kind: str, group: str, built_in: Mapping[str, str]) -> None:
        self.kind = kind
        self._group = group
        self._built_in = dict(built_in)

    def targets(self) -> dict[str, str]:
        """Name -> "module:attribute", built-ins first. StudyError: a package offers a name that is taken."""
        targets = dict(self._built_in)
        for name, target in offered(self._group, tuple(sys.path)):
            if targets.setdefault(name, target) != target:
                raise StudyError(
                    f"{self.kind} {name!r} is offered twice, as {targets[name]} and "
                    f"as {target}; uninstall one of the packages, or name yours as module:attribute"
                )
        return targets

    def load(self, name: str) -> Any:
        """The component called `name`. StudyError: there is none, it is not trusted, or its import fails."""
        if ":" in name and name not in _OWN_CODE:
            raise StudyError(
                f"{self.kind} {name!r} is code, and no study file of yours names it: results are data, and "
                "code that they name is not imported; name it in your own study to use it"
            )
        target = name if ":" in name else self.targets().get(name)
        if target is None:
            known = sorted(self.targets())
            near = difflib.get_close_matches(name, known, n=1)
            hint = f" (did you mean {near[0]!r}?)" if near else ""
            raise StudyError(
                f"unknown {self.kind} {name!r}{hint}; known: {', '.join(known)}, or module:attribute"
            )
        module_name, _, attribute = target.partition(":")
        try:
            return getattr(importlib.import_module(module_name), attribute)
        except (ImportError, AttributeError, ValueError, TypeError) as error:  # the last two: ":a", ".a:b"
            raise StudyError(f"{self.kind} {name!r}: cannot load {target}: {error}") from error
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # a package may raise anything when it is imported; SystemExit too
            reason = f"{type(error).__name__}: {error}"
            raise StudyError(
                f"{self.kind} {name!r}: cannot load {target}: {reason}; "
                f"`python -c 'import {module_name}'` shows where"
            ) from error

    def description(self, name: str) -> str:
        """The first line of a component's docstring, read without an import; "" where it is not found."""
        target = self._built_in.get(name) or dict(offered(self._group, tuple(sys.path))).get(name, "")
        return _first_line_of_doc(target)

    def create(self, name: str, base: type, parameters: Mapping[str, Any] | None) -> Any:
        """An instance of the dataclass called `name`. StudyError: it is unknown, no `base`, or set wrong."""
        cls = self.load(name)
        if not (isinstance(cls, type) and issubclass(cls, base)):
            raise StudyError(
                f"{self.kind} {name!r} is {cls!r}; it must be a subclass of {base.__module__}.{base.__name__}"
            )
        return from_parameters(f"{self.kind} {name!r}", cls, parameters or {})


@lru_cache
def _first_line_of_doc(target: str) -> str:
    """Of the class "package.module:Class"; "" where its source is not found."""
    module, _, name = target.partition(":")
    package, *parts = module.split(".")
    spec = find_spec(package) if package else None  # of a top-level name: it imports nothing
    if spec is None:
        return ""
    first = next(iter(spec.submodule_search_locations or [spec.origin or ""]))
    path = Path(first).joinpath(*parts)
    try:
        path = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
        body = ast.parse(path.read_text(encoding="utf-8")).body
    except (OSError, ValueError, SyntaxError):
        return ""
    classes = (one for one in body if isinstance(one, ast.ClassDef) and one.name == name)
    return next((ast.get_docstring(one) or "" for one in classes), "").partition("\n")[0]


@lru_cache
def offered(group: str, path: tuple[str, ...]) -> list[tuple[str, str]]:
    """Names and targets of what the packages on that path offer; reading all metadata takes 20 ms."""
    return [(entry.name, entry.value) for entry in entry_points(group=group)]


def check_names(what: str, names: Iterable[str], allowed: Iterable[str]) -> None:
    """Raises StudyError where a name is not allowed. `what`: whose they are, as "model 'mlp'"."""
    allowed = list(allowed)
    for name in names:
        if name not in allowed:
            known = ", ".join(allowed) or "none, it has no parameters"
            raise StudyError(f"{what}: unknown parameter {name!r}; allowed: {known}")


@lru_cache
def _of_class(cls: type) -> TypeAdapter[Any]:
    return TypeAdapter(cls)  # takes some milliseconds


def checked(what: str, annotation: Any, value: object, parameter: str = "") -> Any:
    """`value` as the type `annotation`, converted where nothing is lost. `what`: whose parameter ("model
    'mlp'"); `parameter`: its name; "" if `value` maps names to values. StudyError: wrong type or value."""
    try:
        adapter = _of_class(annotation) if isinstance(annotation, type) else TypeAdapter(annotation)
        return adapter.validate_python(value)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join([parameter] * bool(parameter) + [str(part) for part in first["loc"]])
        place = f"{what}: parameter {where}" if where else what
        raise StudyError(f"{place}: {first['msg']}, got {first['input']!r}") from None


def from_parameters(what: str, cls: type[Component], parameters: Mapping[str, Any]) -> Component:
    """An instance of the dataclass `cls`, whose fields `parameters` set. `what`, StudyError: as `checked`."""
    fields: tuple[dataclasses.Field[Any], ...] = dataclasses.fields(cls)  # type: ignore[arg-type]  # any dataclass
    check_names(what, parameters, [field.name for field in fields])
    instance: Component = checked(what, cls, dict(parameters))
    return instance

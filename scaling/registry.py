"""Finds a component by name: a built-in, one that another package offers, or `module:attribute`."""

from __future__ import annotations

import difflib
import importlib
from collections.abc import Mapping
from importlib.metadata import entry_points
from typing import Any

from scaling.errors import StudyError


class Registry:
    """The components of one kind.

    Args:
        kind: what they are called in messages ("aggregator").
        group: the entry-point group in which other packages offer more.
        built_in: name -> "module:attribute".
    """

    def __init__(self, kind: str, group: str, built_in: Mapping[str, str]) -> None:
        self.kind = kind
        self._group = group
        self._built_in = dict(built_in)

    def targets(self) -> dict[str, str]:
        """Every known name with its "module:attribute", built-ins first.

        Raises:
            StudyError: another package offers a name that is taken.
        """
        targets = dict(self._built_in)
        for entry in entry_points(group=self._group):
            if targets.setdefault(entry.name, entry.value) != entry.value:
                raise StudyError(
                    f"{self.kind} {entry.name!r} is offered twice, as {targets[entry.name]} and as {entry.value}; "
                    "uninstall one of the packages, or name the one you mean as module:attribute"
                )
        return targets

    def load(self, name: str) -> Any:
        """The component called `name`.

        Raises:
            StudyError: there is none, or importing it fails; the message lists what there is.
        """
        target = name if ":" in name else self.targets().get(name)
        if target is None:
            known = sorted(self.targets())
            near = difflib.get_close_matches(name, known, n=1)
            hint = f" (did you mean {near[0]!r}?)" if near else ""
            raise StudyError(f"unknown {self.kind} {name!r}{hint}; known: {', '.join(known)}, or module:attribute")
        module_name, _, attribute = target.partition(":")
        try:
            return getattr(importlib.import_module(module_name), attribute)
        except (ImportError, AttributeError) as error:
            raise StudyError(f"{self.kind} {name!r}: cannot load {target}: {error}") from error

"""How two environments differ, field by field: the first part of a comparison of two folders."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from scaling.store import ResultsFolder

IDENTITY = ("cpu", "gpus", "memory_bytes", "versions", "settings", "cpu_governors")
"""What decides how fast things run. A folder never holds measurements that differ in these, but for the
memory's size; `scaling.measure.environment` writes them."""

FOR_PEOPLE = ("hostname", "git")
"""Recorded too: where it was, and the commit with a digest of what was changed since."""


@dataclass(frozen=True)
class DifferingKey:
    """A field with different values in two environments; None where an environment lacks it.

    Attributes:
        field: its name, dotted.
        a, b: its values.
        decides: whether it belongs to what decides how fast things run.
    """

    field: str
    a: Any
    b: Any
    decides: bool

    def line(self) -> str:
        """One line such as `versions.torch: 2.11.0 against 2.13.0`."""
        return f"{self.field}: {_shown(self.a)} against {_shown(self.b)}"

    def as_dict(self) -> dict[str, Any]:
        """The field for JSON."""
        return {"field": self.field, "a": self.a, "b": self.b, "decides": self.decides}


def environment_differences(a: ResultsFolder, b: ResultsFolder) -> list[DifferingKey]:
    """All fields in which the environments of two folders differ, first those that affect times.

    Raises:
        StoreError: an environment.json is damaged. One that does not exist is a difference.
    """
    environments = [_read(folder) for folder in (a, b)]
    first, second = environments
    if not first or not second:
        known = ["recorded" if environment else None for environment in environments]
        return [] if first == second else [DifferingKey("environment.json", known[0], known[1], True)]
    differing = [
        DifferingKey(field, here, there, decides)
        for names, decides in ((IDENTITY, True), (FOR_PEOPLE, False))
        for name in names
        for field, here, there in _differences(name, _value(first, name), _value(second, name))
    ]
    names = [_name(folder) for folder in (a, b)]
    if None not in names and names[0] != names[1]:
        differing.insert(0, DifferingKey("--against", names[0], names[1], decides=True))
    # Folders from before the digest of changes was recorded: both had some, perhaps not the same.
    states = [environment.get("git") or {} for environment in environments]
    if all(state.get("dirty") and "changes" not in state for state in states):
        differing.append(DifferingKey("git.changes", "some", "some, perhaps others", decides=False))
    return differing


def _read(folder: ResultsFolder) -> dict[str, Any]:
    return folder.environment() if (folder.path / "environment.json").exists() else {}


def _name(folder: ResultsFolder) -> str | None:
    """The environment's name in `run --against`; None if it has none."""
    return next(
        (record.launch.get("environment") for record in folder.runs() if record.state == "done"), None
    )


def _value(environment: Mapping[str, Any], name: str) -> Any:
    value = environment.get(name)
    if name == "gpus":  # equal ones are counted: `4 x NVIDIA H200`
        counts = Counter(str(gpu.get("name")) for gpu in value or [])
        return ", ".join(f"{number} x {gpu}" for gpu, number in counts.items()) or "none"
    return value


def _differences(name: str, a: Any, b: Any) -> Iterator[tuple[str, Any, Any]]:
    if isinstance(a, Mapping) and isinstance(b, Mapping):
        for key in dict.fromkeys([*a, *b]):
            yield from _differences(f"{name}.{key}", a.get(key), b.get(key))
    elif a != b:
        yield name, a, b


def _shown(value: Any) -> str:
    return "nothing" if value is None else str(value)

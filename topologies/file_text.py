"""The content of a machine file as YAML that people read: figures like 55.4e+9, one device or link a line."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import yaml

from topologies.build import build
from topologies.file_format import MachineFile, parse
from topologies.model import Topology

WIDTH = 110
DIGITS = 4


def engineering(value: float) -> str:
    """`55.4e+9`, `0.25e-6`, `12.5`: an exponent that is a multiple of three, as YAML reads numbers."""
    for exponent in (12, 9, 6, 3):
        if abs(value) >= 10**exponent:
            return f"{_mantissa(value / 10**exponent)}e+{exponent}"
    if 0 < abs(value) < 1e-3:
        return f"{_mantissa(value * 1e6)}e-6"
    return _mantissa(value)


def _mantissa(value: float) -> str:
    text = f"{value:.{DIGITS}g}"
    if "e" in text:
        text = f"{value:.9f}".rstrip("0")
    return text if "." in text else f"{text}.0"


class _Dumper(yaml.SafeDumper):
    """Writes floats by `engineering`, and never an alias."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


_Dumper.add_representer(
    float, lambda dumper, value: dumper.represent_scalar("tag:yaml.org,2002:float", engineering(value))
)


def as_yaml(file: Mapping[str, Any], comments: Sequence[str] = ()) -> str:
    """The text of a machine file, from its content as parsed YAML would be, with comments in its head."""
    head = "".join(f"# {line}".rstrip() + "\n" for line in comments)
    sections = []
    for key, value in file.items():
        if key in ("devices", "links"):
            sections.append(f"{key}:\n" + "".join(f"  - {_dump(entry, flow=True)}" for entry in value))
        else:
            sections.append(_dump({key: value}, flow=None if isinstance(value, list) else False))
    return head + "\n".join(sections)


def _dump(value: Any, *, flow: bool | None) -> str:
    width = math.inf if flow else WIDTH
    return yaml.dump(
        value, Dumper=_Dumper, sort_keys=False, width=width, default_flow_style=flow, allow_unicode=True
    )


def validated(text: str, source: str) -> Topology:
    """The topology of a text that describes one machine; TopologyError where it is none."""
    file = parse(text, source)
    assert isinstance(file, MachineFile), "the text of one machine names no other"
    return build(file, source)

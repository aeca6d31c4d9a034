"""Whether all ranks were started with the same: found when they meet, before anything waits in vain."""

from __future__ import annotations

import hashlib
import importlib.util
import platform
import shlex
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import torch

import launchers
import scaling
import topologies
from scaling.errors import LaunchError, StudyError
from scaling.study.overrides import study_text

DIGITS = 12

Facts = Mapping[str, str | None]  # what was started -> how, as a text to compare; None: unknown here


def start_facts(study: str, arguments: Sequence[str]) -> Facts:
    """What must be the same on all ranks: of a study, by name or file, and of the worker's arguments."""
    try:
        text: str | None = study_text(study)
    except StudyError:
        text = None  # rank 0 says what is wrong, and where a node lacks the file its word is taken
    return {
        "arguments": shlex.join(arguments),
        f"the study file {study}": None if text is None else _digest([text.encode()]),
        "the code of scaling-study": _digest(
            path.read_bytes()
            for package in (scaling, launchers, topologies)
            for path in sorted(Path(str(package.__file__)).parent.rglob("*.py"))
        ),
        **{
            f"the code of {name}": _own_code(name) for name in _own_modules(f"{text} {shlex.join(arguments)}")
        },
        "torch": torch.__version__,
        "Python": platform.python_version(),
    }


def require_same_start(facts: Sequence[Facts]) -> None:
    """Compares what the ranks were started with. Raises LaunchError: naming those that differ from rank 0."""
    differing = []
    for name in dict.fromkeys(name for rank_facts in facts for name in rank_facts):
        values = [rank_facts.get(name) for rank_facts in facts]
        other = next(
            (rank for rank, v in enumerate(values) if None not in (v, values[0]) and v != values[0]), 0
        )
        if other:
            differing.append(f"{name}: {values[other]} on rank {other}, {values[0]} on rank 0")
    if differing:
        raise LaunchError(
            f"ranks were not started with the same: {'; '.join(differing)}; start all of them with one "
            "command, study file, code and environment"
        )


def _digest(contents: Iterable[bytes]) -> str:
    digest = hashlib.blake2b()
    for content in contents:
        digest.update(content)
    return digest.hexdigest()[:DIGITS]


def _own_modules(text: str) -> list[str]:
    """The modules of `module:attribute` in a study's text or arguments that can be found here."""
    words = text.replace(",", " ").replace("=", " ").replace("[", " ").replace("]", " ").split()
    names = [word.strip("'\"{}").partition(":")[0] for word in words if ":" in word.strip(":'\"{}")]
    tops = {name.partition(".")[0] for name in names if name.replace(".", "").isidentifier()}
    return sorted(tops - set(sys.stdlib_module_names) - {"scaling", "launchers", "topologies"})


def _own_code(name: str) -> str | None:
    try:
        spec = importlib.util.find_spec(name)
        if spec is None or spec.origin is None:
            return None
        return _digest([Path(spec.origin).read_bytes()])
    except (ImportError, OSError, ValueError):
        return None

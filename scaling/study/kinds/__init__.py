"""The kinds of study, by name: one module each, and one line here."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from scaling.study.kinds.base import Kind
from scaling.study.kinds.convergence import ConvergenceKind
from scaling.study.kinds.device import DeviceKind
from scaling.study.kinds.iteration import IterationKind
from scaling.study.kinds.transfer import AttachedKind, TransferKind

KINDS: dict[str, Kind[Any, Any]] = {
    "iteration": IterationKind(),
    "convergence": ConvergenceKind(),
    "transfer": TransferKind(),
    "device": DeviceKind(),
    "attached": AttachedKind(),
}


def label_of(cell: Mapping[str, Any]) -> str:
    """What is under way, from the variables of a cell of any kind, as records have them."""
    kind = KINDS.get(str(cell["kind"]))
    return kind.label(cell) if kind else str(cell["kind"])

"""`kind: attached`: the runs of a user's own script, which `scaling attach` makes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NoReturn

from pydantic import Field

from scaling.axes import ATTACHED
from scaling.errors import StudyError
from scaling.study.kinds.base import Kind
from scaling.study.parts import AnyPart

if TYPE_CHECKING:
    from scaling.study.cell import AvailableMachine


class AttachedPart(AnyPart):
    """A script of the user's own: what `scaling attach` was asked to do, as its folder records it."""

    kind: Literal["attached"] = "attached"
    command: str
    """That starts the script."""
    arms: Sequence[str] = ()
    """What is changed in it, one thing at a time."""
    warmup: int = Field(10, ge=1)
    """Steps at the start of each launch that are left out."""
    steps: int = Field(30, ge=5)
    """Of an arm with a process of its own."""
    launches: int = Field(2, ge=1)
    """In which arms are switched."""

    repeats: ClassVar[int] = 1
    world_sizes: ClassVar[Literal["auto"]] = "auto"
    device: ClassVar[Literal["auto"]] = "auto"
    missing_devices: ClassVar[Literal["error"]] = "error"


class AttachedKind(Kind[AttachedPart, Any]):
    """Its cells are made by `scaling attach` alone: it starts the user's command, no worker of ours."""

    part = AttachedPart
    why_other_keys_are_wrong = "kind: attached is a user's own script"

    def cells(self, part: AttachedPart, machine: AvailableMachine, where: str, notes: list[str]) -> NoReturn:
        raise StudyError(f"{where}kind: {ATTACHED} is measured by `scaling attach -- {part.command}`")

    def run(self, cell: Any, context: Any) -> NoReturn:
        raise StudyError(f"kind: {ATTACHED} has no workers of its own")

    def seconds(self, cell: Any, num_cores: int, size: Any) -> float:
        """As long as the script takes: not known here."""
        return 0.0

    def label(self, cell: Mapping[str, Any]) -> str:
        return f"{cell['model']}, {cell['arm']}"

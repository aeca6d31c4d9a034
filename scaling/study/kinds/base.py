"""What a kind of study is: the keys of its parts, their cells, how one is run, and what its record says.

Nothing here imports torch, nor does the top of a kind's module: a study file is read without it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar

from scaling.study.cell import AnyCell, AvailableMachine
from scaling.study.parts import AnyPart

if TYPE_CHECKING:
    from scaling.study.rank.context import RunContext
    from scaling.study.rank.summary import RankSummary
    from scaling.study.step_time import ModelSize

START_UP_S = {"cpu": 2.0, "cuda": 5.0}
"""What a launch is assumed to take before its first cell."""


PartT = TypeVar("PartT", bound=AnyPart)
CellT = TypeVar("CellT", bound=AnyCell)


class Kind(ABC, Generic[PartT, CellT]):
    """A kind of study. `part`: the keys that a part may have; a pydantic model whose `kind` is a literal;
    `why_other_keys_are_wrong`: said where a part has a key of other kinds; `estimated_from`: where `seconds`
    comes from, for people."""

    part: type[PartT]
    why_other_keys_are_wrong: ClassVar[str] = ""
    estimated_from: ClassVar[str] = "operations at an assumed rate"

    @abstractmethod
    def cells(self, part: PartT, machine: AvailableMachine, where: str, notes: list[str]) -> Iterable[CellT]:
        """The cells of a part on that machine. `notes`: takes what was decided for the user. Raises
        StudyError: a combination cannot be, or devices are missing."""

    @abstractmethod
    def run(self, cell: CellT, context: RunContext) -> RankSummary:
        """Measures or trains the cell on this rank. Collective. `cell`: on this rank's kind of device, and of
        the group's world size; `context`: the rank's group, device, and what takes its samples."""

    @abstractmethod
    def seconds(self, cell: CellT, num_cores: int, size: ModelSize | None) -> float:
        """About how long the cell takes. `num_cores`: of the machine, which the workers share; `size`: of its
        model; None where it has none."""

    def start_up_s(self, device: str) -> float:
        """What a launch of such cells alone is assumed to take before the first of them."""
        return START_UP_S[device]

    def summary(self, ranks: Sequence[RankSummary]) -> dict[str, Any]:
        """What `run.json` says of a finished run, from what the ranks say, by rank."""
        return {"seconds": ranks[0].seconds, "memory_peak_bytes": [rank.memory_peak_bytes for rank in ranks]}

    def label(self, cell: Mapping[str, Any]) -> str:
        """What is under way, from a cell's variables as records have them."""
        return str(cell["kind"])

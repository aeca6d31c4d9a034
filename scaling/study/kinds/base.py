"""What a kind of study is: the keys of its parts, their cells, how one is run, and what its record says.

Nothing here imports torch, nor does the top of a kind's module: a study file is read without it.
"""

from __future__ import annotations

import hashlib
import json
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Protocol, TypeVar

from scaling.study.parts import AnyPart

if TYPE_CHECKING:
    from scaling.study.rank_summary import RankSummary
    from scaling.study.run_context import RunContext
    from scaling.study.step_time import ModelSize

START_UP_S = {"cpu": 2.0, "cuda": 5.0}
"""What a launch is assumed to take before its first cell."""


@dataclass(frozen=True)
class AvailableMachine:
    """What a study is resolved against.

    Attributes:
        num_gpus: GPUs that torch can use here; on several nodes, of one node.
        num_cores: CPU cores that this process may use.
        num_nodes: nodes of the launch.
    """

    num_gpus: int
    num_cores: int
    num_nodes: int = 1


class AnyCell(Protocol):
    """A cell of any kind.

    Attributes:
        kind: a name of `scaling.study.kinds.KINDS`.
        world_size, threads: of its launch.
        device: "cpu" or "cuda".
        peer_access: whether GPUs may access each other's memory; None where there are none.
        tf32: whether products may be rounded so; None where there are none.
        workers_per_gpu: that share a GPU; None where none do.
        id: identifies it: twelve hexadecimal digits, of all that decides its result.
    """

    @property
    def kind(self) -> str: ...
    @property
    def world_size(self) -> int: ...
    @property
    def device(self) -> str: ...
    @property
    def threads(self) -> int: ...
    @property
    def peer_access(self) -> bool | None: ...
    @property
    def tf32(self) -> bool | None: ...
    @property
    def workers_per_gpu(self) -> int | None: ...
    @property
    def id(self) -> str: ...

    def to_dict(self) -> dict[str, Any]:
        """All fields, as JSON has them."""

    def describe(self) -> str:
        """One line for people."""


def digest(identity: Mapping[str, Any]) -> str:
    """Twelve hexadecimal digits of an identity's SHA-256."""
    return hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()[:12]


@dataclass(frozen=True)
class CellWithoutModel:
    """What the cells of kinds without a model have in common; a subclass is a dataclass with a `kind`."""

    kind: ClassVar[str]
    tf32: ClassVar[bool | None] = None
    workers_per_gpu: ClassVar[int | None] = None
    not_in_identity: ClassVar[tuple[str, ...]] = ()

    @property
    def id(self) -> str:
        """Of all fields but `not_in_identity`."""
        return digest(
            {key: value for key, value in self.to_dict().items() if key not in self.not_in_identity}
        )

    def to_dict(self) -> dict[str, Any]:
        """All fields, as JSON has them."""
        return {"kind": self.kind, **asdict(self)}


PartT = TypeVar("PartT", bound=AnyPart)
CellT = TypeVar("CellT", bound=AnyCell)


class Kind(ABC, Generic[PartT, CellT]):
    """A kind of study.

    Attributes:
        part: the keys that a part may have; a pydantic model whose `kind` is a literal.
        why_other_keys_are_wrong: said where a part has a key of other kinds.
        estimated_from: where `seconds` comes from, for people.
    """

    part: type[PartT]
    why_other_keys_are_wrong: ClassVar[str] = ""
    estimated_from: ClassVar[str] = "operations at an assumed rate"

    @abstractmethod
    def cells(self, part: PartT, machine: AvailableMachine, where: str, notes: list[str]) -> Iterable[CellT]:
        """The cells of a part on that machine.

        Args:
            part: of the study.
            machine: where it is to run.
            where: the part, for messages.
            notes: takes what was decided for the user.

        Raises:
            StudyError: a combination cannot be, or devices are missing.
        """

    @abstractmethod
    def run(self, cell: CellT, context: RunContext) -> RankSummary:
        """Measures or trains the cell on this rank. Collective.

        Args:
            cell: on this rank's kind of device, and of the group's world size.
            context: the rank's group, device, and what takes its samples.
        """

    @abstractmethod
    def seconds(self, cell: CellT, num_cores: int, size: ModelSize | None) -> float:
        """About how long the cell takes.

        Args:
            cell: of this kind.
            num_cores: of the machine, which the workers share.
            size: of its model; None where it has none.
        """

    def start_up_s(self, device: str) -> float:
        """What a launch of such cells alone is assumed to take before the first of them."""
        return START_UP_S[device]

    def summary(self, ranks: Sequence[RankSummary]) -> dict[str, Any]:
        """What `run.json` says of a finished run, from what the ranks say, by rank."""
        return {"seconds": ranks[0].seconds, "memory_peak_bytes": [rank.memory_peak_bytes for rank in ranks]}

    def label(self, cell: Mapping[str, Any]) -> str:
        """What is under way, from a cell's variables as records have them."""
        return str(cell["kind"])

"""Kinds without a model of ours. `kind: transfer`: what `scaling topology probe` measures in one launch, with
access between GPUs or without, in a study's own launch. `kind: attached`: the runs of a user's own script,
which `scaling attach` makes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NoReturn

from pydantic import Field

from scaling.axes import ATTACHED
from scaling.errors import StudyError
from scaling.study.cell import AvailableMachine, CellWithoutModel
from scaling.study.kinds.base import Kind, ModelSize
from scaling.study.parts import AnyPart, Number, Part

if TYPE_CHECKING:
    from scaling.study.rank.context import RankSummary, RunContext

SLACK_RATIO = 1.2  # of a cell's time: what its operations set up comes on top


class TransferPart(Part):
    """Copies, messages and collectives alone: what the machine's links and memories give, without a model."""

    kind: Literal["transfer"] = "transfer"
    seconds: Number = Field(20.0, gt=0)
    """Time for measuring."""


@dataclass(frozen=True)
class TransferCell(CellWithoutModel):
    """One combination of a transfer part. `seconds`: but for the first operation of each size."""

    kind: ClassVar[str] = "transfer"

    world_size: int
    device: str
    threads: int
    peer_access: bool | None
    seconds: float

    def describe(self) -> str:
        host_only = ", without access between GPUs" if self.peer_access is False else ""
        return f"{self.kind}, {self.world_size} on {self.device}{host_only}, {self.seconds:g} s"


class TransferKind(Kind[TransferPart, TransferCell]):
    """A cell for each world size, with access between GPUs and without, as the part says."""

    part, cell = TransferPart, TransferCell
    why_other_keys_are_wrong = "kind: transfer has no model and takes no step"

    def cells(
        self, part: TransferPart, machine: AvailableMachine, notes: list[str]
    ) -> Iterator[TransferCell]:
        """One GPU has no other to access: it is measured once."""
        from scaling.study.places import default_threads, device_of, world_sizes_on

        device = device_of(part, machine, notes)
        threads = part.threads or default_threads(device, machine)
        for size in world_sizes_on(part, device, machine, notes):
            choices = part.peer_access if size > 1 else part.peer_access[:1]
            for peer_access in choices if device == "cuda" else [None]:
                yield TransferCell(size, device, threads, peer_access, part.seconds)

    def run(self, cell: TransferCell, context: RunContext) -> RankSummary:
        """Measures the probe's cases; rank 0 writes the rows, whose times are those of the slowest rank."""
        from scaling.measure.probe.machine_file import with_detected
        from scaling.measure.probe.ranks import Prober
        from scaling.study.rank.context import RankSummary
        from topologies.detect import read_facts

        rows: list[dict[str, Any]] = []
        host_only = cell.peer_access is False
        context.heartbeat.phase("set-up")
        prober = Prober(
            context.group,
            context.device,
            cell.threads,
            rows.append,
            host_only=host_only,
            after_each=context.heartbeat.step,
        )
        prober.run(cell.seconds)
        context.heartbeat.phase("records")
        if context.group.rank == 0:
            # Recorded with the samples: the report makes a machine file of both, on whatever machine it runs.
            today = datetime.now().astimezone().date().isoformat()
            facts = with_detected(rows[0]["facts"], read_facts(), today)
            context.write([{"facts": facts}, *rows[1:]])
        notes = [row["note"] for row in rows if "note" in row]
        context.seconds["unprofiled"] = context.group.largest(context.elapsed_s())
        return RankSummary(notes=notes, seconds=context.seconds)

    def summary(self, ranks: Sequence[RankSummary]) -> dict[str, Any]:
        """What `run.json` says: the seconds; memory is no question here."""
        return {"seconds": ranks[0].seconds}

    def seconds(self, cell: TransferCell, num_cores: int, size: ModelSize | None) -> float:
        return cell.seconds * SLACK_RATIO


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

    def cells(self, part: AttachedPart, machine: AvailableMachine, notes: list[str]) -> NoReturn:
        raise StudyError(f"kind: {ATTACHED} is measured by `scaling attach -- {part.command}`")

    def run(self, cell: Any, context: Any) -> NoReturn:
        raise StudyError(f"kind: {ATTACHED} has no workers of its own")

    def seconds(self, cell: Any, num_cores: int, size: Any) -> float:
        """As long as the script takes: not known here."""
        return 0.0

    def label(self, cell: Mapping[str, Any]) -> str:
        return f"{cell['model']}, {cell['arm']}"

"""Cells of `kind: transfer`: copies, messages and collectives of one world size, measured without a model.

Such a cell is what `scaling topology probe` measures in one launch (`scaling.measure.probe.cases`): with
access between GPUs or without, in a study's own launch, beside its other cells.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, ClassVar

from scaling.study.schema import TransferPart


@dataclass(frozen=True)
class TransferCell:
    """One combination of a transfer part.

    Attributes:
        world_size, device, threads, peer_access: as in other cells.
        seconds: for measuring; the first operation of each size comes on top.
    """

    kind: ClassVar[str] = "transfer"

    world_size: int
    device: str
    threads: int
    peer_access: bool | None
    seconds: float

    @property
    def id(self) -> str:
        """Twelve hexadecimal digits of the identity's SHA-256."""
        return hashlib.sha256(json.dumps(self.to_dict(), sort_keys=True).encode()).hexdigest()[:12]

    def to_dict(self) -> dict[str, Any]:
        """All fields, as JSON has them."""
        return {"kind": self.kind, **asdict(self)}

    def describe(self) -> str:
        """One line for people."""
        host_only = ", without access between GPUs" if self.peer_access is False else ""
        return f"{self.kind}, {self.world_size} on {self.device}{host_only}, {self.seconds:g} s"


def short_label(cell: Mapping[str, Any]) -> str:
    """What is under way, of the variables of a cell of any kind, as records have them."""
    if cell["kind"] == TransferCell.kind:
        return str(cell["kind"])
    if "experiment" in cell:
        return f"{cell['kind']} {cell['experiment']} on {cell['device']}"
    return f"{cell['kind']} {cell['model_label']}, {cell['aggregator_label']}"


def transfer_cells(
    part: TransferPart, device: str, sizes: Sequence[int], threads: int
) -> Iterator[TransferCell]:
    """A cell for each world size, with access between GPUs and without as the part says.

    One GPU has no other to access: it is measured once.
    """
    for size in sizes:
        choices = part.peer_access if size > 1 else part.peer_access[:1]
        for peer_access in choices if device == "cuda" else [None]:
            yield TransferCell(size, device, threads, peer_access, part.seconds)

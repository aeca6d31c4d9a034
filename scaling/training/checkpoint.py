"""What a training needs to go on in another process, as bytes: later steps have the bits of an uncut one.

Order of the samples, augmentation and learning rate follow from seed, epoch and step. A digest at the start
finds flipped bits, and another model, rank or world size, before anything is restored.
"""

from __future__ import annotations

import hashlib
import io
import pickle
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import torch
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from torch import Tensor, nn

from scaling.aggregators.striped import BORDERS, PART
from scaling.errors import CheckpointError
from scaling.training.convergence import TrainingProgress
from scaling.training.step import TrainingStep

SCHEMA_VERSION = 4  # 3: without what was saved together; 2: without digest and target; 1: residuals by bucket
MAGIC = b"scaling checkpoint 4\n"
DIGEST_BYTES = 32
CONTENT = ("rows", "step", "random_states", "hosts", "saved_together")
"""Of a checkpoint, besides its progress."""

WRONG_CONTENT = (CheckpointError, RuntimeError, LookupError, TypeError, ValueError, AttributeError)
"""What is raised where a checkpoint that can be read holds something else than its training has."""

STATE_DIGEST_BYTES = 6  # travels as a float64, which holds 53 bits


@dataclass(frozen=True)
class Target:
    """What a checkpoint is for. `shapes`: parameter or buffer of the model -> its shape and dtype."""

    cell_id: str
    rank: int
    world_size: int
    shapes: Mapping[str, str]

    @classmethod
    def of(cls, module: nn.Module, cell_id: str, rank: int, world_size: int) -> Target:
        shapes = {name: f"{list(value.shape)} {value.dtype}" for name, value in module.state_dict().items()}
        return cls(cell_id, rank, world_size, shapes)

    def require(self, made_for: Mapping[str, Any]) -> None:
        """Raises CheckpointError where a checkpoint was made for something else: what differs."""
        for name, there in made_for["shapes"].items():
            if (here := self.shapes.get(name)) != there:
                raise CheckpointError(
                    f"it is of another model: {name} is {there} there, {here or 'missing'} here"
                )
        if len(made_for["shapes"]) != len(self.shapes):
            names = [name for name in self.shapes if name not in made_for["shapes"]]
            raise CheckpointError(f"it is of another model: it has no {names[0]}")
        for name in ("world_size", "rank", "cell_id"):
            there, here = made_for[name], getattr(self, name)
            if there != here:
                words = name.replace("_", " ")
                raise CheckpointError(f"it is of another {words}: {there} there, {here} here")


@dataclass(frozen=True)
class Checkpoint:
    """One rank's, after an epoch. `hosts`: where it was trained so far (`topologies.detect_host.this_start`),
    the first first; `saved_together`: equal in the checkpoints of all ranks that were saved together."""

    progress: TrainingProgress
    rows: list[dict[str, Any]]
    step: dict[str, Any]
    random_states: list[torch.Tensor]
    hosts: list[str] = field(default_factory=list)
    saved_together: str = ""

    @classmethod
    def of(
        cls,
        step: TrainingStep,
        progress: TrainingProgress,
        rows: list[dict[str, Any]],
        device: torch.device,
        hosts: Sequence[str] = (),
    ) -> Checkpoint:
        """That of a training as it is now. Collective."""
        states = [torch.get_rng_state()]
        if device.type == "cuda":
            states.append(torch.cuda.get_rng_state(device))
        return cls(progress, rows, step.state_dict(), states, list(hosts))

    def restore(self, step: TrainingStep, device: torch.device) -> None:
        """Puts `step` and torch's random states where they were. Collective."""
        step.load_state_dict(self.step)
        torch.set_rng_state(self.random_states[0])
        if device.type == "cuda":
            torch.cuda.set_rng_state(self.random_states[1], device)

    def to_bytes(self, target: Target) -> bytes:
        buffer = io.BytesIO()
        contents = {name: getattr(self, name) for name in CONTENT}
        torch.save({"made_for": asdict(target), "progress": asdict(self.progress), **contents}, buffer)
        content = buffer.getvalue()
        return MAGIC + hashlib.blake2b(content, digest_size=DIGEST_BYTES).digest() + content

    @classmethod
    def from_bytes(cls, content: bytes, target: Target) -> Checkpoint:
        """Into host memory; no code is run. CheckpointError: damaged, of another version or training."""
        if not content.startswith(MAGIC):
            raise CheckpointError(f"it is no checkpoint of version {SCHEMA_VERSION}")
        start = len(MAGIC) + DIGEST_BYTES
        if hashlib.blake2b(content[start:], digest_size=DIGEST_BYTES).digest() != content[len(MAGIC) : start]:
            raise CheckpointError("its digest is another one: it was changed, or cut short")
        try:
            values = torch.load(io.BytesIO(content[start:]), map_location="cpu", weights_only=True)
            target.require(values["made_for"])
            read = _Content.model_validate({name: values[name] for name in ("progress", *CONTENT)})
            progress = TrainingProgress(**read.progress.model_dump())
            return cls(progress, *(getattr(read, name) for name in CONTENT))
        except CheckpointError:
            raise
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(map(str, first["loc"]))
            raise CheckpointError(f"its {where} is not what it should be: {first['msg']}") from None
        except (*WRONG_CONTENT, EOFError, pickle.UnpicklingError) as error:
            raise CheckpointError(f"it cannot be read: {error!r:.100}") from error

    def parameter_digest(self, names: Sequence[str]) -> float:
        """Equal on all ranks whose parameters are equal; zeros' signs and the bits of NaN do not count."""
        return _digest(self.step["module"][name] for name in names)

    def update_digest(self) -> float:
        return _digest(_tensors(self.step["update"]).values())

    def not_restored(self, step: TrainingStep) -> str | None:
        """The first tensor of which `step` has other bits, in words; None where it has all as they are here.
        What it has besides, under another name or in other stripes, does not count: buckets may differ."""
        here, saved = _tensors(step.state_dict()), _tensors(self.step)
        differing = [
            name
            for name, before in saved.items()
            if name in here
            and here[name].shape == before.shape
            and not torch.equal(_bits(here[name]), _bits(before))
        ]
        moved = {name for name in differing if f"{BORDERS}/" in name}
        moved |= {name.replace(f"{BORDERS}/", f"{PART}/") for name in moved}
        return next((name for name in differing if name not in moved), None)


class _Progress(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid")

    epoch: int = Field(ge=1)
    train_s: float
    train_j: float | None


class _Content(BaseModel):
    model_config = ConfigDict(strict=True, arbitrary_types_allowed=True)

    progress: _Progress
    rows: list[dict[str, Any]]
    step: dict[str, Any]
    random_states: list[Tensor] = Field(min_length=1)
    hosts: list[str]
    saved_together: str


def _tensors(state: Any, name: str = "") -> dict[str, Tensor]:
    if isinstance(state, Tensor):
        return {name: state}
    items = state.items() if isinstance(state, Mapping) else enumerate(state)
    return {
        path: tensor
        for key, value in items
        for path, tensor in _tensors(value, f"{name} {key}".strip()).items()
    }


def _bits(values: Tensor) -> Tensor:
    return values.detach().cpu().contiguous().reshape(-1).view(torch.uint8)


def _digest(tensors: Iterable[Tensor]) -> float:
    digest = hashlib.blake2b(digest_size=STATE_DIGEST_BYTES)
    for tensor in tensors:
        values = tensor.detach().cpu()
        if values.is_floating_point():
            values = torch.where(values.isnan(), torch.nan, values + 0.0)
        digest.update(_bits(values).numpy().data)
    return float(int.from_bytes(digest.digest(), "big"))

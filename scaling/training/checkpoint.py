"""What a training needs to go on in another process, as bytes: later steps have the bits of an uncut one.

A rank's checkpoint holds its step (parameters, buffers such as the statistics of batch normalisation,
momentum, residuals), torch's random states, and what was recorded so far. Everything else follows from the
cell: order of the samples, augmentation and learning rate are functions of seed, epoch and step.
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import torch

from scaling.training.convergence import Progress
from scaling.training.step import Step

SCHEMA_VERSION = 2  # 1: residuals of some aggregators by bucket, not by parameter


@dataclass(frozen=True)
class Checkpoint:
    """One rank's, after an epoch.

    Attributes:
        progress: of the training.
        rows: the samples that the rank has recorded, one an epoch.
        step: of `Step.state_dict`.
        random_states: of the processor, and of the rank's GPU if it has one.
        hosts: where it was trained so far (`topologies.detect_host.this_start`), the first first.
    """

    progress: Progress
    rows: list[dict[str, Any]]
    step: dict[str, Any]
    random_states: list[torch.Tensor]
    hosts: list[str] = field(default_factory=list)

    @classmethod
    def of(
        cls,
        step: Step,
        progress: Progress,
        rows: list[dict[str, Any]],
        device: torch.device,
        hosts: Sequence[str] = (),
    ) -> Checkpoint:
        """That of a training as it is now. Collective."""
        states = [torch.get_rng_state()]
        if device.type == "cuda":
            states.append(torch.cuda.get_rng_state(device))
        return cls(progress, rows, step.state_dict(), states, list(hosts))

    def restore(self, step: Step, device: torch.device) -> None:
        """Puts `step` and torch's random states where they were. Collective."""
        step.load_state_dict(self.step)
        torch.set_rng_state(self.random_states[0])
        if device.type == "cuda":
            torch.cuda.set_rng_state(self.random_states[1], device)

    def to_bytes(self) -> bytes:
        """As `from_bytes` reads it."""
        buffer = io.BytesIO()
        values = {name: getattr(self, name) for name in ("rows", "step", "random_states", "hosts")}
        progress = asdict(self.progress)
        torch.save({"schema_version": SCHEMA_VERSION, "progress": progress, **values}, buffer)
        return buffer.getvalue()

    @classmethod
    def from_bytes(cls, content: bytes) -> Checkpoint | None:
        """The checkpoint, its tensors in host memory; None where it is damaged or of another version.

        Nothing but tensors and plain values is read: no code in the file is run.
        """
        try:
            values = torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
            if values["schema_version"] != SCHEMA_VERSION:
                return None
            progress = Progress(**values["progress"])
            hosts = values.get("hosts", [])  # those of before did not say
            return cls(progress, values["rows"], values["step"], values["random_states"], hosts)
        except (RuntimeError, EOFError, KeyError, TypeError, ValueError, pickle.UnpicklingError):
            return None

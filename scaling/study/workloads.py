"""A workload of a study with what its names stand for: made once, whatever the number of its cells."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

import torch
from torch import nn

from scaling.errors import StudyError
from scaling.study.parts import Alternatives, Workload
from scaling.workloads.base import Dataset, DataShape, Model
from scaling.workloads.registry import build_module, create_dataset, create_model, resolve_shape


@dataclass(frozen=True)
class ChosenWorkload:
    """A workload that is there.

    Attributes:
        keys: of the study.
        model, dataset: what the names stand for.
        shape: on which both agree.
    """

    keys: Workload
    model: Model
    dataset: Dataset
    shape: DataShape

    @classmethod
    def of(cls, keys: Workload, dataset: Dataset | None = None) -> ChosenWorkload:
        """The workload with those keys.

        Raises:
            StudyError: a name or parameter is unknown, or model and data set do not fit.
        """
        model = create_model(keys.model.name, keys.model.parameters)
        dataset = dataset or create_dataset(keys.dataset.name, keys.dataset.parameters)
        return cls(keys, model, dataset, resolve_shape(model, dataset))

    @property
    def batches(self) -> list[int]:
        """Of all workers together, or of each one, as the study says."""
        return self.keys.global_batch or self.keys.local_batch or []

    @cached_property
    def module(self) -> nn.Module:
        """The network without values."""
        with torch.device("meta"):
            return build_module(self.model, self.shape)

    def fields(self) -> dict[str, Any]:
        """The fields of `Cell` that name it."""
        model, dataset = self.keys.model, self.keys.dataset
        return {
            "model": model.name,
            "model_parameters": self.model.parameters,
            "model_label": label(model.name, model.parameters),
            "dataset": dataset.name,
            "dataset_parameters": asdict(self.dataset),
            "dataset_label": label(dataset.name, dataset.parameters),
        }

    def require_samples(self, global_batch: int, where: str) -> None:
        """Raises StudyError where the data set holds less than one global batch."""
        num_train = self.dataset.num_samples(self.shape)
        if num_train is not None and global_batch > num_train:
            raise StudyError(
                f"{where}a global batch of {global_batch} is larger than data set {self.dataset.name!r}, "
                f"which has {num_train} training samples; use a smaller batch or another data set"
            )


def choose(choice: Workload | Alternatives, note: Callable[[str], None]) -> ChosenWorkload:
    """The workload, or the first of several whose data is on this machine (the last, where none is)."""
    if isinstance(choice, Workload):
        return ChosenWorkload.of(choice)
    for keys in choice.first_available:
        dataset = create_dataset(keys.dataset.name, keys.dataset.parameters)
        if keys is choice.first_available[-1] or dataset.available():
            break
    note(f"data set: {keys.dataset.name} (the first available of its alternatives)")
    return ChosenWorkload.of(keys, dataset)


def label(name: str, parameters: dict[str, Any]) -> str:
    """`name(key=value)`."""
    return f"{name}({', '.join(f'{k}={v}' for k, v in parameters.items())})" if parameters else name

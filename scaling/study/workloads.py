"""A workload of a study with what its names stand for: made once, whatever the number of its cells."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

import torch
from torch import nn

from scaling.errors import DataError, StudyError
from scaling.study.parts import DEFAULT_BATCH, Alternatives, Workload
from scaling.study.rank.process_state import kept_state
from scaling.workloads.base import Dataset, DataShape, Model
from scaling.workloads.registry import build_module, create_dataset, create_model, resolve_shape


@dataclass(frozen=True)
class ChosenWorkload:
    keys: Workload
    model: Model  # model, dataset: what the names stand for
    dataset: Dataset
    shape: DataShape  # on which both agree

    @classmethod
    def of(cls, keys: Workload, dataset: Dataset | None = None) -> ChosenWorkload:
        """The workload with those keys. Raises StudyError: one is unknown, or model and data do not fit."""
        model = create_model(keys.model.name, keys.model.parameters)
        dataset = dataset or create_dataset(keys.dataset.name, keys.dataset.parameters)
        return cls(keys, model, dataset, resolve_shape(model, dataset))

    def batches(self, device: str) -> list[int]:
        """Of all workers together, or of each one, as the study says."""
        if self.keys.global_batch == "auto":
            return [DEFAULT_BATCH[device]]
        return self.keys.global_batch or self.keys.local_batch or []

    @cached_property
    def module(self) -> nn.Module:
        """The network without values."""
        with kept_state(), torch.device("meta"):
            return build_module(self.model, self.shape)

    def fields(self) -> dict[str, Any]:
        model, dataset = self.keys.model, self.keys.dataset
        return {
            "model": model.name,
            "model_parameters": self.model.parameters,
            "model_label": label(model.name, model.parameters),
            "dataset": dataset.name,
            "dataset_parameters": asdict(self.dataset),
            "dataset_label": label(dataset.name, dataset.parameters),
        }

    def require_samples(self, global_batch: int) -> None:
        """Raises StudyError where the data set holds less than one global batch."""
        num_train = self.dataset.num_samples(self.shape)
        if num_train is not None and global_batch > num_train:
            raise StudyError(
                f"a global batch of {global_batch} is larger than data set {self.dataset.name!r}, "
                f"which has {num_train} training samples; use a smaller batch or another data set"
            )


def choose(choice: Workload | Alternatives, device: str, note: Callable[[str], None]) -> ChosenWorkload:
    """The workload, or the first of several whose data is here, else the last. Raises StudyError."""
    if isinstance(choice, Workload):
        return ChosenWorkload.of(choice)
    fitting = [keys for keys in choice.first_available if keys.device in (None, device)]
    if not fitting:
        raise StudyError(f"first_available has no workload for device {device}; leave out `device` of one")
    for keys in fitting:
        dataset = create_dataset(keys.dataset.name, keys.dataset.parameters)
        if keys is fitting[-1] or _is_here(dataset, note):
            break
    if len(fitting) > 1:
        note(f"data set: {keys.dataset.name} (the first available of its alternatives)")
    return ChosenWorkload.of(keys, dataset)


def _is_here(dataset: Dataset, note: Callable[[str], None]) -> bool:
    """Whether its data is on this machine; with another one to fall back on, a wrong path is only said."""
    try:
        return dataset.available()
    except DataError as error:
        note(f"data set {dataset.name!r} is left out: {error}")
        return False


def label(name: str, parameters: dict[str, Any]) -> str:
    """`name(key=value)`."""
    return f"{name}({', '.join(f'{k}={v}' for k, v in parameters.items())})" if parameters else name

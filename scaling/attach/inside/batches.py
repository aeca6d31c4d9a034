"""The tensors and arrays of a batch, whatever a loader has put them in."""

import copy
import dataclasses
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

import torch


def mapped(batch: Any, call: Callable[[Any], Any]) -> Any:
    """The batch with the results for its tensors and arrays; a part that cannot be rebuilt stays as it is."""
    new: Any
    with suppress(Exception):  # of the script's own class
        if isinstance(batch, torch.Tensor) or type(batch).__name__ == "ndarray":
            return call(batch)
        if isinstance(batch, Mapping):
            new = copy.copy(batch)
            for key, value in batch.items():
                new[key] = mapped(value, call)
            return new
        if isinstance(batch, tuple) and hasattr(batch, "_fields"):
            return type(batch)(*(mapped(value, call) for value in batch))
        if isinstance(batch, (list, tuple)):
            return type(batch)(mapped(value, call) for value in batch)
        if dataclasses.is_dataclass(batch) and not isinstance(batch, type):
            new = copy.copy(batch)
            for field in dataclasses.fields(batch):
                object.__setattr__(new, field.name, mapped(getattr(batch, field.name), call))
            return new
    return batch

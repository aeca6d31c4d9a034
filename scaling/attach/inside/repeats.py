"""One batch of a loader, given again and again as if it were drawn."""

import copy
import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import torch

COPIES = 4
"""Given in turn, so that batches which are in use at the same time share no memory."""


class Repeats:
    """A batch that stays as it is, whatever the script does to what it gets.

    Copies are given in turn. A copy that the script has changed in place is made anew before it is given
    again; torch counts such changes, but not those through numpy or `.data`.

    Args:
        batch: as drawn; it is copied.
    """

    def __init__(self, batch: Any) -> None:
        self._kept = copied(batch)
        self._copies: list[tuple[Any, list[tuple[torch.Tensor, int]]]] = []
        self._given = 0

    def give(self) -> Any:
        at = self._given % COPIES
        self._given += 1
        if at == len(self._copies):
            self._copies.append(self._copy())
        elif any(tensor._version != version for tensor, version in self._copies[at][1]):
            self._copies[at] = self._copy()
        return _mapped(self._copies[at][0], _shared)

    def _copy(self) -> tuple[Any, list[tuple[torch.Tensor, int]]]:
        batch = copied(self._kept)
        versions: list[tuple[torch.Tensor, int]] = []

        def noted(value: Any) -> Any:
            if isinstance(value, torch.Tensor) and not value.is_inference():
                versions.append((value, value._version))
            return value

        _mapped(batch, noted)
        return batch, versions


def copied(batch: Any) -> Any:
    """The batch with copies of its tensors and arrays, in pinned memory where they were."""
    return _mapped(batch, _copied)


def _copied(value: Any) -> Any:
    if not isinstance(value, torch.Tensor):
        return value.copy()
    has_gpu = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
    if has_gpu and value.layout == torch.strided and value.is_pinned():
        return torch.empty_like(value, pin_memory=True).copy_(value)
    return value.clone()


def _shared(value: Any) -> Any:
    """Another tensor with the same memory and the same count of changes; a copy where there is no count."""
    if not isinstance(value, torch.Tensor) or value.is_inference():
        return _copied(value)
    return value.detach()


def _mapped(batch: Any, call: Callable[[Any], Any]) -> Any:
    """The batch with the results for its tensors and arrays; a part that cannot be rebuilt stays as it is."""
    try:
        return _rebuilt(batch, call)
    except Exception:  # noqa: BLE001 # the script's own class
        return batch


def _rebuilt(batch: Any, call: Callable[[Any], Any]) -> Any:
    if isinstance(batch, torch.Tensor) or type(batch).__name__ == "ndarray":
        return call(batch)
    new: Any
    if isinstance(batch, Mapping):
        new = copy.copy(batch)
        for key, value in batch.items():
            new[key] = _mapped(value, call)
        return new
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):
        return type(batch)(*(_mapped(value, call) for value in batch))
    if isinstance(batch, (list, tuple)):
        return type(batch)(_mapped(value, call) for value in batch)
    if dataclasses.is_dataclass(batch) and not isinstance(batch, type):
        new = copy.copy(batch)
        for field in dataclasses.fields(batch):
            object.__setattr__(new, field.name, _mapped(getattr(batch, field.name), call))
        return new
    return batch

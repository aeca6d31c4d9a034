"""Which parameters a step can train: those of dtypes that its aggregator takes."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import nn

from scaling.aggregators.base import DTYPES, Aggregator
from scaling.errors import StudyError
from scaling.training.replica import dtype_name


def require_dtypes(module: nn.Module, aggregator: Aggregator[Any]) -> None:
    """Checks the model's parameters before anything is exchanged.

    Args:
        module: the model; on torch's meta device it may be.

    Raises:
        StudyError: the model has nothing to train, or a parameter's dtype cannot be trained, or the
            aggregator does not take it.
    """
    trainable = [
        (name, parameter) for name, parameter in module.named_parameters() if parameter.requires_grad
    ]
    if not trainable:
        raise StudyError("the model has no parameter with requires_grad: there is nothing to train")
    way_out = "store it as one of these and convert it where it is used, or freeze it (requires_grad_(False))"
    for name, parameter in trainable:
        what = f"parameter {name!r} is {dtype_name(parameter.dtype)}"
        if parameter.dtype not in DTYPES:
            raise StudyError(f"{what}, which cannot be trained; allowed are {_names(DTYPES)}: {way_out}")
        if parameter.dtype not in aggregator.dtypes:
            raise StudyError(
                f"{what}, which aggregator {aggregator.label()!r} does not take; it takes "
                f"{_names(aggregator.dtypes)}: {way_out}, or use another aggregator, such as all_reduce"
            )


def _names(dtypes: Iterable[torch.dtype]) -> str:
    return ", ".join(map(dtype_name, dtypes))

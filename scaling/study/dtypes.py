"""Refuses, before any worker starts, models with parameters that an aggregator of the study cannot take."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from scaling.aggregators.base import Aggregator
from scaling.errors import StudyError
from scaling.study.workloads import ChosenWorkload
from scaling.training.dtypes import require_dtypes
from scaling.workloads.registry import BUILT_IN_MODELS


def check_dtypes(workload: ChosenWorkload, aggregators: Sequence[Aggregator[Any]], where: str) -> None:
    """Builds a model of the user's own without its values, and checks its parameters' dtypes.

    A model that cannot be built so is left to the workers, which check it before their first step.

    Raises:
        StudyError: naming the model, the parameter and what is allowed.
    """
    name = workload.keys.model.name
    if name in BUILT_IN_MODELS:
        return  # float32 throughout
    try:
        module = workload.module
    except Exception:  # noqa: BLE001 (of the user's code, which may want values)
        return
    for aggregator in aggregators:
        try:
            require_dtypes(module, aggregator)
        except StudyError as error:
            raise StudyError(f"{where}model {name!r}: {error}") from error

"""Name -> experiment: built-ins, entry points of other packages, or `module:Class`."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from scaling.experiments.base import Experiment
from scaling.registry import Registry

BUILT_IN = {
    "small-networks": "scaling.experiments.small_networks:SmallNetworks",
    "cpu-threads": "scaling.experiments.cpu_threads:CpuThreads",
    "batch-sizes": "scaling.experiments.batch_sizes:BatchSizes",
    "lstm-fused": "scaling.experiments.lstm_fused:LstmFused",
    "surface-regression": "scaling.experiments.surface_regression:SurfaceRegression",
    "kernel-choices": "scaling.experiments.kernel_choices:KernelChoices",
}

EXPERIMENTS = Registry("experiment", "scaling.experiments", BUILT_IN)


def create(name: str, parameters: Mapping[str, Any] | None = None) -> Experiment:
    """The experiment of that name with those parameters, checked against its fields' types.

    Raises:
        StudyError: the name is unknown, or a parameter is unknown or of the wrong type or value.
    """
    experiment: Experiment = EXPERIMENTS.create(name, Experiment, parameters)
    return experiment


def parameters_of(experiment: Experiment) -> dict[str, Any]:
    """All its parameters, as JSON has them."""
    return {field.name: _plain(getattr(experiment, field.name)) for field in dataclasses.fields(experiment)}


def _plain(value: Any) -> Any:
    return [_plain(item) for item in value] if isinstance(value, (list, tuple)) else value

"""The optimizers of a study: the numbers of each, given or usual, as the cells have them."""

from __future__ import annotations

from typing import Any

from scaling.errors import StudyError
from scaling.study.parts import Training, TrainingPart, Workload

_ADAM: dict[str, Any] = {
    "learning_rate": 0.001,
    "weight_decay": 0.0,
    "beta1": 0.9,
    "beta2": 0.999,
    "epsilon": 1e-8,
}
DEFAULTS: dict[str, dict[str, Any]] = {
    "sgd": {"learning_rate": 0.01, "momentum": 0.9, "weight_decay": 0.0, "nesterov": False},
    "adam": _ADAM,
    "adamw": {**_ADAM, "weight_decay": 0.01},
}
"""What each has where the study does not say; of Adam they are torch's."""

_OF_NONE = {"momentum": 0.0, "nesterov": False}
"""Fields that every cell has, of an optimizer that has no such number."""

CLIPPING = ("clip_norm", "clip_gradient")
"""Keys that go with every optimizer."""


def optimizer_fields(name: str, workload: Workload, part: TrainingPart) -> dict[str, Any]:
    """The fields of `Cell` that say how the optimizer is set: by the workload's keys, or else the part's.

    Raises:
        StudyError: the numbers contradict each other.
    """
    values = {key: chosen(key, workload, part, default) for key, default in DEFAULTS[name].items()}
    if values.get("nesterov") and not values["momentum"]:
        raise StudyError("nesterov: true needs a momentum above 0")
    return {"optimizer": name, **_OF_NONE, **values}


def chosen(key: str, workload: Workload, part: TrainingPart, default: Any = None) -> Any:
    """A key's value: the workload's own, or else its part's, or else the default."""
    for level in (workload, part):
        if getattr(level, key) is not None:
            return getattr(level, key)
    return default


def check_optimizer_keys(workload: Workload, part: TrainingPart, where: str) -> None:
    """Refuses numbers of optimizers that the part does not have.

    Raises:
        StudyError: naming the key and its optimizers.
    """
    for key in Training.model_fields:
        owners = [name for name, defaults in DEFAULTS.items() if key in defaults]
        if key in CLIPPING or set(owners) & set(part.optimizer):
            continue
        if chosen(key, workload, part) is not None:
            raise StudyError(
                f"{where}{key} belongs to optimizer: {' or '.join(owners)}, and the part has "
                f"{', '.join(part.optimizer)}; leave it out"
            )

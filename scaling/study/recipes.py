"""How a cell of kind convergence is trained over its epochs: a workload's keys, or else its part's.

Of these keys timed cells have `augmentation` alone.
"""

from __future__ import annotations

from typing import Any

from scaling.errors import StudyError
from scaling.study.kinds.convergence import ConvergencePart
from scaling.study.kinds.iteration import IterationPart
from scaling.study.parts import Recipe, Workload
from scaling.study.workloads import ChosenWorkload
from scaling.training.learning_rate import DEFAULT_GAMMA

DEFAULTS = {
    "learning_rate_rule": "fixed",
    "warmup_epochs": 0.0,
    "schedule": "constant",
    "augmentation": "none",
}


def recipe_of(chosen: ChosenWorkload, part: ConvergencePart) -> dict[str, Any]:
    """The fields of `Cell` that say how long it is trained, with which rates and augmentation.

    A key that its rule or schedule does not have is None, where a workload has chosen another than its part.

    Raises:
        StudyError: keys contradict each other, or the data cannot be augmented.
    """
    workload = chosen.keys
    values = {key: _chosen(key, workload, part) for key in Recipe.model_fields}
    where = _named(workload)
    _check_base_batch(values, workload, part, where)
    _check_schedule(values, workload, part, where)
    if values["warmup_epochs"] >= values["epochs"]:
        raise StudyError(
            f"{where}: warmup_epochs {values['warmup_epochs']:g} must be less than the epochs, "
            f"{values['epochs']}: else the learning rate never reaches its peak"
        )
    if values["target_bits_per_byte"] is not None:
        _check_bytes(values, chosen, where)
    if values["augmentation"] == "standard":
        _check_images(chosen, where)
    return values


def _check_bytes(values: dict[str, Any], chosen: ChosenWorkload, where: str) -> None:
    if not chosen.dataset.bits_per_byte:
        raise StudyError(
            f"{where}: target_bits_per_byte is a target of texts of bytes, such as data set text; use "
            "target_accuracy"
        )
    if values["target_accuracy"] is not None:
        raise StudyError(f"{where}: target_bits_per_byte and target_accuracy are two targets; leave one out")


def timed_augmentation(workload: ChosenWorkload, part: IterationPart) -> str | None:
    """What a timed step does to its batch: None is nothing, so that ids stay those of before.

    Raises:
        StudyError: the data cannot be augmented.
    """
    if _chosen("augmentation", workload.keys, part) != "standard":
        return None
    _check_images(workload, _named(workload.keys))
    return "standard"


def _named(workload: Workload) -> str:
    return f"workload {workload.model.name} on {workload.dataset.name}"


def _chosen(key: str, workload: Workload, part: ConvergencePart | IterationPart) -> Any:
    for level in (workload, part):
        if getattr(level, key) is not None:
            return getattr(level, key)
    return DEFAULTS.get(key)


def _check_base_batch(values: dict[str, Any], workload: Workload, part: ConvergencePart, where: str) -> None:
    rule = values["learning_rate_rule"]
    if rule != "fixed" and values["base_batch"] is None:
        raise StudyError(
            f"{where}: learning_rate_rule: {rule} needs base_batch, the global batch for which learning_rate "
            "was chosen"
        )
    if rule == "fixed" and values["base_batch"] is not None:
        if _is_own("base_batch", "learning_rate_rule", workload, part):
            raise StudyError(
                f"{where}: base_batch belongs to learning_rate_rule: linear or sqrt; fixed has none"
            )
        values["base_batch"] = None


def _check_schedule(values: dict[str, Any], workload: Workload, part: ConvergencePart, where: str) -> None:
    schedule, milestones = values["schedule"], values["milestones"]
    if schedule == "step":
        if milestones is None:
            raise StudyError(f"{where}: schedule: step needs milestones, the epochs behind which it falls")
        if sorted(set(milestones)) != milestones:
            raise StudyError(f"{where}: milestones {milestones} must ascend")
        values["milestones"] = tuple(milestones)
        values["gamma"] = DEFAULT_GAMMA if values["gamma"] is None else values["gamma"]
        return
    for key in ("milestones", "gamma"):
        if values[key] is not None and _is_own(key, "schedule", workload, part):
            raise StudyError(f"{where}: {key} belongs to schedule: step, not to {schedule}; leave it out")
        values[key] = None


def _is_own(key: str, chooser: str, workload: Workload, part: ConvergencePart) -> bool:
    """Whether `key` stands where `chooser` was chosen, and not in a part that chose otherwise."""
    return getattr(workload, key) is not None or getattr(workload, chooser) is None


def _check_images(workload: ChosenWorkload, where: str) -> None:
    shape = workload.shape
    if shape.tokens or len(shape.input_shape) != 3:
        raise StudyError(
            f"{where}: augmentation: standard crops and mirrors images [channels, height, width]; the data "
            f"has samples of shape {list(shape.input_shape)}; use augmentation: none"
        )

"""The axis `memory_format`: how a network's activations are stored (`scaling.training.memory_format`)."""

from __future__ import annotations

from scaling.errors import StudyError
from scaling.study.parts import TrainingPart
from scaling.study.workloads import ChosenWorkload


def memory_formats(workload: ChosenWorkload, part: TrainingPart, where: str) -> list[str | None]:
    """The axis, as the workload's cells have it: None is contiguous, so that ids stay those of before.

    Raises:
        StudyError: channels are to come last in a network that convolves no images.
    """
    if "channels_last" in part.memory_format:
        _check_convolutions(workload, where)
    return [None if name == "contiguous" else name for name in part.memory_format]


def _check_convolutions(workload: ChosenWorkload, where: str) -> None:
    """A convolution of images has a weight [channels out, channels in, height, width]."""
    shape = workload.shape
    what = f"samples of shape {list(shape.input_shape)}"
    if not shape.tokens and len(shape.input_shape) == 3:
        if any(parameter.dim() == 4 for parameter in workload.module.parameters()):
            return
        what = "no convolution"
    raise StudyError(
        f"{where}memory_format: channels_last is an order of the images [channels, height, width] that a "
        f"network convolves; {workload.keys.model.name} on {workload.keys.dataset.name} has {what}; use "
        "memory_format: contiguous, in a part of its own if need be"
    )

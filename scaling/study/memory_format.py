"""The axis `memory_format`: in which order a network's activations lie (`scaling.training.memory_format`)."""

from __future__ import annotations

import torch

from scaling.errors import StudyError
from scaling.study.schema import TrainedPart, Workload
from scaling.workloads.registry import build_module, create_dataset, create_model, resolve_shape


def memory_formats(workload: Workload, part: TrainedPart, where: str) -> list[str | None]:
    """The axis, as the workload's cells have it: None is contiguous, so that ids stay those of before.

    Raises:
        StudyError: channels are to come last in a network that convolves no images.
    """
    if "channels_last" in part.memory_format:
        _check_convolutions(workload, where)
    return [None if name == "contiguous" else name for name in part.memory_format]


def _check_convolutions(workload: Workload, where: str) -> None:
    """A convolution of images has a weight [channels out, channels in, height, width]."""
    model = create_model(workload.model.name, workload.model.parameters)
    dataset = create_dataset(workload.dataset.name, workload.dataset.parameters)
    shape = resolve_shape(model, dataset)
    what = f"samples of shape {list(shape.input_shape)}"
    if not shape.tokens and len(shape.input_shape) == 3:
        with torch.device("meta"):
            module = build_module(model, shape)
        if any(parameter.dim() == 4 for parameter in module.parameters()):
            return
        what = "no convolution"
    raise StudyError(
        f"{where}memory_format: channels_last is an order of the images [channels, height, width] that a "
        f"network convolves; {workload.model.name} on {workload.dataset.name} has {what}; use memory_format: "
        "contiguous, in a part of its own if need be"
    )

"""Random numbers in the shape that a model declares: for time per iteration, not for accuracy."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import final

import torch
from pydantic import PositiveInt

from scaling.errors import StudyError
from scaling.workloads.base import Dataset, DataShape, DataSplits, Split
from scaling.workloads.sampling import seeded_generator

MAX_TEST_SAMPLES = 256  # The test split is there so that evaluation runs; its accuracy means nothing.
# Unrelated to the orders of the epochs (stream: the epoch) and to weights that are made from the seed itself.
STREAM = (0, 0)


@final
@dataclass(frozen=True)
class Synthetic(Dataset):
    """Standard normal inputs and uniform targets, made from the seed; a model of tokens gets texts of
    independent, uniform tokens. `input_shape` of one sample and `num_classes` are as the model declares where
    they are None."""

    name = "synthetic"
    source = "random numbers"
    real = False

    input_shape: tuple[PositiveInt, ...] | None = None
    num_classes: PositiveInt | None = None

    def shape(self, model_shape: DataShape | None) -> DataShape:
        input_shape, num_classes, tokens = self.input_shape, self.num_classes, False
        if model_shape is not None:
            input_shape = input_shape if input_shape is not None else model_shape.input_shape
            num_classes = num_classes if num_classes is not None else model_shape.num_classes
            tokens = model_shape.tokens
        if input_shape is None or num_classes is None:
            raise StudyError(
                "data set 'synthetic' takes its shape from the model, but this model adapts to its data; "
                "set the data set's parameters input_shape (such as [1, 28, 28]) and num_classes (such as 10)"
            )
        return DataShape(input_shape, num_classes, tokens)

    def available(self) -> bool:
        return True

    def fetch(self) -> None: ...

    def load(self, shape: DataShape, num_samples: int, seed: int) -> DataSplits:
        """Makes `num_samples` training samples and min(num_samples, 256) test samples: the same in every
        process (of one version of torch), which the checksum, the SHA-256 of all four tensors, shows."""
        generator = seeded_generator(seed, *STREAM)
        make = _texts if shape.tokens else _samples
        train, test = (
            make(count, shape, generator) for count in (num_samples, min(num_samples, MAX_TEST_SAMPLES))
        )
        digest = hashlib.sha256()
        for tensor in (train.inputs, train.targets, test.inputs, test.targets):
            digest.update(tensor.view(-1).numpy().data)
        return DataSplits(train, test, {"synthetic": f"sha256:{digest.hexdigest()}"})


def _samples(count: int, shape: DataShape, generator: torch.Generator) -> Split:
    inputs = torch.randn(count, *shape.input_shape, generator=generator)
    return Split(inputs, torch.randint(shape.num_classes, (count,), generator=generator))


def _texts(count: int, shape: DataShape, generator: torch.Generator) -> Split:
    """Cut from texts of one token more: the targets are the inputs one place on."""
    *outer, length = shape.input_shape
    texts = torch.randint(shape.num_classes, (count, *outer, length + 1), generator=generator)
    return Split(texts[..., :-1].contiguous(), texts[..., 1:].contiguous())

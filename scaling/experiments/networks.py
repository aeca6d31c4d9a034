"""The seven networks of the workloads, as experiments take them: with the input that each is made for."""

from __future__ import annotations

from scaling.workloads.base import DataShape, Model
from scaling.workloads.registry import create_dataset, create_model, resolve_shape

SEVEN_NETWORKS = ("fcn-r", "alexnet-r", "resnet-56", "fcn-s4", "alexnet-s", "resnet-50", "lstm")


def model_and_shape(name: str) -> tuple[Model, DataShape]:
    """A network of the registry, and the shape of the data set that it was published with.

    Raises:
        StudyError: the name is unknown.
    """
    model = create_model(name)
    return model, resolve_shape(model, create_dataset(model.dataset))

"""Name -> model, name -> data set: built-ins, entry points of other packages, or `module:attribute`."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Mapping
from typing import Any

from torch import nn

from scaling.errors import StudyError
from scaling.registry import Registry, check_names, checked
from scaling.workloads.base import Dataset, DataShape, Model
from scaling.workloads.callables import model_of

BUILT_IN_MODELS = {
    "fcn-r": "scaling.workloads.networks:fcn_r",
    "fcn-s": "scaling.workloads.networks:fcn_s",
    "fcn-s4": "scaling.workloads.networks:fcn_s4",
    "mlp": "scaling.workloads.networks:mlp",
    "alexnet-r": "scaling.workloads.convolutional:alexnet_r",
    "alexnet-s": "scaling.workloads.convolutional:alexnet_s",
    "resnet-56": "scaling.workloads.residual:resnet_56",
    "resnet-50": "scaling.workloads.residual:resnet_50",
    "lstm": "scaling.workloads.recurrent:lstm",
    "gpt": "scaling.workloads.transformer:gpt",
}

BUILT_IN_DATASETS = {
    "mnist": "scaling.workloads.mnist:Mnist",
    "cifar10": "scaling.workloads.cifar10:Cifar10",
    "digits": "scaling.workloads.digits:Digits",
    "text": "scaling.workloads.text:Text",
    "synthetic": "scaling.workloads.synthetic:Synthetic",
}

MODELS = Registry("model", "scaling.models", BUILT_IN_MODELS)
DATASETS = Registry("data set", "scaling.datasets", BUILT_IN_DATASETS)


def create_dataset(name: str, parameters: Mapping[str, Any] | None = None) -> Dataset:
    """The data set of that name with those parameters, checked against its fields' types. Reads no file.

    Raises:
        StudyError: the name is unknown, or a parameter is unknown or of the wrong type or value.
    """
    instance: Dataset = DATASETS.create(name, Dataset, parameters)
    return instance


def create_model(name: str, parameters: Mapping[str, Any] | None = None) -> Model:
    """The model of that name; its `parameters` are the defaults overridden by the given ones.

    The given ones are checked against the annotations of the model's `build`, or against the default's type
    where `build` has none. `build_module` makes the module.

    Raises:
        StudyError: the name is unknown, or a parameter is unknown or of the wrong type or value.
    """
    model = MODELS.load(name)
    if callable(model):
        return model_of(name, model, parameters or {})
    if not isinstance(model, Model):
        raise StudyError(
            f"model {name!r} is {model!r}; it must be an object of the class scaling.workloads.base.Model, "
            "or a function that returns a torch module"
        )
    what = f"model {name!r}"
    check_names(what, parameters or {}, model.parameters)
    values = {
        key: checked(what, _annotation(model, key), value, key) for key, value in (parameters or {}).items()
    }
    parameters = {**model.parameters, **values}
    shape = model.shape_of(**parameters) if model.shape_of else model.shape
    return dataclasses.replace(model, parameters=parameters, shape=shape)


def _annotation(model: Model, parameter: str) -> Any:
    """The type that a study's value for `parameter` must have."""
    signature = inspect.signature(model.build, eval_str=True)
    declared = signature.parameters.get(parameter)
    if declared is not None and declared.annotation is not inspect.Parameter.empty:
        return declared.annotation
    default = model.parameters[parameter]
    return Any if default is None else type(default)


def build_module(model: Model, shape: DataShape) -> nn.Module:
    """The network for data of that shape, in host memory.

    Args:
        model: from `create_model`.
        shape: from `resolve_shape`.

    Returns:
        A module: inputs [n, *input_shape] -> logits [n, num_classes] (of tokens [n, *input_shape,
        num_classes]), with random weights from torch's global generator; seed it before.
    """
    return model.build(shape, **model.parameters)


def resolve_shape(model: Model, dataset: Dataset) -> DataShape:
    """The shape on which model and data set agree.

    Raises:
        StudyError: they do not, or a data set that adapts has nothing to adapt to.
    """
    shape = dataset.shape(model.shape)
    if model.shape is not None and model.shape != shape:
        raise StudyError(
            f"model {model.name!r} and data set {dataset.name!r} do not fit: the model is made for "
            f"{_describe(model.shape)}, the data set has {_describe(shape)}; "
            f"use data set {model.dataset!r}, or a model that adapts to its data"
        )
    return shape


def _describe(shape: DataShape) -> str:
    what = "tokens" if shape.tokens else "inputs"
    return f"{what} of shape {shape.input_shape} and {shape.num_classes} classes"

"""Name -> model, name -> data set: built-ins, entry points of other packages, or `module:attribute`.

Of a `module:callable` without `scaling.workloads.base.declares` the input is the data set's, and the loss the
mean cross-entropy. An argument called `shape` that the study leaves out is given the `DataShape`.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn

from scaling.errors import StudyError
from scaling.registry import Registry, check_names, checked
from scaling.workloads.base import Dataset, DataShape, Model, cross_entropy

KEYWORDS = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
PROBE_SAMPLES = 2


def model_of(name: str, maker: Callable[..., Any], parameters: Mapping[str, Any]) -> Model:
    """The model that `maker` makes; `name` is its `module:callable`, for messages. StudyError: it has no such
    argument, one is of the wrong type, or one that it needs is missing."""
    what = f"model {name!r}"
    arguments = _arguments(maker, what)
    takes_any = any(argument.kind is inspect.Parameter.VAR_KEYWORD for argument in arguments.values())
    named = {key: argument for key, argument in arguments.items() if argument.kind in KEYWORDS}
    check_names(what, parameters, {**named, **(parameters if takes_any else {})})
    takes_shape = "shape" in named and "shape" not in parameters
    for key, argument in named.items():
        is_given = key in parameters or (key == "shape" and takes_shape)
        if argument.default is argument.empty and not is_given:
            raise StudyError(f"{what} needs a value for {key!r}: {{name: {name!r}, {key}: ...}}")
    values = {key: _value(what, named.get(key), value, key) for key, value in parameters.items()}
    declared_shape, loss = getattr(maker, "declared", (None, cross_entropy))

    def build(shape: DataShape, **chosen: Any) -> nn.Module:
        module = maker(**({"shape": shape} if takes_shape else {}), **chosen)
        if not isinstance(module, nn.Module):
            raise StudyError(f"{what} gave {module!r}; it must return a torch.nn.Module")
        _check_logits(what, module, shape)
        return module

    source = f"{getattr(maker, '__module__', '?')}.{getattr(maker, '__qualname__', name)}"
    return Model(name, build, declared_shape, "any that fits", source, values, loss)


def _arguments(maker: Callable[..., Any], what: str) -> Mapping[str, inspect.Parameter]:
    try:
        return inspect.signature(maker, eval_str=True).parameters
    except (NameError, TypeError):  # annotations that only a type checker can see
        return inspect.signature(maker).parameters
    except ValueError as error:
        raise StudyError(f"{what}: its arguments cannot be read: {error}") from error


def _value(what: str, argument: inspect.Parameter | None, value: object, key: str) -> Any:
    if argument is None or argument.annotation is inspect.Parameter.empty:
        return value
    return value if isinstance(argument.annotation, str) else checked(what, argument.annotation, value, key)


@torch.no_grad()
def _check_logits(what: str, module: nn.Module, shape: DataShape) -> None:
    """Passes two samples through, without a trace in the module or in torch's random state."""
    first = next(module.parameters(), torch.empty(0))
    if first.is_meta:  # only counted, and not every operation knows that device
        return
    modes = {part: part.training for part in module.modules()}
    kind = torch.int64 if shape.tokens else torch.float32
    with torch.random.fork_rng([]):
        try:
            given = tuple(module.eval()(torch.zeros((PROBE_SAMPLES, *shape.input_shape), dtype=kind)).shape)
        except Exception as error:
            raise StudyError(
                f"{what} does not take inputs [n, {', '.join(map(str, shape.input_shape))}]: {error}"
            ) from error
    for part, mode in modes.items():
        part.training = mode
    wanted = (PROBE_SAMPLES, *(shape.input_shape if shape.tokens else ()), shape.num_classes)
    if given != wanted:
        raise StudyError(
            f"{what} gives {list(given)} for {PROBE_SAMPLES} samples, and the data has {shape.num_classes} "
            f"classes: it must give {list(wanted)}; set its number of classes (often `num_classes`)"
        )


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
    StudyError: the name is unknown, or a parameter is unknown or of the wrong type or value."""
    return DATASETS.create(name, Dataset, parameters)


def create_model(name: str, parameters: Mapping[str, Any] | None = None) -> Model:
    """Its `parameters` are the defaults overridden by the given ones. StudyError: the name is unknown, or a
    parameter is unknown or of the wrong type or value."""
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
    signature = inspect.signature(model.build, eval_str=True)
    declared = signature.parameters.get(parameter)
    if declared is not None and declared.annotation is not inspect.Parameter.empty:
        return declared.annotation
    default = model.parameters[parameter]
    return Any if default is None else type(default)


def build_module(model: Model, shape: DataShape) -> nn.Module:
    """In host memory, with random weights from torch's global generator: inputs [n, *input_shape] -> logits
    [n, num_classes], of tokens [n, *input_shape, num_classes]."""
    return model.build(shape, **model.parameters)


def resolve_shape(model: Model, dataset: Dataset) -> DataShape:
    """The shape on which model and data set agree. StudyError: they do not, or a data set that adapts has
    nothing to adapt to."""
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

"""Workloads by name: what there is, which parameters are accepted, which pairs fit."""

from dataclasses import replace

import pytest
from torch import nn

from scaling.errors import StudyError
from scaling.registry import trust
from scaling.workloads.base import Dataset, DataShape, Model
from scaling.workloads.convolutional import alexnet_s
from scaling.workloads.digits import Digits
from scaling.workloads.networks import build_mlp, fcn_r, fcn_s4, mlp
from scaling.workloads.recurrent import lstm
from scaling.workloads.registry import (
    BUILT_IN_DATASETS,
    build_module,
    create_dataset,
    create_model,
    resolve_shape,
)
from scaling.workloads.synthetic import Synthetic

DIGITS_NAME = "digits"


def build_untyped(shape, width):
    return nn.Linear(shape.input_shape[0], width)


# Found as module:attribute by the tests below.
own_model = Model("own", build_untyped, DataShape((3,), 2), "synthetic", "this file", {"width": 2})


def own(attribute):
    """Its name, as a study file of one's own would have it."""
    name = f"{__name__}:{attribute}"
    trust([name])
    return name


@pytest.mark.parametrize(("create", "name", "parameters", "message"), [
    (create_dataset, "digits", {"size": 1}, "data set 'digits': unknown parameter 'size'; allowed: none"),
    (create_dataset, "synthetic", {"size": 1}, "parameter 'size'; allowed: input_shape, num_classes"),
    (create_dataset, "synthetic", {"num_classes": "ten"}, "'synthetic': parameter num_classes: .*'ten'"),
    (create_dataset, "synthetic", {"input_shape": [0, 2]}, r"parameter input_shape\.0: .*greater than 0"),
    (create_dataset, "mnits", {}, r"unknown data set 'mnits' \(did you mean 'mnist'\?\)"),
    (create_model, own("own_model"), {"width": "wide"}, "parameter width: .*integer"),  # its default's type
    (create_model, "mlp", {"width": 1}, "model 'mlp': unknown parameter 'width'; allowed: hidden"),
    (create_model, "fcn-r", {"hidden": [1]}, "'fcn-r': unknown parameter 'hidden'; allowed: none"),
    (create_model, "mlp", {"hidden": 128}, "model 'mlp': parameter hidden: .*list, got 128"),
    (create_model, "mlp", {"hidden": [8, "wide"]}, r"parameter hidden\.1: .*'wide'"),
    (create_model, "mlp", {"hidden": [0]}, r"parameter hidden\.0: .*greater than 0, got 0"),
])  # fmt: skip
def test_wrong_parameter_is_named_with_what_is_allowed(create, name, parameters, message):
    with pytest.raises(StudyError, match=message):
        create(name, parameters)


@pytest.mark.parametrize(("create", "attribute", "message"), [
    (create_dataset, "own_model", r"must be a subclass of scaling\.workloads\.base\.Dataset"),
    (create_model, "DIGITS_NAME", r"must be an object of the class scaling\.workloads\.base\.Model"),
    (create_model, "nn", r"must be an object of the class scaling\.workloads\.base\.Model"),
])  # fmt: skip
def test_anything_but_a_data_set_or_a_model_is_refused(create, attribute, message):
    with pytest.raises(StudyError, match=message):
        create(own(attribute))


@pytest.mark.parametrize("name", BUILT_IN_DATASETS)
def test_every_built_in_data_set_has_its_name(name):
    dataset = create_dataset(name)
    assert isinstance(dataset, Dataset)
    assert dataset.name == name
    assert dataset.source


def test_parameters_become_fields_override_defaults_also_of_an_own_model_and_build_the_module():
    assert create_dataset("synthetic", {"input_shape": [1, 2], "num_classes": 3}) == Synthetic((1, 2), 3)
    assert create_model("mlp").parameters == {"hidden": [128]}
    assert create_model("mlp", {"hidden": [3, 4]}).parameters == {"hidden": [3, 4]}
    assert mlp.parameters == {"hidden": [128]}
    network = build_module(create_model("mlp", {"hidden": [3]}), DataShape((2,), 5))
    assert sum(p.numel() for p in network.parameters()) == (2 * 3 + 3) + (3 * 5 + 5)
    assert create_model(own("own_model"), {"width": 4}).parameters == {"width": 4}


class TestShapes:
    def test_model_that_adapts_takes_the_shape_of_the_data_and_data_that_adapt_that_of_the_model(self):
        assert resolve_shape(mlp, Digits()) == DataShape((1, 8, 8), 10)
        assert resolve_shape(fcn_r, Synthetic()) == DataShape((1, 28, 28), 10)

    @pytest.mark.parametrize(("model", "dataset", "message"), [
        (fcn_r, Digits(), r"'fcn-r' .* 'digits' do not fit.*\(1, 28, 28\).*\(1, 8, 8\)"),
        (fcn_s4, Digits(), r"\(26752,\) and 26752 classes.*\(1, 8, 8\) and 10 classes"),
        (alexnet_s, Synthetic(None, 7), r"1000 classes.* 7 classes; use data set 'synthetic'"),
        (lstm, Digits(), r"tokens of shape \(32,\).*inputs of shape \(1, 8, 8\)"),
        (lstm, Synthetic((9,)), r"tokens of shape \(32,\).*tokens of shape \(9,\)"),
        (replace(mlp, build=build_mlp, shape=DataShape((1, 8, 8), 2)), Digits(), "2 classes.* 10 classes"),
        (mlp, Synthetic(), "input_shape"),  # both adapt
    ])  # fmt: skip
    def test_pair_that_does_not_fit_is_an_error_that_names_both_shapes(self, model, dataset, message):
        with pytest.raises(StudyError, match=message):
            resolve_shape(model, dataset)

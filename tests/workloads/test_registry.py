"""Workloads by name: what there is, which parameters are accepted, which pairs fit."""

from dataclasses import replace

import pytest
import torch
from torch import nn

from scaling.errors import StudyError
from scaling.registry import trust
from scaling.workloads.base import Dataset, DataShape, Model
from scaling.workloads.digits import Digits
from scaling.workloads.networks import build_mlp, fcn_r, mlp
from scaling.workloads.registry import (
    BUILT_IN_DATASETS,
    BUILT_IN_MODELS,
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


@pytest.mark.parametrize("name", BUILT_IN_MODELS)
def test_every_model_builds_for_the_data_set_it_names(name):
    model = create_model(name)
    shape = resolve_shape(model, create_dataset(model.dataset))
    assert model.name == name
    with torch.device("meta"):  # the largest would fill half a gigabyte
        assert isinstance(build_module(model, shape), nn.Module)


class TestDatasets:
    @pytest.mark.parametrize("name", BUILT_IN_DATASETS)
    def test_every_built_in_has_its_name(self, name):
        dataset = create_dataset(name)
        assert isinstance(dataset, Dataset)
        assert dataset.name == name
        assert dataset.source

    def test_parameters_become_fields(self):
        dataset = create_dataset("synthetic", {"input_shape": [1, 2], "num_classes": 3})
        assert dataset == Synthetic((1, 2), 3)

    def test_unknown_name_suggests_a_near_one(self):
        with pytest.raises(StudyError, match=r"unknown data set 'mnits' \(did you mean 'mnist'\?\)"):
            create_dataset("mnits")

    @pytest.mark.parametrize(
        ("name", "parameters", "message"),
        [
            ("digits", {"size": 1}, "data set 'digits': unknown parameter 'size'; allowed: none"),
            ("synthetic", {"size": 1}, "unknown parameter 'size'; allowed: input_shape, num_classes"),
            ("synthetic", {"num_classes": "ten"}, "data set 'synthetic': parameter num_classes: .*'ten'"),
            ("synthetic", {"input_shape": [0, 2]}, r"parameter input_shape\.0: .*greater than 0"),
        ],
    )
    def test_wrong_parameter_is_named_with_what_is_allowed(self, name, parameters, message):
        with pytest.raises(StudyError, match=message):
            create_dataset(name, parameters)

    def test_anything_but_a_subclass_is_refused(self):
        with pytest.raises(StudyError, match=r"must be a subclass of scaling\.workloads\.base\.Dataset"):
            create_dataset(own("own_model"))


class TestModels:
    def test_parameters_override_defaults(self):
        assert create_model("mlp").parameters == {"hidden": [128]}
        assert create_model("mlp", {"hidden": [3, 4]}).parameters == {"hidden": [3, 4]}
        assert mlp.parameters == {"hidden": [128]}

    def test_module_is_built_with_the_parameters(self):
        network = build_module(create_model("mlp", {"hidden": [3]}), DataShape((2,), 5))
        assert sum(p.numel() for p in network.parameters()) == (2 * 3 + 3) + (3 * 5 + 5)

    @pytest.mark.parametrize(
        ("name", "parameters", "message"),
        [
            ("mlp", {"width": 1}, "model 'mlp': unknown parameter 'width'; allowed: hidden"),
            ("fcn-r", {"hidden": [1]}, "model 'fcn-r': unknown parameter 'hidden'; allowed: none"),
            ("mlp", {"hidden": 128}, "model 'mlp': parameter hidden: .*list, got 128"),
            ("mlp", {"hidden": [8, "wide"]}, r"parameter hidden\.1: .*'wide'"),
            ("mlp", {"hidden": [0]}, r"parameter hidden\.0: .*greater than 0, got 0"),
        ],
    )
    def test_wrong_parameter_is_named_with_what_is_allowed(self, name, parameters, message):
        with pytest.raises(StudyError, match=message):
            create_model(name, parameters)

    def test_own_model_is_found_by_module_and_attribute(self):
        assert create_model(own("own_model"), {"width": 4}).parameters == {"width": 4}

    def test_default_gives_the_type_where_the_builder_has_no_annotation(self):
        with pytest.raises(StudyError, match=r"parameter width: .*integer"):
            create_model(own("own_model"), {"width": "wide"})

    @pytest.mark.parametrize("attribute", ["DIGITS_NAME", "nn"])
    def test_anything_but_a_model_is_refused(self, attribute):
        with pytest.raises(
            StudyError, match=r"must be an object of the class scaling\.workloads\.base\.Model"
        ):
            create_model(own(attribute))


class TestShapes:
    def test_model_that_adapts_takes_the_shape_of_the_data(self):
        assert resolve_shape(mlp, Digits()) == DataShape((1, 8, 8), 10)

    def test_data_that_adapts_takes_the_shape_of_the_model(self):
        assert resolve_shape(fcn_r, Synthetic()) == DataShape((1, 28, 28), 10)

    def test_pair_that_does_not_fit_is_an_error_that_names_both_shapes(self):
        with pytest.raises(StudyError, match=r"'fcn-r' .* 'digits' do not fit.*\(1, 28, 28\).*\(1, 8, 8\)"):
            resolve_shape(fcn_r, Digits())

    @pytest.mark.parametrize(
        ("model", "dataset", "parameters", "message"),
        [
            ("fcn-s4", "digits", {}, r"\(26752,\) and 26752 classes.*\(1, 8, 8\) and 10 classes"),
            (
                "alexnet-s",
                "synthetic",
                {"num_classes": 7},
                r"1000 classes.* 7 classes; use data set 'synthetic'",
            ),
            ("lstm", "digits", {}, r"tokens of shape \(32,\).*inputs of shape \(1, 8, 8\)"),
            ("lstm", "synthetic", {"input_shape": [9]}, r"tokens of shape \(32,\).*tokens of shape \(9,\)"),
        ],
    )
    def test_large_networks_refuse_other_data(self, model, dataset, parameters, message):
        with pytest.raises(StudyError, match=message):
            resolve_shape(create_model(model), create_dataset(dataset, parameters))

    def test_number_of_classes_has_to_agree(self):
        model = replace(mlp, build=build_mlp, shape=DataShape((1, 8, 8), 2))
        with pytest.raises(StudyError, match=r"2 classes.* 10 classes"):
            resolve_shape(model, Digits())

    def test_pair_that_only_adapts_is_an_error(self):
        with pytest.raises(StudyError, match="input_shape"):
            resolve_shape(mlp, Synthetic())

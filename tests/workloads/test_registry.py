"""Workloads by name: what there is, which parameters and pairs fit, and what every model keeps."""

from dataclasses import replace

import pytest
import torch
from torch import nn

from scaling.errors import StudyError
from scaling.registry import trust
from scaling.workloads import registry
from scaling.workloads.base import Dataset, DataShape, Model, cross_entropy
from scaling.workloads.convolutional import alexnet_s
from scaling.workloads.digits import Digits
from scaling.workloads.networks import build_mlp, fcn_r, fcn_s4, mlp
from scaling.workloads.recurrent import lstm
from scaling.workloads.registry import build_module, create_dataset, create_model, resolve_shape
from scaling.workloads.synthetic import Synthetic

DIGITS_NAME = "digits"


# Found as module:attribute by the tests below.
own_model = Model(
    "own", lambda shape, width: nn.Linear(3, width), DataShape((3,), 2), "synthetic", "here", {"width": 2}
)


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


@pytest.mark.parametrize("name", registry.BUILT_IN_DATASETS)
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


NUM_PARAMETERS = {
    **{"fcn-r": 14_205_962, "fcn-s": 117_997_696, "fcn-s4": 122_194_048, "mlp": 9_610},
    **{"alexnet-r": 85_098, "alexnet-s": 62_378_344, "resnet-56": 853_018, "resnet-50": 25_557_032},
    **{"lstm": 6_180_624, "gpt": 124_439_808},
}
INPUTS = {
    **{"fcn-r": (1, 8, 8), "fcn-s": (20,), "fcn-s4": (20,), "mlp": (20,), "alexnet-r": (3, 16, 16)},
    **{"alexnet-s": (3, 63, 63), "resnet-56": (3, 16, 16), "resnet-50": (3, 32, 32)},
}
REDUCED = {name: DataShape(shape, 10) for name, shape in INPUTS.items()}
REDUCED |= {"lstm": DataShape((5,), 20, tokens=True), "gpt": DataShape((5,), 256, tokens=True)}
"""Shapes of which a step takes little time."""


@pytest.fixture(params=registry.BUILT_IN_MODELS)
def name(request):
    return request.param


def test_trainable_parameters_are_as_many_as_published_and_logits_one_a_class_of_every_target(name):
    model = create_model(name)
    assert model.name == name
    shape = resolve_shape(model, create_dataset(model.dataset))
    with torch.device("meta"):  # no numbers, and no time to make them
        module = build_module(model, shape)
        inputs = torch.zeros(2, *shape.input_shape, dtype=torch.int64 if shape.tokens else None)
    assert sum(p.numel() for p in module.parameters() if p.requires_grad) == NUM_PARAMETERS[name]
    assert module(inputs).shape == (2, *(shape.input_shape if shape.tokens else ()), shape.num_classes)


LARGE = ("alexnet-s", "resnet-50", "fcn-s", "fcn-s4")  # some 0.5 GB of weights and gradients at once


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(one, marks=pytest.mark.quality if one in LARGE else ())
        for one in registry.BUILT_IN_MODELS
    ],
)
def test_small_step_against_the_gradient_lowers_the_loss(name):
    torch.manual_seed(0)
    shape = REDUCED[name]
    module = build_module(create_model(name, {"size": "nano"} if name == "gpt" else {}), shape)
    batch = Synthetic().load(shape, 16, seed=0).train
    trainable = [p for p in module.parameters() if p.requires_grad]
    before = cross_entropy(module(batch.inputs), batch.targets)
    before.backward()
    assert all(p.grad.isfinite().all() and p.grad.norm() > 0 for p in trainable)
    slope = sum(p.grad.norm().item() ** 2 for p in trainable)
    with torch.no_grad():
        for parameter in trainable:
            parameter.sub_(parameter.grad, alpha=1e-3 * before.item() / slope)
        after = cross_entropy(module(batch.inputs), batch.targets)
    # To first order it falls by a thousandth of itself.
    assert 0.5e-3 < 1 - (after / before).item() < 1.5e-3

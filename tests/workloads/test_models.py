"""What every model keeps: the published number of parameters, the shape of its logits, a loss that falls."""

import pytest
import torch

from scaling.workloads.base import DataShape, cross_entropy
from scaling.workloads.registry import (
    BUILT_IN_MODELS,
    build_module,
    create_dataset,
    create_model,
    resolve_shape,
)
from scaling.workloads.synthetic import Synthetic

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
SMALL = {"gpt": {"size": "nano"}}
"""Shapes of which a step takes little time."""


@pytest.fixture(params=BUILT_IN_MODELS)
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


def test_small_step_against_the_gradient_lowers_the_loss(name):
    torch.manual_seed(0)
    shape = REDUCED[name]
    module = build_module(create_model(name, SMALL.get(name, {})), shape)
    batch = Synthetic().load(shape, 16, seed=0).train
    trainable = [p for p in module.parameters() if p.requires_grad]
    before = cross_entropy(module(batch.inputs), batch.targets)
    before.backward()
    assert all(p.grad.isfinite().all() and p.grad.abs().sum() > 0 for p in trainable)
    slope = sum(p.grad.square().sum().item() for p in trainable)
    with torch.no_grad():
        for parameter in trainable:
            parameter.sub_(parameter.grad, alpha=1e-3 * before.item() / slope)
        after = cross_entropy(module(batch.inputs), batch.targets)
    # To first order it falls by a thousandth of itself.
    assert 0.5e-3 < 1 - (after / before).item() < 1.5e-3

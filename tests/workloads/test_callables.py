"""Functions and classes that give a torch module, as models of a study."""

import sys
import types

import pytest
import torch
from torch import nn

from scaling.errors import StudyError
from scaling.workloads.base import DataShape, cross_entropy, declares
from scaling.workloads.registry import build_module, create_model

pytestmark = pytest.mark.usefixtures("named_by_a_study")
DIGITS = DataShape((1, 8, 8), 10)


class Linear(nn.Sequential):
    """As of a package that knows nothing of us."""

    def __init__(self, num_classes: int = 1000, **more: object) -> None:
        super().__init__(nn.Flatten(), nn.Dropout(0.5), nn.Linear(64, num_classes))
        self.more = more


def squared(logits, targets):
    return ((logits - nn.functional.one_hot(targets, 10)) ** 2).mean()


@declares(input_shape=(1, 8, 8), num_classes=10, loss=squared)
def declared(width: int):
    return nn.Sequential(nn.Flatten(), nn.Linear(64, width), nn.Linear(width, 10))


def shaped(shape, hidden: int = 4):
    return nn.Sequential(nn.Flatten(), nn.Linear(64, hidden), nn.Linear(hidden, shape.num_classes))


@pytest.fixture(autouse=True)
def package(monkeypatch):
    module = types.ModuleType("foreign")
    for one in (Linear, declared, shaped):
        setattr(module, one.__name__, one)
    module.text = lambda: "no module"
    monkeypatch.setitem(sys.modules, "foreign", module)


def built(name, parameters=None):
    model = create_model(f"foreign:{name}", parameters)
    return build_module(model, model.shape or DIGITS)


def test_class_without_a_declaration_takes_the_data_and_the_cross_entropy_and_a_declared_one_its_own():
    plain = create_model("foreign:Linear", {"num_classes": 10})
    own = create_model("foreign:declared", {"width": 3})
    assert (plain.shape, plain.loss, own.shape, own.loss) == (None, cross_entropy, DIGITS, squared)
    assert built("Linear", {"num_classes": 10})[-1].out_features == built("shaped")[-1].out_features == 10
    assert built("Linear", {"num_classes": 10, "depth": 3}).more == {"depth": 3}  # it takes any


def test_looking_at_the_logits_leaves_no_trace():
    torch.manual_seed(0)
    module = built("Linear", {"num_classes": 10})
    after = torch.rand(1)
    torch.manual_seed(0)
    Linear(10)
    assert torch.equal(torch.rand(1), after)
    assert module.training
    assert all(one.training for one in module.modules())


@pytest.mark.parametrize(("name", "parameters", "message"), [
    ("Linear", None, r"gives \[2, 1000\].*num_classes"),
    ("declared", None, "needs a value for 'width'"),
    ("declared", {"depth": 3}, "unknown parameter 'depth'; allowed: width"),
    ("declared", {"width": "wide"}, "width"), ("text", None, r"must return a torch\.nn\.Module"),
])  # fmt: skip
def test_what_makes_no_model_of_the_data_is_refused(name, parameters, message):
    with pytest.raises(StudyError, match=message):
        built(name, parameters)


def test_input_that_it_does_not_take_is_refused():
    model = create_model("foreign:Linear", {"num_classes": 10})
    with pytest.raises(StudyError, match=r"does not take inputs \[n, 3, 32, 32\]"):
        build_module(model, DataShape((3, 32, 32), 10))

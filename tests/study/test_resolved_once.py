"""A study is resolved once a workload, whatever the number of its cells."""

from collections import Counter

import pytest

from scaling.study import workloads
from scaling.study.cell import AvailableMachine
from scaling.study.overrides import load_study
from scaling.study.resolve import resolve
from scaling.workloads import registry


@pytest.fixture
def created(monkeypatch):
    """Counts what is created by name."""
    counts: Counter[str] = Counter()
    for registered, what in ((registry.DATASETS, "data set"), (registry.MODELS, "model")):

        def load(name, load=registered.load, what=what):
            counts[what] += 1
            return load(name)

        monkeypatch.setattr(registered, "load", load)
    return counts


@pytest.mark.parametrize("name", ["mnist", "quickstart", "paper"])
def test_data_sets_and_models_are_created_once_a_workload(name, created):
    study = load_study(name)
    cells = resolve(study, AvailableMachine(num_gpus=4, num_cores=16)).trained
    choices = [choice for part in study.parts for choice in part.workloads]
    alternatives = sum(len(getattr(choice, "first_available", [choice])) for choice in choices)
    assert len(cells) > alternatives
    assert created["model"] == len(choices)
    assert created["data set"] <= alternatives


def test_alternative_that_is_not_there_has_no_model(created, monkeypatch):
    raw = {"model": "no-such-model", "dataset": "mnist", "global_batch": 64}
    there = {"model": "mlp", "dataset": "digits", "global_batch": 64}
    monkeypatch.setattr("scaling.workloads.mnist.Mnist.available", lambda self: False)
    choice = workloads.Alternatives.model_validate({"first_available": [raw, there]})
    assert workloads.choose(choice, "cpu", lambda _: None).model.name == "mlp"
    assert created == {"data set": 2, "model": 1}

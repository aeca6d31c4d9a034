"""The step that experiments on networks time."""

import pytest
import torch
from torch import nn

from scaling.device_studies.base import Budget, LeftOutError
from scaling.device_studies.cpu_threads import SEVEN_NETWORKS
from scaling.device_studies.training_step import (
    batch_of,
    model_and_shape,
    num_parameters,
    pilots,
    timed,
    training_step,
)
from scaling.workloads.base import DataShape, cross_entropy
from tests.device_studies.conftest import CPU


def test_step_trains():
    torch.manual_seed(0)
    module = nn.Linear(5, 3)
    inputs, targets = batch_of(DataShape((5,), 3), 16, CPU)
    before = cross_entropy(module(inputs), targets).item()
    step = training_step(module, inputs, targets)
    for _ in range(50):
        step()
    assert cross_entropy(module(inputs), targets).item() < before


def test_step_leaves_frozen_parameters_alone():
    module = nn.Linear(5, 3)
    module.bias.requires_grad_(False)
    before = module.bias.clone()
    training_step(module, *batch_of(DataShape((5,), 3), 4, CPU))()
    assert torch.equal(module.bias, before)
    assert num_parameters(module) == 15


def test_batch_of_tokens_has_a_target_a_token():
    inputs, targets = batch_of(DataShape((7,), 11, tokens=True), 4, CPU)
    assert inputs.shape == targets.shape == (4, 7)
    assert inputs.dtype == targets.dtype == torch.int64
    assert int(inputs.max()) < 11


def test_pilots_ascend_to_a_quarter():
    assert (pilots(1), pilots(64), pilots(100)) == ([], [1, 4, 16], [1, 6, 25])


def test_large_batch_is_not_tried_where_a_small_one_is_too_slow(monkeypatch):
    made = []
    now = [0.0]

    def make(batch):
        made.append(batch)

        def step():
            now[0] += 0.1 * batch

        return step

    monkeypatch.setattr("time.perf_counter", lambda: now[0])
    budget = Budget(seconds=0.1, min_samples=6, limit_s=6.0)
    with pytest.raises(LeftOutError, match=r"a step on 16 samples takes 1.6 s, one on 1,024 takes longer"):
        list(timed(make, 1024, CPU, budget))
    assert made == [1, 4, 16]


def test_batch_is_told_with_its_samples():
    rows = list(timed(lambda batch: lambda: None, 8, CPU, Budget(seconds=0.001, max_samples=6)))
    assert (rows[0], {row["phase"] for row in rows[1:]}) == ({"fact": "samples", "value": 8}, {"step"})
    assert len(rows) == 7


def test_seven_networks_are_those_of_the_workloads():
    assert len(set(SEVEN_NETWORKS)) == 7
    for name in SEVEN_NETWORKS:
        model, shape = model_and_shape(name)
        assert model.name == name
        assert shape.num_classes > 1


@pytest.mark.gpu
def test_captured_step_trains_as_the_eager_one_does():
    device = torch.device("cuda")
    inputs, targets = batch_of(DataShape((5,), 3), 16, device)
    losses = []
    for captured in (False, True):
        torch.manual_seed(0)
        module = nn.Linear(5, 3).to(device)
        step = training_step(module, inputs, targets, captured=captured)
        for _ in range(50 if captured else 53):  # three steps warm the captured one up
            step()
        losses.append(cross_entropy(module(inputs), targets).item())
    assert losses[1] == pytest.approx(losses[0], rel=1e-3)

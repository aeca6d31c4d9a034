"""How long a point is measured and when it is left out; points and steps of studies on networks."""

import pytest
import torch
from torch import nn

from scaling.device_studies.base import SHORTEST_SAMPLE_S, Budget, LeftOutError, create, parameters_of, steps
from scaling.device_studies.cpu_threads import SEVEN_NETWORKS
from scaling.device_studies.small_networks import SmallNetworks, lstm_width, mlp_width
from scaling.device_studies.training_step import (
    batch_of,
    model_and_shape,
    num_parameters,
    pilots,
    timed,
    training_step,
)
from scaling.errors import StudyError
from scaling.workloads.base import DataShape, cross_entropy
from tests.device_studies.conftest import CPU, fact, measured


def test_samples_are_seconds_of_one_call_neither_fewer_nor_more_than_asked_and_rows_of_a_phase(takes):
    samples = Budget(seconds=1.0).samples(takes(0.02), CPU)
    assert samples == pytest.approx([0.02] * len(samples))
    assert 50 <= len(samples) <= 51  # a second's worth
    assert len(Budget(seconds=0.1, min_samples=6, limit_s=10).samples(takes(1.0), CPU)) == 6
    assert len(Budget(seconds=10.0, max_samples=20).samples(takes(0.01), CPU)) == 20
    expected = [{"phase": "train", "seconds": 0.5}, {"phase": "train", "seconds": 0.25}]
    assert list(steps([0.5, 0.25], "train")) == expected


def test_short_calls_are_measured_together_and_divided_or_as_the_caller_says(takes):
    step = takes(1e-5)
    samples = Budget(seconds=0.1).samples(step, CPU)
    assert samples == pytest.approx([1e-5] * len(samples))
    assert step.call_count > 90 * len(samples)  # about a hundred calls make a sample of a millisecond
    assert len(samples) == pytest.approx(0.1 / SHORTEST_SAMPLE_S, abs=2)
    step = takes(0.01)
    assert len(Budget(seconds=0.5).samples(step, CPU, per_sample=10)) == pytest.approx(6, abs=1)
    assert step.call_count >= 53


@pytest.mark.parametrize(("seconds", "first", "message", "calls"), [
    (2.0, None, r"a step took 2 s, so that 6 samples would pass the limit of 10 s", 3),
    (4.0, None, "a step took 4 s", 2),  # beyond doubt
    (0.01, 100.0, r"took 1e\+02 s|took 100 s", 1),
], ids=["three calls", "the second beyond doubt", "the first alone"])  # fmt: skip
def test_calls_that_would_pass_the_limit_are_left_out_with_the_numbers(takes, seconds, first, message, calls):
    step = takes(seconds, first=first)
    with pytest.raises(LeftOutError, match=message):
        Budget(seconds=1.0, limit_s=10.0).samples(step, CPU)
    assert step.call_count == calls


@pytest.mark.parametrize(("slow", "slow_s"), [(1, 5.0), (2, 2.0)])
def test_one_slow_call_is_forgiven_since_libraries_set_themselves_up_and_others_work(clock, slow, slow_s):
    calls = []

    def step() -> None:
        calls.append(0)
        clock.now += slow_s if len(calls) == slow else 0.01

    samples = Budget(seconds=0.1, limit_s=10.0).samples(step, CPU)
    assert samples
    assert samples == pytest.approx([0.01] * len(samples))


def test_expectation_is_refused_before_anything_is_made():
    budget = Budget(seconds=1.0, min_samples=6, limit_s=6.0)
    budget.require(0.99, "measured")
    with pytest.raises(LeftOutError, match=r"^known before, so that 6 samples would pass the limit of 6 s$"):
        budget.require(1.01, "known before")


def test_warm_up_of_short_calls_lasts_a_tenth_of_the_time(takes):
    step = takes(0.001)
    Budget(seconds=1.0, max_samples=1, min_samples=1).samples(step, CPU, per_sample=1)
    assert 100 <= step.call_count <= 200


def test_step_trains_and_leaves_frozen_parameters_alone():
    torch.manual_seed(0)
    module = nn.Linear(5, 3)
    inputs, targets = batch_of(DataShape((5,), 3), 16, CPU)
    before = cross_entropy(module(inputs), targets).item()
    step = training_step(module, inputs, targets)
    for _ in range(50):
        step()
    assert cross_entropy(module(inputs), targets).item() < before
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


def test_pilots_ascend_to_a_quarter_and_a_large_batch_is_not_tried_where_one_is_too_slow(clock, takes):
    made = []

    def make(batch):
        made.append(batch)
        return takes(0.1 * batch)

    budget = Budget(seconds=0.1, min_samples=6, limit_s=6.0)
    with pytest.raises(LeftOutError, match=r"a step on 16 samples takes 1.6 s, one on 1,024 takes longer"):
        list(timed(make, 1024, CPU, budget))
    assert made == [1, 4, 16]
    assert (pilots(1), pilots(64), pilots(100)) == ([], [1, 4, 16], [1, 6, 25])


def test_batch_is_told_with_its_samples():
    rows = list(timed(lambda batch: lambda: None, 8, CPU, Budget(seconds=0.001, max_samples=6)))
    assert (rows[0], {row["phase"] for row in rows[1:]}) == ({"fact": "samples", "value": 8}, {"step"})
    assert len(rows) == 7


def test_seven_networks_are_those_of_the_workloads():
    assert len(set(SEVEN_NETWORKS)) == 7
    for name in SEVEN_NETWORKS:
        model, shape = model_and_shape(name)
        assert (model.name, shape.num_classes > 1) == (name, True)


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


class TestRegistry:
    @pytest.mark.parametrize(("name", "parameters", "message"), [
        ("small-network", {}, r"unknown experiment 'small-network'.*did you mean 'small-networks'"),
        ("small-networks", {"width": [10]}, "unknown parameter 'width'|width"),
        ("small-networks", {"widths": [0]}, "widths"),
        ("small-networks", {"nothing": 1}, "unknown parameter 'nothing'"),
        ("kernel-choices", {"layers": ["LeNet"]}, "layers"),
        ("lstm-fused", {"precisions": ["float8"]}, "precisions"),
    ])  # fmt: skip
    def test_wrong_name_or_parameter_is_an_error_that_names_it(self, name, parameters, message):
        with pytest.raises(StudyError, match=message):
            create(name, parameters)

    def test_parameters_are_plain_values(self):
        values = parameters_of(create("small-networks", {"widths": [10, 20]}))
        assert (values["widths"], values["threads"]) == ([10, 20], [1, 4, "all"])


class TestSmallNetworks:
    def test_point_of_two_sweeps_is_measured_once_captured_on_the_gpu_alone(self):
        points = SmallNetworks().points()
        keys = [tuple(sorted(point.items(), key=str)) for point in points]
        assert len(keys) == len(set(map(str, keys)))
        others = ("only_device", "threads", "step")
        networks = {str({k: v for k, v in point.items() if k not in others}) for point in points}
        # 6 x 5 widths and batches, 5 further depths, 5 further inputs, 4 pairs
        assert (len(networks), len(points)) == (30 + 5 + 5 + 8, len(networks) * 5)
        assert {point["only_device"] for point in points if point["step"] == "captured"} == {"cuda"}
        assert len({frozenset(set(point) - {"only_device", "threads"}) for point in points}) == 1

    @pytest.mark.parametrize("parameters", [10_000, pytest.param(1_000_000, marks=pytest.mark.quality)])
    def test_networks_that_are_compared_have_equal_parameters(self, parameters):
        experiment = SmallNetworks(equal_parameters=(parameters,))
        wanted = {"equal_parameters": parameters, "step": "eager"}
        pair = [point for point in experiment.points() if wanted.items() <= point.items()]
        counts = {one["network"]: fact(measured(experiment, one), "parameters") for one in pair}
        assert (set(counts), counts["lstm"]) == ({"lstm", "mlp"}, pytest.approx(parameters, rel=0.05))
        assert counts["mlp"] == pytest.approx(parameters, rel=0.05)

    def test_point_tells_parameters_samples_and_times_and_widths_are_one_at_least(self):
        experiment = SmallNetworks()
        point = next(p for p in experiment.points() if p["width"] == 10 and p["batch"] == 8)
        rows = measured(experiment, point)
        assert (fact(rows, "parameters"), fact(rows, "samples")) == (65 * 10 + 11 * 10 + 11 * 10, 8)
        assert sum(row.get("phase") == "step" and row["seconds"] > 0 for row in rows) == 6
        assert (lstm_width(1), mlp_width(1, 512, 1)) == (1, 1)


class TestNetworks:
    def test_threads_and_batches_are_those_of_the_study_and_every_network_stands_at_every_batch(self):
        points = create("cpu-threads", {"threads": [1, "all"], "networks": ["fcn-r", "lstm"]}).points()
        asked = [(model, threads, "cpu") for model in ("fcn-r", "lstm") for threads in (1, "all")]
        assert [(p["model"], p["threads"], p["only_device"]) for p in points] == asked
        parameters = {"threads": [1], "networks": ["lstm"], "batches": {"lstm": 3}}
        assert [point["batch"] for point in create("cpu-threads", parameters).points()] == [3]
        points = create("batch-sizes").points()
        pairs = {(point["model"], point["batch"]) for point in points}
        assert (len(pairs), len(points)) == (7 * 7, 2 * len(pairs))

    @pytest.mark.parametrize("name", ["cpu-threads", "batch-sizes"])
    def test_training_step_of_a_network_is_measured(self, name):
        experiment = create(name, {"networks": ["alexnet-r"]})
        rows = measured(experiment, {"model": "alexnet-r", "batch": 2, "step": "eager"})
        assert (fact(rows, "samples"), sum(row.get("phase") == "step" for row in rows)) == (2, 6)

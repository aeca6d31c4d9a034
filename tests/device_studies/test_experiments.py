"""The points of the experiments on networks, and what they measure."""

import pytest

from scaling.device_studies.base import create, parameters_of
from scaling.device_studies.small_networks import SmallNetworks, lstm_width, mlp_width
from scaling.errors import StudyError
from tests.device_studies.conftest import fact, measured


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
        networks = {
            str({k: v for k, v in p.items() if k not in ("only_device", "threads", "step")}) for p in points
        }
        # 6 x 5 widths and batches, 5 further depths, 5 further inputs, 4 pairs
        assert (len(networks), len(points)) == (30 + 5 + 5 + 8, len(networks) * 5)
        assert {point["only_device"] for point in points if point["step"] == "captured"} == {"cuda"}
        assert len({frozenset(set(point) - {"only_device", "threads"}) for point in points}) == 1

    @pytest.mark.parametrize("parameters", [10_000, pytest.param(1_000_000, marks=pytest.mark.quality)])
    def test_networks_that_are_compared_have_equal_parameters(self, parameters):
        experiment = SmallNetworks(equal_parameters=(parameters,))
        pair = [point for point in experiment.points() if point["equal_parameters"] == parameters]
        counts = {
            point["network"]: fact(measured(experiment, point), "parameters")
            for point in pair
            if point["step"] == "eager"
        }
        assert (set(counts), counts["lstm"]) == ({"lstm", "mlp"}, pytest.approx(parameters, rel=0.05))
        assert counts["mlp"] == pytest.approx(parameters, rel=0.05)

    def test_widths_are_one_at_least(self):
        assert (lstm_width(1), mlp_width(1, 512, 1)) == (1, 1)

    def test_point_tells_parameters_samples_and_times(self):
        experiment = SmallNetworks()
        point = next(p for p in experiment.points() if p["width"] == 10 and p["batch"] == 8)
        rows = measured(experiment, point)
        assert (fact(rows, "parameters"), fact(rows, "samples")) == (65 * 10 + 11 * 10 + 11 * 10, 8)
        assert sum(row.get("phase") == "step" and row["seconds"] > 0 for row in rows) == 6


class TestNetworks:
    def test_threads_are_those_of_the_study_on_the_cpu(self):
        points = create("cpu-threads", {"threads": [1, "all"], "networks": ["fcn-r", "lstm"]}).points()
        asked = [(model, threads, "cpu") for model in ("fcn-r", "lstm") for threads in (1, "all")]
        assert [(p["model"], p["threads"], p["only_device"]) for p in points] == asked

    def test_study_can_set_the_reduced_batch(self):
        parameters = {"threads": [1], "networks": ["lstm"], "batches": {"lstm": 3}}
        assert [point["batch"] for point in create("cpu-threads", parameters).points()] == [3]

    def test_every_network_stands_at_every_batch(self):
        points = create("batch-sizes").points()
        pairs = {(point["model"], point["batch"]) for point in points}
        assert (len(pairs), len(points)) == (7 * 7, 2 * len(pairs))

    @pytest.mark.parametrize("name", ["cpu-threads", "batch-sizes"])
    def test_training_step_of_a_network_is_measured(self, name):
        experiment = create(name, {"networks": ["alexnet-r"]})
        rows = measured(experiment, {"model": "alexnet-r", "batch": 2, "step": "eager"})
        assert (fact(rows, "samples"), sum(row.get("phase") == "step" for row in rows)) == (2, 6)

"""The surface, its training, and where the data comes from."""

from dataclasses import replace

import pytest
import torch

from scaling.device_studies import surface_training
from scaling.device_studies.base import Budget, LeftOutError
from scaling.device_studies.surface_regression import SurfaceRegression
from scaling.device_studies.surface_training import SurfaceTraining, grid_points, height, surface_network
from tests.device_studies.conftest import CPU, SHORT, fact

SMALL = {"sides": (6,), "fit_side": 6, "epochs": 20}


def point(side=6, step="eager", data="device"):
    return {"points": side * side, "step": step, "data": data}


def facts(rows, name):
    return [row for row in rows if row.get("fact") == name]


class TestSurface:
    def test_height_at_the_origin_and_far_away_and_on_a_grid_with_y_fastest(self):
        at = [float(height(*torch.tensor([x, 0.0], dtype=torch.float64))) for x in (0.0, 30.0)]
        # 3 exp(-1) - exp(-1) / 3, and nothing left
        assert (at[0], at[1]) == (pytest.approx((3 - 1 / 3) * 2.718281828459045**-1), 0.0)
        inputs, heights = grid_points(3)
        assert (inputs.tolist(), heights.shape) == ([[x, y] for x in (-3, 0, 3) for y in (-3, 0, 3)], (9, 1))

    @pytest.mark.parametrize("activation", ["relu", "tanh"])
    def test_network_is_that_of_its_source_with_either_activation(self, activation):
        network = surface_network(**({} if activation == "relu" else {"activation": activation}))
        assert sum(parameter.numel() for parameter in network.parameters()) == 171
        inputs = 3 * torch.randn(50, 2)
        hidden = inputs
        weights = list(network.parameters())
        for weight, bias in ((weights[0], weights[1]), (weights[2], weights[3])):
            hidden = getattr(torch, activation)(hidden @ weight.T + bias)
        torch.testing.assert_close(network(inputs), hidden @ weights[4].T + weights[5])

    def test_weights_start_as_those_of_flux(self):
        torch.manual_seed(3)
        layers = [surface_network() for _ in range(200)]
        for place, (width_in, width_out) in ((0, (2, 20)), (2, (20, 5)), (4, (5, 1))):
            bound = (6 / (width_in + width_out)) ** 0.5
            weights = torch.cat([network[place].weight.detach().flatten() for network in layers])
            assert 0.97 * bound < float(weights.abs().max()) <= bound
            assert float(weights.mean().abs()) < 0.1 * bound
            assert all(not network[place].bias.any() for network in layers)


class TestTraining:
    def training(self, data="device", **settings):
        return SurfaceTraining(SurfaceRegression(**{**SMALL, **settings}), 6, data, CPU)

    @pytest.mark.parametrize("data", ["host", "loader"])
    def test_every_source_gives_the_same_losses(self, data):
        here, there = self.training(), self.training(data)
        for _ in range(3):
            here.step()
            there.step()
            assert float(here.loss) == pytest.approx(float(there.loss), rel=1e-6)

    def test_starting_again_repeats_the_losses(self):
        training = self.training()
        runs = []
        for _ in range(2):
            training.start_again()
            losses = []
            for _ in range(4):
                training.step()
                losses.append(float(training.loss))
            runs.append(losses)
        assert runs[0] == runs[1]
        assert runs[0][-1] < runs[0][0]

    def test_activation_of_the_study_is_the_network_s(self):
        for activation, kind in (("relu", torch.nn.ReLU), ("tanh", torch.nn.Tanh)):
            network = self.training(activation=activation)._network
            assert [type(layer) for layer in network][1::2] == [kind, kind]


class TestMeasure:
    def test_fit_comes_with_its_training(self):
        rows = list(SurfaceRegression(**SMALL).measure(point(), CPU, SHORT))
        assert [row["phase"] for row in rows if "phase" in row] == ["step"] * 6 + ["train"]
        assert fact(rows, "samples") == 36
        assert 0 < fact(rows, "rms_residual") <= fact(rows, "largest_residual")
        (fit,) = facts(rows, "fit")
        assert len(fit["grid"]) == fit["value"] == len(fit["grid"][0])
        (loss,) = facts(rows, "loss")
        assert (loss["x"][0], loss["x"][-1]) == (1, 20)
        assert loss["y"][-1] < loss["y"][0]

    def test_training_does_not_depend_on_how_long_was_measured_before(self):
        experiment = SurfaceRegression(**SMALL)
        long = Budget(seconds=0.001, min_samples=30, max_samples=30)
        runs = [list(experiment.measure(point(), CPU, budget)) for budget in (SHORT, long)]
        assert fact(runs[0], "rms_residual") == fact(runs[1], "rms_residual")

    @pytest.mark.parametrize("other", [point(side=4), point(data="loader")])
    def test_other_points_are_not_fitted(self, other):
        rows = list(SurfaceRegression(**SMALL).measure(other, CPU, SHORT))
        assert {row["phase"] for row in rows if "phase" in row} == {"step"}
        assert not facts(rows, "rms_residual")

    def test_compiling_without_a_compiler_and_a_slow_loader_are_left_out_before_they_are_used(
        self, monkeypatch
    ):
        def fails(network):
            def forward(inputs):
                raise OSError("no C++ compiler\nmore")

            return forward

        monkeypatch.setattr(surface_training.torch, "compile", fails)
        with pytest.raises(LeftOutError, match=r"torch.compile fails: OSError: no C\+\+ compiler$"):
            list(SurfaceRegression(**SMALL).measure(point(step="compiled"), CPU, SHORT))
        times = iter([0.0, 3.0])
        monkeypatch.setattr(surface_training.time, "perf_counter", lambda: next(times))
        experiment = SurfaceRegression(sides=(100,), fit_side=6)
        limited = replace(SHORT, limit_s=10.0)
        with pytest.raises(LeftOutError, match="3 s to put 1,000 points together"):
            list(experiment.measure(point(side=100, data="loader"), CPU, limited))


class TestPoints:
    def test_way_of_running_and_place_of_data(self):
        points = SurfaceRegression(sides=(10,), fit_side=20).points()
        ways = {(p["points"], p["step"], p["data"], p.get("only_device")) for p in points}
        common = {("eager", "device", None), ("eager", "host", "cuda"), ("eager", "loader", None)}
        common |= {("captured", "device", "cuda")}
        expected = {(size, *way) for size in (100, 400) for way in common}
        assert ways == expected | {(400, "compiled", "device", None)}
        assert len(points) == len(ways)

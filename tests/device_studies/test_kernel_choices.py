"""Products and convolutions by choice: the same result, settings put back, and processes of their own."""

import json
from unittest.mock import Mock

import pytest
import torch
from torch import nn

from scaling.device_studies import convolutions
from scaling.device_studies.base import LeftOutError
from scaling.device_studies.convolutions import (
    CAP_VARIABLE,
    LAYERS,
    Layer,
    Request,
    fft_convolution,
    measure_convolution,
    measured_apart,
    multiplying,
)
from scaling.device_studies.kernel_choices import MATMUL_CHOICES, KernelChoices
from tests.device_studies.conftest import CPU, SHORT, fact, phases

TINY = Layer(inputs=3, outputs=4, size=9, kernel=3, stride=1, padding=1)


def convolution(choice, case="tiny", batch=2):
    point = {"case": case, "batch": batch, "choice": choice, "precision": "float32"}
    return measure_convolution(point, CPU, SHORT)


class TestProducts:
    def rows(self, choice, precision="float32"):
        experiment = KernelChoices(cpu_products=((24, 32, 40),))
        wanted = {"operation": "matmul", "only_device": "cpu", "choice": choice, "precision": precision}
        (point,) = [one for one in experiment.points() if wanted.items() <= one.items()]
        assert (point["case"], point["batch"]) == ("32x40", 24)
        return list(experiment.measure(point, CPU, SHORT))

    @pytest.mark.parametrize("choice", MATMUL_CHOICES)
    def test_every_way_to_read_gives_the_product_and_a_copy_is_timed_apart(self, choice):
        rows = self.rows(choice)
        assert fact(rows, "error") < 1e-6
        assert fact(rows, "flop") == 2 * 24 * 32 * 40
        assert phases(rows) == ["step"] + ["transpose"] * (choice == "transpose-first")

    def test_bfloat16_is_less_exact_and_cpu_has_no_tf32(self):
        assert 1e-4 < fact(self.rows("transposed", "bfloat16"), "error") < 1e-1
        with pytest.raises(LeftOutError, match="TF32"):
            self.rows("transposed", "tf32")


class TestConvolutions:
    @pytest.fixture(autouse=True)
    def tiny(self, monkeypatch):
        monkeypatch.setitem(LAYERS, "tiny", TINY)

    @pytest.mark.parametrize("padding", [0, 1, 2])
    @pytest.mark.parametrize("kernel", [1, 3, 5])
    def test_product_of_transforms_is_the_convolution(self, kernel, padding):
        images = torch.randn(2, 3, 8, 8, dtype=torch.float64)
        weight = torch.randn(4, 3, kernel, kernel, dtype=torch.float64)
        expected = nn.functional.conv2d(images, weight, padding=padding)
        torch.testing.assert_close(fft_convolution(images, weight, padding), expected)

    @pytest.mark.parametrize("choice", ["library", "native", "fft"])
    def test_every_choice_gives_the_convolution(self, choice):
        rows = list(convolution(choice))
        assert fact(rows, "error") < 1e-5
        assert (phases(rows), fact(rows, "workspace_bytes")) == (["step", "forward"], None)

    def test_settings_are_put_back(self):
        before = torch.backends.mkldnn.enabled
        rows = convolution("native")
        next(rows)
        assert not torch.backends.mkldnn.enabled
        rows.close()
        assert torch.backends.mkldnn.enabled == before
        before = torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32
        with multiplying("float32", CPU):
            assert not torch.backends.cuda.matmul.allow_tf32
            assert not torch.backends.cudnn.allow_tf32
        assert (torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32) == before

    def test_what_a_device_or_layer_has_not_is_left_out(self):
        with pytest.raises(LeftOutError, match="does not search"):
            list(convolution("autotuned"))
        with pytest.raises(LeftOutError, match="no stride of 4"):
            list(convolution("fft", "AlexNet 11x11", 1))

    @pytest.mark.parametrize("layer", LAYERS.values(), ids=list(LAYERS))
    def test_declared_size_of_the_result_is_the_convolutions(self, layer):
        images = torch.zeros(1, layer.inputs, layer.size, layer.size)
        weight = torch.zeros(layer.outputs, layer.inputs, layer.kernel, layer.kernel)
        result = nn.functional.conv2d(images, weight, stride=layer.stride, padding=layer.padding)
        assert result.shape == (1, layer.outputs, layer.output_size, layer.output_size)


class TestApart:
    def request_of(self, **changes):
        asked = {
            **{"layers": ("ResNet 3x3",), "batch": 1, "precisions": ("float32",), "choice": "library"},
            **{"older_interface": False, "cap_mib": None, "seconds": 0.001, "limit_s": 30.0, "device": "cpu"},
        }
        return Request(**{**asked, **changes})

    def test_limit_is_in_the_process_environment_alone(self, monkeypatch):
        monkeypatch.setenv(CAP_VARIABLE, "77")
        limited = self.request_of(older_interface=True, cap_mib=5).environment()
        free = self.request_of().environment()
        assert (limited[CAP_VARIABLE], limited["TORCH_CUDNN_V8_API_DISABLED"]) == ("5", "1")
        assert CAP_VARIABLE not in free

    @pytest.mark.processes
    def test_process_of_its_own_gives_the_rows_of_every_layer_and_precision_or_its_last_lines(self):
        request = self.request_of(precisions=("float32", "tf32"))
        assert phases(measured_apart(request, "ResNet 3x3", "float32")) == ["step", "forward"]
        with pytest.raises(LeftOutError, match="TF32"):
            measured_apart(request, "ResNet 3x3", "tf32")
        with pytest.raises(RuntimeError, match=r"the measuring process failed:.*no-such-device"):
            measured_apart(self.request_of(device="no-such-device"), "ResNet 3x3", "float32")

    def test_one_process_serves_all_cells_of_a_request(self, monkeypatch):
        told = json.dumps({"ResNet 3x3, float32": [{"phase": "step", "seconds": 1.0}]})
        run = Mock(return_value=Mock(returncode=0, stderr="", stdout=f"chatter\n{told}"))
        monkeypatch.setattr(convolutions.subprocess, "run", run)
        request = self.request_of(batch=3)
        first, second = (measured_apart(request, "ResNet 3x3", "float32") for _ in range(2))
        assert (first, run.call_count) == (second, 1)


def test_no_point_is_twice_there_and_limits_are_for_the_gpu_alone_and_come_with_no_limit():
    points = KernelChoices().points()
    assert len({tuple(sorted(p.items())) for p in points}) == len(points)
    capped = [p for p in points if p["choice"] == "older-interface"]
    assert {p["workspace_cap"] for p in capped} == {"none", "1 MiB", "64 MiB"}
    assert {p["only_device"] for p in capped} == {"cuda"}
    assert not [p for p in KernelChoices(caps_mib=()).points() if p["choice"] == "older-interface"]

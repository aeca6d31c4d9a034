"""What the report makes of products and convolutions: who is faster, how exact, and the workspace."""

import numpy as np
import pytest

from scaling.device_studies.declaration import DEVICES
from scaling.device_studies.kernel_choices import REPORT
from scaling.report.device import device_tables, figures
from scaling.report.device.comparisons import least
from scaling.report.device.findings import groups_of
from tests.report.device.conftest import sentences_of


def samples(seconds):
    """Times of a launch with a median of those seconds; of several their launches."""
    medians = seconds if isinstance(seconds, list) else [seconds]
    return [[median * (1 + 0.01 * step) for step in (-1, -1, 0, 0, 0, 1, 1)] for median in medians]


@pytest.fixture
def kernels(of):
    """A folder of `kernel-choices`, and functions that add a product and a convolution."""

    def make(has_gpu: bool = True):
        folder = of("kernel-choices", has_gpu=has_gpu)

        def product(choice, seconds, precision="float32", device="cuda", extra=(), error=1e-7):
            folder.add(
                samples(seconds),
                device=device,
                facts={"flop": 10**9, "error": error},
                extra=extra,
                operation="matmul",
                case="2048x26752",
                batch=1024,
                choice=choice,
                precision=precision,
                workspace_cap="none",
            )

        def convolution(choice, seconds, device="cuda", cap="none", workspace=None, case="ResNet 3x3"):
            folder.add(
                [[]] if seconds is None else samples(seconds),
                planned=seconds is None,
                device=device,
                facts={
                    "flop": 10**9,
                    "error": 1e-7,
                    **({} if workspace is None else {"workspace_bytes": workspace}),
                },
                extra=[{"phase": "forward", "seconds": np.median(seconds or 0.0) / 3}] * 7,
                operation="convolution",
                case=case,
                batch=64,
                choice=choice,
                precision="float32",
                workspace_cap=cap,
            )

        return folder, product, convolution

    return make


COPY = [{"phase": "transpose", "seconds": 0.002}] * 7


def told_of(folder):
    return sentences_of(folder.results())


class TestProducts:
    def test_times_and_the_copy_are_told(self, kernels):
        folder, product, _ = kernels()
        product("transposed", 0.010)
        product("transpose-first", 0.012, extra=COPY)
        product("already-transposed", 0.010)
        (table,) = device_tables([folder.results()])
        assert [table.rows[1][table.headings.index(name)] for name in ("choice", "copy alone, ms")] == [
            "W transposed first",
            "2.00",
        ]
        last = told_of(folder)[-1]
        assert (
            "the GPU with W as it is stored (W transposed first 1.2 times as long) at batch 1,024 (seen"
            in last
        )

    def test_transposing_first_wins_where_it_is_faster(self, kernels):
        folder, product, _ = kernels()
        product("transposed", 0.020)
        product("transpose-first", 0.010, extra=COPY)
        assert "with W transposed first (W as it is stored 2.0 times as long)" in told_of(folder)[-1]

    def test_launches_that_tell_nothing_decide_nothing(self, kernels):
        folder, product, _ = kernels()
        product("transposed", [0.0100, 0.0104, 0.0097])
        product("transpose-first", [0.0102, 0.0098, 0.0103], extra=COPY)
        assert "with W as it is stored or W transposed first (undecided) at" in told_of(folder)[-1]

    def test_precisions_are_told_with_their_error(self, kernels):
        folder, product, _ = kernels()
        product("transposed", 0.010)
        product("transposed", 0.002, precision="tf32", error=3e-4)
        told = " ".join(told_of(folder))
        assert (
            "up to 1.0e-07), operations take 5.0 times as long as in TF32 (relative error up to 3.0e-04)"
            in told
        )

    def test_precision_that_is_as_long_is_told_so(self, kernels):
        folder, product, _ = kernels()
        product("transposed", [0.01001, 0.01, 0.01])
        product("transposed", [0.01, 0.01001, 0.01], precision="bfloat16", error=3e-3)
        assert "take 1.0 times (a tie within 3%) as long as in bfloat16" in " ".join(told_of(folder))


class TestPartly:
    """A choice that is not measured yet may be the fastest."""

    def test_fastest_convolution_is_not_named(self, kernels):
        folder, _, convolution = kernels()
        convolution("autotuned", 0.01)
        convolution("library", None)
        answer = told_of(folder)[-1]
        assert "the convolution takes least" not in answer
        assert "not measured yet, on the GPU for ResNet 3x3." in answer
        table = device_tables([folder.results()])[0]
        shown = [table.headings.index(name) for name in ("choice", "forward and backward, ms")]
        assert [table.rows[0][place] for place in shown] == ["the library's guess", "–"]  # noqa: RUF001

    def test_cases_of_a_device_without_any_number_are_named(self, kernels):
        folder, _, convolution = kernels()
        convolution("library", 0.01)
        convolution("library", None, device="cpu")
        convolution("native", None, device="cpu")
        answer = told_of(folder)[-1]
        assert "takes least time on the GPU with the library's guess for ResNet 3x3" in answer
        assert answer.endswith("not measured yet, on the CPU for ResNet 3x3.")


class TestConvolutions:
    def test_all_choices_that_are_not_told_apart_are_named(self, kernels):
        folder, _, convolution = kernels()
        convolution("library", [0.0100, 0.0104, 0.0097])
        convolution("autotuned", [0.0102, 0.0098, 0.0103])
        convolution("fft", [0.05, 0.05, 0.05])
        assert "with the library's guess or autotuned (undecided) for ResNet 3x3" in told_of(folder)[-1]

    def test_autotuning_is_compared_with_the_guess(self, kernels):
        folder, _, convolution = kernels()
        convolution("library", 0.020)
        convolution("autotuned", 0.010)
        assert "found by trying all, 2.0 times for ResNet 3x3 (seen" in told_of(folder)[0]

    def test_limit_that_was_not_kept_is_said(self, kernels):
        folder, _, convolution = kernels()
        convolution("older-interface", 0.030, workspace=10_000_000)
        convolution("older-interface", 0.060, cap="1 MiB", workspace=9_000_000)
        convolution("older-interface", 0.030, cap="64 MiB", workspace=9_000_000)
        (told,) = [text for text in told_of(folder) if "older interface" in text]
        assert "did not keep the limit of 1 MiB" in told
        assert "64 MiB" not in told

    def test_limited_ones_are_no_answer(self, kernels):
        folder, _, convolution = kernels()
        convolution("older-interface", 0.001, workspace=1)
        convolution("library", 0.01)
        (cells,) = groups_of(REPORT.answer[1], folder.results(), DEVICES[1]).values()
        assert [cell.point["choice"] for cell in least(cells)] == ["library"]


class TestOlderInterface:
    """cuDNN's, and the limit of its workspace."""

    def add(self, convolution, older, newer):
        convolution("autotuned", newer)
        convolution("older-interface", older, workspace=10_000_000)

    def test_other_times_tell_that_the_variable_does_something(self, kernels):
        folder, _, convolution = kernels()
        self.add(convolution, older=[0.030] * 3, newer=[0.060] * 3)
        told = sentences_of(folder.results())
        (sentence,) = [text for text in told if "TORCH_CUDNN_V8_API_DISABLED" in text]
        assert "both autotuned, 0.50 times for ResNet 3x3: where it makes no difference" in sentence

    def test_equal_times_tell_that_it_may_do_nothing(self, kernels):
        folder, _, convolution = kernels()
        self.add(convolution, older=[0.0300, 0.0301, 0.0300], newer=[0.0301, 0.0300, 0.0300])
        told = sentences_of(folder.results())
        assert any("1.0 times (a tie within 3%) for ResNet 3x3: where it makes no" in text for text in told)
        assert "older" not in told[-1]

    def test_answer_names_what_the_worst_limit_costs(self, kernels):
        folder, _, convolution = kernels()
        self.add(convolution, older=0.030, newer=0.060)
        convolution("older-interface", 0.120, cap="1 MiB", workspace=1_000)
        convolution("older-interface", 0.060, cap="64 MiB", workspace=1_000)
        answer = sentences_of(folder.results())[-1]
        assert (
            "4.0 times for ResNet 3x3 with at most 1 MiB and 2.0 times for ResNet 3x3 with at most 64 MiB"
            in answer
        )

    def test_limit_that_was_not_kept_costs_nothing(self, kernels):
        folder, _, convolution = kernels()
        self.add(convolution, older=0.030, newer=0.060)
        convolution("older-interface", 0.120, cap="1 MiB", workspace=10_000_000)
        assert "with a limited workspace" not in sentences_of(folder.results())[-1]


class TestOnCpuAlone:
    def test_answer_is_for_the_cpu_and_the_missing_gpu_is_said(self, kernels):
        folder, product, convolution = kernels(has_gpu=False)
        product("transposed", 0.010, device="cpu")
        product("transpose-first", 0.020, device="cpu", extra=COPY)
        convolution("native", 0.01, device="cpu")
        last = told_of(folder)[-1]
        assert "on the CPU with W as it is stored (W transposed first 2.0 times as long)" in last
        assert "no GPU" in last
        assert [drawn.name.rsplit("-", 1)[-1] for drawn in figures(folder.results())] == [
            "products",
            "convolutions",
        ]


class TestTablesAndFigures:
    def test_rate_is_of_the_forward_pass(self, kernels):
        folder, product, convolution = kernels()
        product("transposed", 0.010)
        convolution("library", 0.030, workspace=2_000_000)
        products, convolutions = device_tables([folder.results()])
        assert dict(zip(products.headings, products.rows[0], strict=True))["TFLOP/s"] == "0.100"
        row = dict(zip(convolutions.headings, convolutions.rows[0], strict=True))
        assert row["TFLOP/s"] == "0.100"
        assert row["workspace, MB"] == "2.00"

    def test_workspace_is_drawn_where_it_was_measured(self, kernels):
        folder, _, convolution = kernels()
        convolution("library", 0.03, workspace=2_000_000)
        convolution("older-interface", 0.03, cap="1 MiB", workspace=0)
        names = [drawn.name for drawn in figures(folder.results())]
        assert names == ["device-kernel-choices-convolutions", "device-kernel-choices-workspace"]

    def test_every_limit_is_a_point_of_its_line(self, kernels):
        folder, _, convolution = kernels()
        convolution("library", 0.03, workspace=0)
        for cap, megabytes in (("none", 80), ("64 MiB", 50), ("1 MiB", 1)):
            convolution("older-interface", 0.03, cap=cap, workspace=megabytes * 10**6)
        (axes,) = list(figures(folder.results()))[-1].figure.axes
        lines = {len(line.get_xdata()): line for line in axes.get_lines()}
        assert list(lines[3].get_xdata()) == [1, 50, 80]

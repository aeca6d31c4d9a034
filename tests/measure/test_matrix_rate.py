"""The rate of matrix products: which size counts, that nothing else changes, and peaks by data sheets."""

import math

import pytest
import torch

from scaling.measure import matrix_rate as module
from scaling.measure.data_sheets import PEAKS, peak_flops
from scaling.measure.matrix_rate import DTYPES, matrix_rate, product
from scaling.measure.probe.cases import PRECISIONS, matrix_sizes

CPU = torch.device("cpu")


class Clock:
    """That only products move."""

    now_s = 0.0

    def mark(self):
        return self.now_s

    def settle(self):
        pass

    def seconds(self, start, stop):
        return stop - start


@pytest.fixture
def clock(monkeypatch):
    made = Clock()
    monkeypatch.setattr(module, "clock_for", lambda device: made)
    monkeypatch.setattr(module.time, "monotonic", lambda: made.now_s)
    return made


def products_take(monkeypatch, clock, seconds_of, fits=math.inf):
    """Products of up to that size move the clock so far; larger ones have no room."""

    def made(precision, size, device):
        if size > fits:
            raise torch.OutOfMemoryError
        return lambda: setattr(clock, "now_s", clock.now_s + seconds_of(size))

    monkeypatch.setattr(module, "product", made)


def test_the_best_size_counts(monkeypatch, clock):
    rates = {256: 1e9, 512: 4e9, 1024: 3e9, 2048: 2e9}
    products_take(monkeypatch, clock, lambda size: 2 * size**3 / rates[size])
    rate = matrix_rate("bf16", CPU, seconds=100.0)
    assert (rate.size, rate.num_samples) == (512, 30)
    assert rate.flops_per_s == pytest.approx(4e9)
    assert matrix_rate("bf16", CPU, seconds=0.0).size == 512, "two sizes are measured without time"


@pytest.mark.parametrize(("fits", "size"), [(512, 512), (0, None)])
def test_what_does_not_fit_is_left_out(monkeypatch, clock, fits, size):
    products_take(monkeypatch, clock, lambda size: size**2 * 1e-9, fits)
    rate = matrix_rate("float32", CPU)
    assert (rate and rate.size) == size


def test_random_numbers_and_settings_stay_as_they_are():
    torch.manual_seed(3)
    before = torch.get_rng_state(), torch.backends.cuda.matmul.allow_tf32
    rate = matrix_rate("float32", CPU, seconds=0.02)
    assert torch.equal(torch.get_rng_state(), before[0])
    assert torch.backends.cuda.matmul.allow_tf32 is before[1]
    assert rate.low <= rate.flops_per_s <= rate.high
    assert rate.size in matrix_sizes(on_gpus=False)


@pytest.mark.parametrize("precision", PRECISIONS)
def test_products_are_of_random_matrices_of_that_type(monkeypatch, precision):
    seen = []
    multiply = torch.mm

    def noted(first, second, *, out):
        seen.append((first, second, multiply(first, second, out=out)))

    monkeypatch.setattr(torch, "mm", noted)
    product(precision, 16, CPU)()
    ((first, second, result),) = seen
    assert first.dtype == second.dtype == result.dtype == DTYPES[precision]
    assert first.shape == second.shape == result.shape == (16, 16)
    assert len(first.unique()) > 200, "zeros need less power, and are faster"


@pytest.mark.gpu
@pytest.mark.parametrize("precision", PRECISIONS)
def test_a_gpu_is_measured_in_every_precision(precision):
    device = torch.device("cuda", 0)
    allowed = torch.backends.cuda.matmul.allow_tf32
    rate = matrix_rate(precision, device)
    assert torch.backends.cuda.matmul.allow_tf32 is allowed
    assert rate.low <= rate.flops_per_s <= rate.high < 5e15
    if precision != "float32":
        assert rate.flops_per_s > 2 * matrix_rate("float32", device).flops_per_s


@pytest.mark.parametrize(
    ("gpu", "precision", "peak"),
    [
        ("NVIDIA H200", "bf16", 989.4e12),
        ("NVIDIA H100 80GB HBM3", "tf32", 494.7e12),
        ("NVIDIA H100 PCIe", "fp16", 756e12),
        ("NVIDIA A100-SXM4-80GB", "bf16", 312e12),
        ("A100-PCIE-40GB", "float32", 19.5e12),
        ("Tesla V100-SXM2-16GB", "fp16", 125e12),
        ("Tesla V100-SXM2-16GB", "bf16", None),
        ("Tesla T4", "tf32", None),
        ("NVIDIA L4", "bf16", 121e12),
        ("NVIDIA L40S", "bf16", 362e12),
        ("NVIDIA L40", "bf16", None),
        ("NVIDIA A100-SXM4-40GB MIG 1g.5gb", "bf16", None),
        ("NVIDIA H20", "bf16", None),
        ("AMD Instinct MI300X", "bf16", None),
    ],
)
def test_a_peak_is_that_of_this_very_device_or_unknown(gpu, precision, peak):
    assert peak_flops(gpu, precision) == peak


def test_fewer_bits_are_not_slower():
    order = ("float32", "tf32", "bf16", "fp16")
    for peaks in PEAKS.values():
        assert set(peaks) <= set(order)
        rates = [peaks[name] for name in order if name in peaks]
        assert rates == sorted(rates)

"""Peak rates by data sheets: which names are known."""

import pytest

from scaling.measure.data_sheets import PEAKS, peak_flops


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

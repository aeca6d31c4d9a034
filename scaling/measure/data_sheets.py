"""Peak dense rates of GPUs by their data sheets: what MFU refers to in the literature.

NVIDIA prints those of tensor cores with sparsity, twice as high, from Ampere on. Sources: data sheets of V100
(1165301-r5), T4, A100 (1758950-r4), H100 NVL, H200, L4 and L40S, with more digits "NVIDIA H100 Tensor Core
GPU Architecture" and "NVIDIA Ada GPU Architecture" (V2.01).
"""

from __future__ import annotations

import re

_H100_SXM = {"float32": 66.9e12, "tf32": 494.7e12, "bf16": 989.4e12, "fp16": 989.4e12}
_A100 = {"float32": 19.5e12, "tf32": 156e12, "bf16": 312e12, "fp16": 312e12}
_H100_NVL = {"float32": 60e12, "tf32": 417.5e12, "bf16": 835.5e12, "fp16": 835.5e12}

PEAKS = {
    r"H200|H100 80GB HBM3": _H100_SXM,
    r"H100 NVL|H200 NVL": _H100_NVL,
    r"H100 PCIe": {"float32": 51.2e12, "tf32": 378e12, "bf16": 756e12, "fp16": 756e12},
    r"A100-SXM4-\d0GB|A100-PCIE-40GB|A100 80GB PCIe": _A100,
    r"V100-SXM2-\d\dGB": {"float32": 15.7e12, "fp16": 125e12},
    r"V100-PCIE-\d\dGB": {"float32": 14e12, "fp16": 112e12},
    r"T4": {"float32": 8.1e12, "fp16": 65e12},
    r"L4": {"float32": 30.3e12, "tf32": 60e12, "bf16": 121e12, "fp16": 121e12},
    r"L40S": {"float32": 91.6e12, "tf32": 183e12, "bf16": 362e12, "fp16": 362e12},
    r"GeForce RTX 4090": {"float32": 82.6e12, "tf32": 82.6e12, "bf16": 165.2e12, "fp16": 165.2e12},
}
"""Pattern of the driver's name, without the maker -> precision -> operations per second."""


def peak_flops(gpu: str, precision: str) -> float | None:
    """Operations per second; None where they are not known. `precision`: float32, tf32, bf16 or fp16."""
    name = re.sub(r"^(NVIDIA |Tesla )+", "", gpu)
    of_gpu = next((peaks for pattern, peaks in PEAKS.items() if re.fullmatch(pattern, name)), {})
    return of_gpu.get(precision)

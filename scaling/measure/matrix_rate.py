"""How many floating-point operations a device does a second in products of two square matrices, 2 n^3 each.

It is what model FLOPs utilization refers to; the size with the best median counts. Reference: A. Chowdhery et
al., "PaLM", arXiv 2204.02311, appendix B (MFU; there the peak is the datasheet's).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch

from scaling.measure.clock import clock_for
from scaling.measure.probe.cases import goes_on, matrix_sizes, num_samples_for, repeats_for

SECONDS = 0.2

DTYPES = {"float32": torch.float32, "tf32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


@dataclass(frozen=True)
class MatrixRate:
    flops_per_s: float
    low: float
    high: float
    size: int
    num_samples: int


def product(precision: str, size: int, device: torch.device) -> Callable[[], object]:
    """Of [size, size] standard normal numbers. RuntimeError: memory is short, or no such product."""
    shape, dtype = (size, size), DTYPES[precision]
    first, second = (torch.randn(shape, device=device).to(dtype) for _ in range(2))
    result = torch.empty(shape, dtype=dtype, device=device)
    matmul = torch.backends.cuda.matmul

    def multiply() -> None:
        before = matmul.allow_tf32
        matmul.allow_tf32 = precision == "tf32"
        torch.mm(first, second, out=result)
        matmul.allow_tf32 = before

    return multiply


def matrix_rate(precision: str, device: torch.device, seconds: float = SECONDS) -> MatrixRate | None:
    """None where not even the smallest product can be done. Leaves random numbers and settings alone."""
    clock, end_s, once_s = clock_for(device), time.monotonic() + seconds, 0.0
    sizes = matrix_sizes(on_gpus=device.type == "cuda")
    rates: dict[int, list[float]] = {}

    def sample(run: Callable[[], object], repeats: int) -> float:
        clock.settle()
        start = clock.mark()
        for _ in range(repeats):
            run()
        stop = clock.mark()
        clock.settle()
        return clock.seconds(start, stop) / repeats

    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        for position, size in enumerate(sizes):
            if not goes_on(position, [n**3 for n in sizes], end_s - time.monotonic(), once_s):
                break
            try:
                run = product(precision, size, device)
                sample(run, 1)  # libraries set themselves up on first use
                alone_s = sample(run, 1)
                once_s = min(alone_s, sample(run, repeats_for(alone_s)))  # without a pause in one of them
                repeats = repeats_for(once_s)
                left_s = end_s - time.monotonic()
                count = num_samples_for(left_s, len(sizes) - position, repeats * once_s)
                rates[size] = [2 * size**3 / sample(run, repeats) for _ in range(count)]
            except RuntimeError:
                break
    if not rates:
        return None
    best = max(rates, key=lambda size: float(np.median(rates[size])))
    low, middle, high = (float(value) for value in np.percentile(rates[best], [25, 50, 75]))
    return MatrixRate(middle, low, high, best, len(rates[best]))

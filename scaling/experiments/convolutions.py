"""Convolutions by several algorithms, with the memory that each takes besides input and output."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from scaling.experiments.base import Budget, LeftOutError, steps

COMPARED_IMAGES = 1
"""Of so many the result is compared with float64."""


@dataclass(frozen=True)
class Layer:
    """A convolution's shape: square images, square kernels."""

    inputs: int
    outputs: int
    size: int
    kernel: int
    stride: int
    padding: int

    @property
    def output_size(self) -> int:
        """Width and height of the result."""
        return (self.size + 2 * self.padding - self.kernel) // self.stride + 1

    @property
    def flop_per_image(self) -> int:
        """Of a forward pass by definition, a multiplication and an addition as two."""
        return 2 * self.inputs * self.outputs * self.kernel**2 * self.output_size**2


LAYERS = {
    "AlexNet 11x11": Layer(3, 96, 224, 11, 4, 2),
    "AlexNet 5x5": Layer(96, 256, 27, 5, 1, 2),
    "ResNet 3x3": Layer(64, 64, 56, 3, 1, 1),
}
"""The first two of AlexNet-S, and one of ResNet-50."""

Convolve = Callable[[Tensor, Tensor], Tensor]


def measure_convolution(
    layer: Layer, batch: int, choice: str, dtype: torch.dtype, device: torch.device, budget: Budget
) -> Iterator[dict[str, Any]]:
    """Phases `step` (forward and backward) and `forward`, the error, and on a GPU the workspace.

    On a GPU, torch keeps the algorithm that it has taken for a shape, however it was found: in a process in
    which `library` has been measured `autotuned` is the same, and the other way round.

    Args:
        layer: the convolution.
        batch: images.
        choice: `library`, `autotuned`, `native` or `fft`.
        dtype: of everything.
        device: where.
        budget: how long.

    Raises:
        LeftOutError: the device or the layer has no such choice.
    """
    convolve = _convolution(layer, choice, device)
    torch.manual_seed(1)
    images = torch.randn(batch, layer.inputs, layer.size, layer.size, device=device)
    weight = torch.randn(layer.outputs, layer.inputs, layer.kernel, layer.kernel, device=device)
    exact = _exact(images, weight, layer)
    images, weight = images.to(dtype).requires_grad_(), weight.to(dtype).requires_grad_()
    shape = (batch, layer.outputs, layer.output_size, layer.output_size)
    gradient = torch.randn(shape, device=device).to(dtype)

    def forward() -> Tensor:
        with torch.no_grad():
            return convolve(images, weight)

    def step() -> object:
        return torch.autograd.grad(convolve(images, weight), (images, weight), gradient)

    with _chosen(choice, device):
        yield {"fact": "flop", "value": layer.flop_per_image * batch}
        yield {"fact": "samples", "value": batch}
        yield {"fact": "error", "value": relative_error(forward()[:COMPARED_IMAGES], exact)}
        yield from steps(budget.samples(step, device))
        yield from steps(budget.samples(forward, device), "forward")
        if device.type == "cuda":
            yield {"fact": "workspace_bytes", "value": _beside(forward, device)}


def relative_error(result: Tensor, exact: Tensor) -> float:
    """The rms difference of `result` from `exact`, over the rms of that; `exact` is float64."""
    difference = result.to(exact.device).double() - exact
    return float(difference.square().mean().sqrt() / exact.square().mean().sqrt())


def _exact(images: Tensor, weight: Tensor, layer: Layer) -> Tensor:
    """The first images' convolution in float64, of values that nothing has rounded yet."""
    first = images[:COMPARED_IMAGES].cpu().double()
    return nn.functional.conv2d(first, weight.cpu().double(), stride=layer.stride, padding=layer.padding)


def _convolution(layer: Layer, choice: str, device: torch.device) -> Convolve:
    if choice == "fft":
        if layer.stride != 1:
            raise LeftOutError(f"a Fourier transform computes no stride of {layer.stride}")
        return lambda images, weight: fft_convolution(images, weight, layer.padding)
    if choice == "autotuned" and device.type != "cuda":
        raise LeftOutError("oneDNN, which computes convolutions on a CPU, does not search by trying")
    return lambda images, weight: nn.functional.conv2d(
        images, weight, stride=layer.stride, padding=layer.padding
    )


@contextmanager
def _chosen(choice: str, device: torch.device) -> Iterator[None]:
    """torch's settings of that choice, and afterwards those of before.

    By single attributes: `cudnn.flags` sets the precision of multiplications too.
    """
    cudnn, onednn = torch.backends.cudnn, torch.backends.mkldnn
    if device.type != "cuda":
        before = bool(onednn.enabled)
        onednn.enabled = before and choice != "native"  # type: ignore[assignment]
        try:
            yield
        finally:
            onednn.enabled = before  # type: ignore[assignment]
        return
    was = cudnn.enabled, cudnn.benchmark, cudnn.benchmark_limit
    cudnn.enabled, cudnn.benchmark = choice != "native", choice == "autotuned"
    cudnn.benchmark_limit = 0  # every algorithm is tried
    try:
        yield
    finally:
        cudnn.enabled, cudnn.benchmark, cudnn.benchmark_limit = was


def fft_convolution(images: Tensor, weight: Tensor, padding: int) -> Tensor:
    """The same as `conv2d` of stride 1: a product of transforms, one matrix product a frequency.

    Args:
        images: [n, inputs, size, size].
        weight: [outputs, inputs, kernel, kernel].
        padding: zeros at every side.

    Returns:
        [n, outputs, size + 2 padding - kernel + 1, same].
    """
    kernel = weight.shape[-1]
    padded = images.shape[-1] + 2 * padding
    size = (padded, padded)
    moved = nn.functional.pad(images, (padding,) * 4)
    of_images = torch.fft.rfft2(moved, s=size).permute(2, 3, 0, 1)
    of_weight = torch.fft.rfft2(weight, s=size).conj().permute(2, 3, 1, 0)
    product = (of_images @ of_weight).permute(2, 3, 0, 1)
    kept = padded - kernel + 1
    result: Tensor = torch.fft.irfft2(product, s=size)[..., :kept, :kept]
    return result


def _beside(forward: Callable[[], Tensor], device: torch.device) -> int:
    """Bytes that a forward pass takes at its peak besides its result."""
    torch.cuda.synchronize(device)
    before = torch.cuda.memory_allocated(device)
    torch.cuda.reset_peak_memory_stats(device)
    result = forward()
    torch.cuda.synchronize(device)
    kept = torch.cuda.memory_allocated(device) - before
    del result
    return torch.cuda.max_memory_allocated(device) - before - kept

"""What `kernel-choices` measures: products, and convolutions with the memory that they take besides.

Convolutions of cuDNN run in a process of their own, where nothing is chosen or limited yet. torch keeps the
algorithm of a shape for as long as the process lives, whether it was cuDNN's guess or found by trying. And
cuDNN's own limit of the workspace, CUDNN_CONV_WSCAP_DBG in MiB, has to be in the environment before the
library is loaded. That limit is documented for cuDNN's older interface
(cudnnGetConvolution...WorkspaceSize), which torch takes under TORCH_CUDNN_V8_API_DISABLED; without a limit
the older interface is measured too, so that only the limit differs. Whether it was kept is measured:
`workspace_bytes`.

Reference: the release notes of cuDNN 8.0.5; "CUDA environment variables" in torch's documentation.
"""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor, nn

from scaling.device_studies.base import Budget, LeftOutError, Samples, steps

COMPARED = 16  # so many rows and columns of a product are compared with float64
TF32_CAPABILITY = (8, 0)  # the first compute capability that has it


def dtype_of(precision: str) -> torch.dtype:
    """The tensors' type; TF32 is a way to multiply float32."""
    return torch.bfloat16 if precision == "bfloat16" else torch.float32


@contextmanager
def multiplying(precision: str, device: torch.device) -> Iterator[None]:
    """Within it float32 is multiplied as TF32, if `precision` says so, else as float32. Raises LeftOutError:
    the device has no TF32."""
    if precision == "tf32":
        if device.type != "cuda":
            raise LeftOutError("TF32 is a number format of GPUs")
        if torch.cuda.get_device_capability(device) < TF32_CAPABILITY:
            raise LeftOutError("this GPU has no TF32, which came with compute capability 8.0")
    matmul, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
    before = matmul.allow_tf32, cudnn.allow_tf32
    matmul.allow_tf32 = cudnn.allow_tf32 = precision == "tf32"
    try:
        yield
    finally:
        matmul.allow_tf32, cudnn.allow_tf32 = before


COMPARED_IMAGES = 1  # of so many the result is compared with float64


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
) -> Samples:
    """Phases `step` (forward and backward) and `forward`, the error, and on a GPU the workspace. Raises
    LeftOutError: the device or the layer has no such choice.

    On a GPU, torch keeps the algorithm that it has taken for a shape, however it was found: in a process in
    which `library` has been measured `autotuned` is the same, and the other way round."""
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


def measure_product(point: Mapping[str, Any], device: torch.device, budget: Budget) -> Samples:
    columns, inner = map(int, point["case"].split("x"))
    batch, dtype = point["batch"], dtype_of(point["precision"])
    torch.manual_seed(1)
    unrounded = torch.randn(batch, inner, device=device), torch.randn(columns, inner, device=device)
    exact = unrounded[0][:COMPARED].double() @ unrounded[1][:COMPARED].double().t()
    left, right = (operand.to(dtype) for operand in unrounded)
    del unrounded
    turned = right.t().contiguous()

    def transpose() -> Tensor:
        return turned.copy_(right.t())

    products: dict[str, Callable[[], Tensor]] = {
        "transposed": lambda: left @ right.t(),
        "transpose-first": lambda: left @ transpose(),
        "already-transposed": lambda: left @ turned,
    }
    product = products[point["choice"]]
    yield {"fact": "flop", "value": 2 * batch * columns * inner}
    yield {"fact": "error", "value": relative_error(product()[:COMPARED, :COMPARED], exact)}
    yield from steps(budget.samples(product, device))
    if point["choice"] == "transpose-first":
        yield from steps(budget.samples(transpose, device), "transpose")


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
    """torch's settings of that choice, and afterwards those of before. By single attributes: `cudnn.flags`
    sets the precision of multiplications too."""
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
    """The same as `conv2d` of stride 1: a product of transforms, one matrix product a frequency. Images are
    [n, inputs, size, size], weights [outputs, inputs, kernel, kernel]."""
    kernel = weight.shape[-1]
    padded = images.shape[-1] + 2 * padding
    size = (padded, padded)
    of_images = torch.fft.rfft2(nn.functional.pad(images, (padding,) * 4), s=size).permute(2, 3, 0, 1)
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


CAP_VARIABLE = "CUDNN_CONV_WSCAP_DBG"
OLDER_INTERFACE = {"TORCH_CUDNN_V8_API_DISABLED": "1"}
TIMEOUT_S = 180
Rows = list[dict[str, Any]]


@dataclass(frozen=True)
class Request:
    """What a process measures: every layer in every precision. `choice` is `library` or `autotuned`; without
    `cap_mib` the workspace has no limit."""

    layers: tuple[str, ...]
    batch: int
    precisions: tuple[str, ...]
    choice: str
    older_interface: bool
    cap_mib: int | None
    seconds: float
    limit_s: float
    device: str

    def environment(self) -> dict[str, str]:
        added = dict(OLDER_INTERFACE) if self.older_interface else {}
        if self.cap_mib is not None:
            added[CAP_VARIABLE] = str(self.cap_mib)
        return {name: value for name, value in os.environ.items() if name != CAP_VARIABLE} | added


def measured_apart(request: Request, layer: str, precision: str) -> Rows:
    """Rows of one of the request's measurements, as `measure_convolution` has them. Raises LeftOutError: it
    was left out; RuntimeError: the process fails, with its last lines."""
    rows = _measure_all(request)[_key(layer, precision)]
    reason = next((row["left_out"] for row in rows if "left_out" in row), None)
    if reason is not None:
        raise LeftOutError(str(reason))
    return rows


@lru_cache(maxsize=16)
def _measure_all(request: Request) -> dict[str, Rows]:
    try:
        done = subprocess.run(
            [sys.executable, "-m", __name__, json.dumps(asdict(request))],
            env=request.environment(),
            check=False,
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
        )
    except subprocess.TimeoutExpired as error:
        raise RuntimeError(f"{request.choice} convolutions: no result within {TIMEOUT_S} s") from error
    if done.returncode:
        last_lines = " / ".join(done.stderr.strip().splitlines()[-3:])
        raise RuntimeError(f"{request.choice} convolutions: the measuring process failed: {last_lines}")
    rows: dict[str, Rows] = json.loads(done.stdout.splitlines()[-1])
    return rows


def _key(layer: str, precision: str) -> str:
    return f"{layer}, {precision}"


def _measure_one(request: Request, layer: str, precision: str) -> Rows:
    device, budget = torch.device(request.device), Budget(request.seconds, limit_s=request.limit_s)
    what, rows = (LAYERS[layer], request.batch, request.choice, dtype_of(precision)), Rows()
    try:
        with multiplying(precision, device):
            rows += measure_convolution(*what, device, budget)
    except LeftOutError as error:
        rows.append({"left_out": str(error)})
    except torch.OutOfMemoryError as error:
        rows.append({"left_out": f"out of memory: {str(error).partition('.')[0]}"})
    return rows


def main(text: str) -> None:
    asked = json.loads(text)
    asked |= {name: tuple(asked[name]) for name in ("layers", "precisions")}
    request, every = Request(**asked), itertools.product(asked["layers"], asked["precisions"])
    print(json.dumps({_key(*pair): _measure_one(request, *pair) for pair in every}))


if __name__ == "__main__":
    main(sys.argv[1])

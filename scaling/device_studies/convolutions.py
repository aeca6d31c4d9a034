"""What `kernel-choices` measures: products, and convolutions with the memory that they take besides.

Convolutions of cuDNN run in a process of their own: torch keeps the algorithm of a shape, guessed or found by
trying, for as long as the process lives, and cuDNN's limit of the workspace, CUDNN_CONV_WSCAP_DBG in MiB, has
to be in the environment before the library is loaded. The limit is documented for the older interface
(cudnnGetConvolution...WorkspaceSize), which torch takes under TORCH_CUDNN_V8_API_DISABLED; it is measured
without a limit too, so that only the limit differs. `workspace_bytes` tells whether it was kept.

Reference: the release notes of cuDNN 8.0.5; "CUDA environment variables" in torch's documentation."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import lru_cache, partial
from typing import Any

import torch
from torch import Tensor, nn

from scaling.device_studies.base import Budget, LeftOutError, Samples, facts, steps

COMPARED, COMPARED_IMAGES = 16, 1  # so many rows and columns of a product, and images, with float64
CUDNN, ONEDNN = torch.backends.cudnn, torch.backends.mkldnn
DTYPES = {"float32": torch.float32, "tf32": torch.float32, "bfloat16": torch.bfloat16}


@contextmanager
def setting(*changes: tuple[Any, str, Any]) -> Iterator[None]:
    """Attributes of torch's backends, each for itself (`cudnn.flags` sets more), and afterwards as before."""
    before = [(backend, name, getattr(backend, name)) for backend, name, _ in changes]
    try:
        for change in changes:
            setattr(*change)
        yield
    finally:
        for was in before:
            setattr(*was)


@contextmanager
def multiplying(precision: str, device: torch.device) -> Iterator[None]:
    """Float32 is multiplied as TF32, if `precision` says so. Raises LeftOutError: the device has no TF32."""
    is_tf32 = precision == "tf32"
    if is_tf32 and device.type != "cuda":
        raise LeftOutError("TF32 is a number format of GPUs")
    if is_tf32 and torch.cuda.get_device_capability(device) < (8, 0):
        raise LeftOutError("this GPU has no TF32, which came with compute capability 8.0")
    matmul = torch.backends.cuda.matmul
    with setting((matmul, "allow_tf32", is_tf32), (CUDNN, "allow_tf32", is_tf32)):
        yield


@dataclass(frozen=True)
class Layer:
    """Square images, square kernels."""

    inputs: int
    outputs: int
    size: int
    kernel: int
    stride: int
    padding: int

    @property
    def output_size(self) -> int:
        return (self.size + 2 * self.padding - self.kernel) // self.stride + 1

    def convolve(self, images: Tensor, weight: Tensor) -> Tensor:
        return nn.functional.conv2d(images, weight, stride=self.stride, padding=self.padding)


LAYERS = {
    "AlexNet 11x11": Layer(3, 96, 224, 11, 4, 2),
    "AlexNet 5x5": Layer(96, 256, 27, 5, 1, 2),
    "ResNet 3x3": Layer(64, 64, 56, 3, 1, 1),
}


def measure_convolution(point: Mapping[str, Any], device: torch.device, budget: Budget) -> Samples:
    """Phases `step` (forward and backward) and `forward`, the error, and on a GPU the workspace;
    LeftOutError: there is no such choice. Of `library` and `autotuned` a process can measure one on a GPU."""
    on_gpu, dtype = device.type == "cuda", DTYPES[point["precision"]]
    layer, batch, choice = LAYERS[point["case"]], point["batch"], point["choice"]
    convolve = partial(fft_convolution, padding=layer.padding) if choice == "fft" else layer.convolve
    if choice == "fft" and layer.stride != 1:
        raise LeftOutError(f"a Fourier transform computes no stride of {layer.stride}")
    if choice == "autotuned" and not on_gpu:
        raise LeftOutError("oneDNN, which computes convolutions on a CPU, does not search by trying")
    torch.manual_seed(1)
    images = torch.randn(batch, layer.inputs, layer.size, layer.size, device=device)
    weight = torch.randn(layer.outputs, layer.inputs, layer.kernel, layer.kernel, device=device)
    # In float64, of values that nothing has rounded yet.
    exact = layer.convolve(images[:COMPARED_IMAGES].cpu().double(), weight.cpu().double())
    images, weight = images.to(dtype).requires_grad_(), weight.to(dtype).requires_grad_()
    shape = (batch, layer.outputs, layer.output_size, layer.output_size)
    gradient = torch.randn(shape, device=device).to(dtype)
    # Of a forward pass by definition, a multiplication and an addition as two.
    flop = 2 * layer.inputs * layer.kernel**2 * gradient.numel()

    def forward() -> Tensor:
        with torch.no_grad():
            return convolve(images, weight)

    def step() -> object:
        return torch.autograd.grad(convolve(images, weight), (images, weight), gradient)

    # With a limit of 0 every algorithm is tried.
    tuned = (CUDNN, "benchmark", choice == "autotuned"), (CUDNN, "benchmark_limit", 0)
    library = CUDNN if on_gpu else ONEDNN
    is_used = (library, "enabled", library.enabled and choice != "native")
    with setting(is_used, *(tuned if on_gpu else ())):
        yield from facts(flop=flop, samples=batch)
        yield from facts(error=relative_error(forward()[:COMPARED_IMAGES], exact))
        yield from steps(budget.samples(step, device))
        yield from steps(budget.samples(forward, device), "forward")
        if on_gpu:
            yield from facts(workspace_bytes=_beside(forward, device))


def measure_product(point: Mapping[str, Any], device: torch.device, budget: Budget) -> Samples:
    columns, inner = map(int, point["case"].split("x"))
    batch, dtype = point["batch"], DTYPES[point["precision"]]
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
    yield from facts(flop=2 * batch * columns * inner)
    yield from facts(error=relative_error(product()[:COMPARED, :COMPARED], exact))
    yield from steps(budget.samples(product, device))
    if point["choice"] == "transpose-first":
        yield from steps(budget.samples(transpose, device), "transpose")


def relative_error(result: Tensor, exact: Tensor) -> float:
    """The rms difference from `exact`, float64, over the rms of that."""
    difference = result.to(exact.device).double() - exact
    return float(difference.square().mean().sqrt() / exact.square().mean().sqrt())


def fft_convolution(images: Tensor, weight: Tensor, padding: int) -> Tensor:
    """The same as `conv2d` of stride 1: a product of transforms, one matrix product a frequency. Images are
    [n, inputs, size, size], weights [outputs, inputs, kernel, kernel]."""
    padded = images.shape[-1] + 2 * padding
    size, kept = (padded, padded), padded - weight.shape[-1] + 1
    of_images = torch.fft.rfft2(nn.functional.pad(images, (padding,) * 4), s=size).permute(2, 3, 0, 1)
    of_weight = torch.fft.rfft2(weight, s=size).conj().permute(2, 3, 1, 0)
    product = (of_images @ of_weight).permute(2, 3, 0, 1)
    result: Tensor = torch.fft.irfft2(product, s=size)[..., :kept, :kept]
    return result


def _beside(forward: Callable[[], Tensor], device: torch.device) -> int:
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
    """Every layer in every precision; without `cap_mib` the workspace has no limit."""

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
    """Rows as of `measure_convolution`. Raises LeftOutError; RuntimeError: the process fails."""
    rows = _measure_all(request)[f"{layer}, {precision}"]
    if "left_out" in rows[-1]:
        raise LeftOutError(rows[-1]["left_out"])
    return rows


@lru_cache(maxsize=16)
def _measure_all(request: Request) -> dict[str, Rows]:
    command = [sys.executable, "-m", __name__, json.dumps(asdict(request))]
    how: dict[str, Any] = {"env": request.environment(), "timeout": TIMEOUT_S, "text": True}
    try:
        done = subprocess.run(command, check=False, capture_output=True, **how)
    except subprocess.TimeoutExpired as error:
        raise RuntimeError(f"{request.choice} convolutions: no result within {TIMEOUT_S} s") from error
    if done.returncode:
        last_lines = " / ".join(done.stderr.strip().splitlines()[-3:])
        raise RuntimeError(f"{request.choice} convolutions: the measuring process failed: {last_lines}")
    rows: dict[str, Rows] = json.loads(done.stdout.splitlines()[-1])
    return rows


def main(text: str) -> None:
    request, measured = Request(**json.loads(text)), dict[str, Rows]()
    device, budget = torch.device(request.device), Budget(request.seconds, limit_s=request.limit_s)
    for layer, precision in itertools.product(request.layers, request.precisions):
        asked, rows = {"case": layer, "batch": request.batch, "choice": request.choice}, Rows()
        try:
            with multiplying(precision, device):
                rows += measure_convolution({**asked, "precision": precision}, device, budget)
        except LeftOutError as error:
            rows.append({"left_out": str(error)})
        except torch.OutOfMemoryError as error:
            rows.append({"left_out": f"out of memory: {str(error).partition('.')[0]}"})
        measured[f"{layer}, {precision}"] = rows
    print(json.dumps(measured))


if __name__ == "__main__":
    main(sys.argv[1])

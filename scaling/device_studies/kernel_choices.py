"""Which kernel should a library choose? Matrix products with a transposed operand, and convolutions.

The product x W^T can read W as it is stored (`transposed`), or copy it into its transpose first
(`transpose-first`; `already-transposed` is the same without the copy). Of a convolution `library` is what
cuDNN (on a CPU oneDNN) takes for the best, `autotuned` what is found by trying all, `native` a matrix product
for every image without either library, `fft` a product of Fourier transforms. Workspace, the memory besides
input and output, can be limited for cuDNN's `older-interface`: see `convolutions`. Phases: `step`, which of a
convolution is forward and backward pass; `forward`; `transpose`, the copy alone.

Reference: S. Shi, Q. Wang, P. Xu, X. Chu, "Benchmarking state-of-the-art deep learning software tools", arXiv
1608.07249, its discussion of results."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal, final, get_args

from pydantic import PositiveInt

from scaling.device_studies.base import Budget, Device, Experiment, Point, Samples, Value, Variables
from scaling.device_studies.declaration import (
    STEP_TIME,
    Bars,
    Fastest,
    Lines,
    Noted,
    Panels,
    Report,
    Rows,
    Show,
    Times,
)

MATMUL, CONVOLUTION = "matmul", "convolution"
MATMUL_CHOICES = ("transposed", "transpose-first", "already-transposed")
LayerName = Literal["AlexNet 11x11", "AlexNet 5x5", "ResNet 3x3"]
ConvolutionChoice = Literal["library", "autotuned", "native", "fft"]
CONVOLUTION_CHOICES: tuple[ConvolutionChoice, ...] = get_args(ConvolutionChoice)
Precision = Literal["float32", "tf32", "bfloat16"]
OF_THE_LIBRARY = ("library", "autotuned")  # convolutions of other choices are in float32 alone
OLDER_INTERFACE = "older-interface"
NO_CAP = "none"
Product = tuple[PositiveInt, PositiveInt, PositiveInt]


def is_kept(cell: Any) -> bool:
    """Whether there is a limit of the workspace, and what was measured is within it."""
    cap = str(cell.value("workspace_cap"))
    return cap != NO_CAP and int(cell.fact("workspace_bytes") or 0) <= float(cap.split()[0]) * 2**20


PRODUCTS, CONVOLUTIONS, EXACT = {"operation": MATMUL}, {"operation": CONVOLUTION}, {"precision": "float32"}
OLDER = {"choice": OLDER_INTERFACE, "workspace_cap": NO_CAP}
CASE, NAMED = ("device", "case", "batch"), ("operation", "case", "batch", "choice", "precision")
COLUMNS = (STEP_TIME[1], Show("relative error", "error", "error"))
BELOW = (
    "Relative error: rms difference from float64 over the rms of the values. TFLOP/s of a forward pass, by "
    "the definition's number of operations. TF32 is a number format of GPUs: on the CPU there are no such "
    "rows."
)
REPORT = Report(
    question="Which kernel should a library choose?",
    named=NAMED,
    figures=(
        Bars(
            "products", "Milliseconds of x W^T (column iteration_s, with its 95% interval), for every way to "
            "read W and every precision (columns choice, precision). Transposed first: with the copy; "
            "transposed before: without it. What is not named was not measured.",
            "matrix products by choice and precision", CASE, "{on}: x W^T, batch {batch:,}, W {case}",
            "{choice}", "precision", PRODUCTS,
        ),
        Bars(
            "convolutions", "Milliseconds of a convolution's forward and backward pass (column iteration_s, "
            "with its 95% interval); the line inside a bar is the forward pass (forward_seconds). What is "
            "not named was not measured.", "convolutions by choice and precision", CASE, "{on}: {case}, "
            "batch {batch:,}",
            "{choice} {workspace_cap}", "precision", CONVOLUTIONS, "forward",
        ),
        Lines(
            "workspace", "A convolution's forward pass in float32 (forward_seconds) over the memory that it "
            "takes besides input and output (workspace_bytes): by choice; of cuDNN's older interface, a "
            "point for each limit (workspace_cap).", "workspace against speed, GPU, float32",
            (Panels("workspace_bytes", "workspace, MB", {**CONVOLUTIONS, **EXACT, "device": "cuda"},
                    ("case",), "{case}", "forward", 1e-6),),
            "choice", "ms", columns=3,
        ),
    ),
    tables=(
        Rows(
            "matrix products x W^T", (*CASE, "choice", "precision"),
            (Show("ms"), *COLUMNS, Show("copy alone, ms", phase="transpose"),
             Show("TFLOP/s", "per_s", "flop", scale=1e-12)),
            PRODUCTS, below=BELOW,
        ),
        Rows(
            "convolutions", (*CASE, "choice", "workspace_cap", "precision"),
            (Show("forward and backward, ms"), *COLUMNS, Show("forward, ms", phase="forward"),
             Show("TFLOP/s", "per_s", "flop", "forward", 1e-12),
             Show("workspace, MB", "number", "workspace_bytes", scale=1e-6)),
            CONVOLUTIONS, below=BELOW,
        ),
    ),
    answer=(
        Fastest(
            "In float32, the product with W takes least time on the {on} with ", "choice", ("case", "batch"),
            "at batch {batch:,}", {**PRODUCTS, **EXACT, "choice": MATMUL_CHOICES[:2]},
            "{choice} for products on the {on}",
        ),
        Fastest(
            "In float32, the convolution takes least time on the {on} with ", "choice", ("case", "batch"),
            "for {case}", {**CONVOLUTIONS, **EXACT, "choice": CONVOLUTION_CHOICES},
            "{choice} for convolutions on the {on}",
        ),
        Times(
            "On the GPU a convolution's forward pass with a limited workspace takes, in multiples of that "
            "without a limit, ", over={**OLDER, "device": "cuda"}, at=("case",), each="{times} for {case}",
            of={"with at most {workspace_cap}": {"choice": OLDER_INTERFACE}}, vary="workspace_cap",
            phases={"forward": ""}, only=is_kept,
        ),
    ),
    findings=(
        Times(
            "On the {on}, in float32 (relative error up to {error}), operations take ",
            over={**EXACT, "choice": ("transposed", "library")},
            of={
                f"as long as in {name}": {"precision": precision, "choice": ("transposed", "library")}
                for precision, name in (("tf32", "TF32"), ("bfloat16", "bfloat16"))
            },
            at=("operation", "case", "batch", "choice"), turned=True, error="error",
        ),
        Times(
            "On the {on}, forward and backward pass in float32 by cuDNN's own guess take, in multiples of "
            "the time of the algorithm found by trying all, ", over={**EXACT, "choice": "autotuned"},
            of={"": {**EXACT, "choice": "library"}}, at=("case", "batch"), each="{times} for {case}",
        ),
        Times(
            "cuDNN's older interface, asked for by TORCH_CUDNN_V8_API_DISABLED=1, takes, in multiples of the "
            "present one's time, both autotuned, ", over={**EXACT, "choice": "autotuned", "device": "cuda"},
            of={"": OLDER}, at=("case", "batch"), each="{times} for {case}",
            after=": where it makes no difference, the variable may do nothing in this version of torch",
        ),
        Noted("{on}: {case}, batch {batch:,}: cuDNN's older interface did not keep the limit of "
              "{workspace_cap}.",
              lambda one: one.value("workspace_cap") != NO_CAP and one.estimate() and not is_kept(one)),
    ),
    labels={
        "transposed": "W as it is stored", "transpose-first": "W transposed first",
        "already-transposed": "W transposed before", "library": "the library's guess",
        "fft": "Fourier transforms", OLDER_INTERFACE: "autotuned, older interface", "tf32": "TF32",
        NO_CAP: "",
    },
    order={
        "device": ("cuda", "cpu"),
        "choice": (*MATMUL_CHOICES, *CONVOLUTION_CHOICES, OLDER_INTERFACE),
        "precision": get_args(Precision),
    },
)  # fmt: skip


@final
@dataclass(frozen=True)
class KernelChoices(Experiment):
    """Matrix products and convolutions by choice and precision."""

    name: ClassVar[str] = "kernel-choices"
    report: ClassVar[Report] = REPORT

    products: tuple[Product, ...] = ((1024, 2048, 26752), (64, 2048, 26752))  # batch, columns, inner
    cpu_products: tuple[Product, ...] = ((1024, 2048, 3344), (64, 2048, 26752))
    layers: tuple[LayerName, ...] = get_args(LayerName)
    batch: PositiveInt = 64  # images of a convolution on a GPU
    cpu_batch: PositiveInt = 4
    precisions: tuple[Precision, ...] = get_args(Precision)
    convolution_choices: tuple[ConvolutionChoice, ...] = CONVOLUTION_CHOICES
    caps_mib: tuple[PositiveInt, ...] = (1, 64)  # limits of cuDNN's workspace, by its older interface

    def points(self) -> list[Point]:
        products = [
            _point(device, MATMUL, f"{columns}x{inner}", batch, choice, precision)
            for device, sizes in (("cuda", self.products), ("cpu", self.cpu_products))
            for batch, columns, inner in sizes
            for precision in self.precisions
            for choice in MATMUL_CHOICES
        ]
        convolutions = [
            _point(device, CONVOLUTION, layer, batch, choice, precision)
            for device, batch in (("cuda", self.batch), ("cpu", self.cpu_batch))
            for layer in self.layers
            for choice in self.convolution_choices
            for precision in self.precisions
            if choice in OF_THE_LIBRARY or precision == "float32"
        ]
        limited = [
            _point("cuda", CONVOLUTION, layer, self.batch, OLDER_INTERFACE, "float32", cap=cap)
            for cap in ([NO_CAP, *(f"{cap} MiB" for cap in self.caps_mib)] if self.caps_mib else [])
            for layer in self.layers
        ]
        return [*products, *convolutions, *limited]

    def measure(self, point: Variables, device: Device, budget: Budget) -> Samples:
        from scaling.device_studies import convolutions

        if device.type == "cuda" and point["choice"] in (*OF_THE_LIBRARY, OLDER_INTERFACE):
            choice, precisions, cap = point["choice"], self.precisions, point["workspace_cap"]
            if older := choice == OLDER_INTERFACE:
                choice, precisions = "autotuned", ("float32",)
            of = self.layers, point["batch"], precisions, choice
            how = older, None if cap == NO_CAP else int(cap.split()[0]), budget.seconds, budget.limit_s
            request = convolutions.Request(*of, *how, str(device))
            yield from convolutions.measured_apart(request, point["case"], point["precision"])
            return
        with convolutions.multiplying(point["precision"], device):
            if point["operation"] == MATMUL:
                yield from convolutions.measure_product(point, device, budget)
            else:
                yield from convolutions.measure_convolution(point, device, budget)


def _point(device: str, *named: Value, cap: str = NO_CAP) -> Point:
    return {**dict(zip(NAMED, named, strict=True)), "workspace_cap": cap, "only_device": device}
